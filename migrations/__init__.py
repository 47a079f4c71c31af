"""Schema migrations: an Alembic environment that works from an installed package."""

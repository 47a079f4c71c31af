"""Schema migrations: an Alembic environment that works from an installed package."""

HEAD = "0013"
"""The newest revision: a store that has it is opened without importing Alembic."""

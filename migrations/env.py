"""Alembic environment: runs on the connection that `migrations.runner` prepared."""

from __future__ import annotations

from alembic import context
from sqlalchemy.engine import Connection

from service.store.tables import Base


def run() -> None:
    """Run the scripts in one transaction on the prepared connection."""
    connection: Connection = context.config.attributes["connection"]
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
        transaction_per_migration=False,
    )
    with context.begin_transaction():
        context.run_migrations()


run()

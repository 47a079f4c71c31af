"""Small shared pieces of statements: affected-row counts and insert-or-ignore."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from sqlalchemy import CursorResult, literal
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.sql.base import Executable


def affected(session: Session, statement: Executable) -> int:
    """Run an UPDATE or DELETE and give the number of rows it touched."""
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return cast("CursorResult[Any]", result).rowcount


def insert_or_ignore(
    session: Session, table: type[DeclarativeBase], values: Mapping[str, Any]
) -> bool:
    """Insert one row unless one of its unique keys is taken; True when inserted."""
    module = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    # RETURNING instead of a row count: PostgreSQL's driver does not count inserted rows.
    statement = module.insert(table.__table__).values(dict(values)).on_conflict_do_nothing()
    return session.execute(statement.returning(literal(1))).first() is not None


def upsert(
    session: Session, table: type[DeclarativeBase], keys: list[str], values: Mapping[str, Any]
) -> None:
    """Insert one row, or replace the other columns of the row with the same `keys`."""
    module = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    statement = module.insert(table.__table__).values(dict(values))
    session.execute(
        statement.on_conflict_do_update(
            index_elements=keys,
            set_={name: value for name, value in values.items() if name not in keys},
        )
    )

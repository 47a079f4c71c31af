"""Small shared pieces of statements: affected-row counts and insert-or-ignore."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, cast

from sqlalchemy import CursorResult, literal
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.sql.base import Executable

from service.store.tables import db_now


def affected(session: Session, statement: Executable) -> int:
    """Run an UPDATE or DELETE and give the number of rows it touched."""
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return cast("CursorResult[Any]", result).rowcount


def few_lengths(values: Iterable[str]) -> list[str]:
    """The values sorted, the last of them again and again up to the next power of two, for IN.

    Each length is a statement of its own, and a connection of SQLite keeps the last 128 prepared:
    of a thousand watched jobs, which become fewer one by one, these were most of what the memory of
    a server grew by (`python -m benchmarks.load --only streams`).
    """
    found = sorted(values)
    if not found:
        return found
    return found + found[-1:] * ((1 << (len(found) - 1).bit_length()) - len(found))


def insert_or_ignore(
    session: Session, table: type[DeclarativeBase], values: Mapping[str, Any]
) -> bool:
    """Insert one row unless one of its unique keys is taken; True when inserted.

    A value is a plain one, or `db_now()`.
    """
    stamped = tuple(name for name, value in values.items() if isinstance(value, db_now))
    statement = _insert_or_ignore(table, session.get_bind().dialect.name, stamped)
    plain = {name: value for name, value in values.items() if name not in stamped}
    return session.connection().execute(statement, plain).first() is not None


@cache
def _insert_or_ignore(
    table: type[DeclarativeBase], dialect: str, stamped: tuple[str, ...]
) -> Executable:
    """The statement, built once: building costs more than running."""
    module = sqlite if dialect == "sqlite" else postgresql
    statement = module.insert(table).values({name: db_now() for name in stamped})
    # RETURNING instead of a row count: PostgreSQL's driver does not count inserted rows.
    built: Executable = statement.on_conflict_do_nothing().returning(literal(1))
    return built


def insert_all_or_ignore(
    session: Session, table: type[DeclarativeBase], rows: Sequence[Mapping[str, Any]], *stamped: str
) -> None:
    """Insert rows but those of which a unique key is taken; the columns `stamped` get the time.

    Cost: one statement for all, where `insert_or_ignore` is one for each.
    """
    if rows:
        statement = _insert_or_ignore(table, session.get_bind().dialect.name, stamped)
        session.connection().execute(statement, [dict(row) for row in rows])


def upsert(
    session: Session, table: type[DeclarativeBase], keys: Sequence[str],
    rows: Sequence[Mapping[str, Any]], *stamped: str,
) -> None:  # fmt: skip
    """Insert rows, each in place of the one with the same `keys`; the columns `stamped` get the
    time.  No two of them may have the same keys.

    Cost: one statement for all.
    """
    if rows:
        dialect = session.get_bind().dialect.name
        statement = _upsert(table, dialect, tuple(keys), (*rows[0], *stamped), stamped)
        session.connection().execute(statement, [dict(row) for row in rows])


@cache
def _upsert(
    table: type[DeclarativeBase], dialect: str, keys: tuple[str, ...], names: tuple[str, ...],
    stamped: tuple[str, ...],
) -> Executable:  # fmt: skip
    module = sqlite if dialect == "sqlite" else postgresql
    statement = module.insert(table).values({name: db_now() for name in stamped})
    new = {name: statement.excluded[name] for name in names if name not in keys}
    built: Executable = statement.on_conflict_do_update(
        index_elements=list(keys), set_=new
    ).returning(literal(1))
    return built

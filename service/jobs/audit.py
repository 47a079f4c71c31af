"""Who changed what: a row of the audit log in the transaction of the change.

The API says who acts (`acting`), in a context variable, so that no function between a route and its
transaction has to hand it on.  A transaction that other threads share runs in the context of one of
them: whoever uses `write_together` asks for `current()` before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from service.errors import Malformed
from service.keys import Caller
from service.store.records import AuditFilter, AuditRecord, Outcome
from service.store.repos import audit
from service.store.session import Database

MAX_CHARS = 200
"""Of what a client may choose: longer texts are cut."""
_CURSOR = re.compile(r"[0-9]{1,18}")


@dataclass(slots=True)
class Act:
    """One request that may change something."""

    caller: Caller
    request_id: str
    route: Callable[[], str]
    """Method and path as the API's description has them; known once a route was found."""
    is_recorded: bool = field(default=False, init=False)
    """Whether a transaction has written the row.  It may still have been rolled back."""


_ACT: ContextVar[Act | None] = ContextVar("audited act", default=None)


@contextmanager
def acting(act: Act) -> Iterator[None]:
    """Let what happens inside be the doing of this request."""
    token = _ACT.set(act)
    try:
        yield
    finally:
        _ACT.reset(token)


def current() -> Act | None:
    """Whose doing this is; None: nobody's that is audited."""
    return _ACT.get()


def record(session: Session, act: Act | None, subject: str | None) -> None:
    """Write that the change of this transaction was made; `subject` is the id of what changed."""
    if act is not None:
        _add(session, act, subject, Outcome.DONE, None)
        act.is_recorded = True


def record_end(database: Database, act: Act, subject: str | None, status: int) -> None:
    """Write what became of a request that no transaction has recorded, or that did not end well.

    `status` is 0 where the connection ended without one.  A change that was stored and whose answer
    failed has two rows.
    """
    if 200 <= status < 400:
        outcome = Outcome.ANSWERED
    else:
        outcome = Outcome.REFUSED if 400 <= status < 500 else Outcome.FAILED
    database.write_together(lambda session: _add(session, act, subject, outcome, status))


def _add(
    session: Session, act: Act, subject: str | None, outcome: Outcome, status: int | None
) -> None:
    caller = act.caller
    audit.add(
        session,
        {
            "owner": caller.project, "key_id": _shown(caller.key_id), "who": _shown(caller.who),
            "route": _shown(act.route()), "subject": _shown(subject),
            "outcome": str(outcome), "status": status or None, "request_id": act.request_id,
        },
    )  # fmt: skip


def _shown(text: str | None) -> str | None:
    """What every database stores and every terminal shows: paths and branches may hold anything."""
    if text is None:
        return None
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_CHARS])


def list_audit(
    database: Database, wanted: AuditFilter, *, cursor: str | None, limit: int
) -> tuple[tuple[AuditRecord, ...], str | None]:
    """A page of rows, the youngest first, and the cursor of the next one; None at the end.

    Raises:
        Malformed: the cursor is not one of those.
    """
    if cursor is not None and _CURSOR.fullmatch(cursor) is None:
        raise Malformed(
            "the cursor is not one this service gave out", pointer="/cursor", actual=cursor[:80]
        )
    before = None if cursor is None else int(cursor)
    with database.read() as session:
        rows = audit.page(session, wanted, before, limit + 1)
    return tuple(rows[:limit]), str(rows[limit - 1].id) if len(rows) > limit else None

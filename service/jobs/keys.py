"""Create, list, revoke and recognise API keys.  Each function is one transaction.

Who may only give keys to a project (`by` without the scope `admin`) cannot pass on what it has not:
no other project, no further scope, no later end, no rate of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from sqlalchemy.orm import Session

from service.errors import Conflict, KeyNeeded, NotFound, ScopeMissing
from service.jobs import audit
from service.jobs.submit import IdempotencyKey
from service.keys import (
    LOCAL,
    OPERATOR,
    SCOPES_OF,
    Caller,
    Role,
    Scope,
    digest_of,
    is_same,
    new_key,
    prefix_of,
)
from service.store.ids import new_id
from service.store.records import KeyRecord, ProjectLimits
from service.store.repos import catalog, keys, projects
from service.store.session import Database

FIRST_ID = "key_first"
"""Id of the key that a server makes when it needs keys and has none: it is made once."""
TOUCHED_S = 60.0
"""`last_used` is exact to so many seconds: a write for every request would cost more than it."""


def create_key(
    database: Database,
    *,
    project: str,
    name: str,
    scopes: Sequence[Scope],
    lasts_s: float | None = None,
    rate: str | None = None,
    by: Caller = OPERATOR,
    idempotency: IdempotencyKey | None = None,
    before_commit: Callable[[KeyRecord, str], None] | None = None,
) -> tuple[KeyRecord, str]:
    """Make a key: (what is stored, its text).  The text is told once: nobody can ask for it later.

    Raises:
        Conflict: a request with this idempotency key has made one, whose text cannot be told again;
            or by an accident of chance the prefix is taken.  Nothing is stored.
        ScopeMissing: `by` may not make such a key.
        KeyNeeded: the key of `by` has ended.
    """
    _require(by, project, scopes)
    if rate is not None and not by.may(Scope.ADMIN):
        raise _beyond("a rate of its own", by, pointer="/rate")
    prefix, text = new_key()
    with database.write() as session:
        _require_live(session, by)
        key_id = new_id("key")
        if idempotency is not None and not catalog.remember(
            session, scope=idempotency.scope, key=idempotency.key,
            request_sha256=idempotency.request_sha256, resource_id=key_id,
        ):  # fmt: skip
            raise Conflict(
                "a request with this Idempotency-Key has made a key, and its text is told once",
                remedy="List the keys, revoke the one that got lost, and make another.",
            )
        keys.add(
            session, key_id=key_id, prefix=prefix, secret_sha256=digest_of(text), project=project,
            name=name, scopes=sorted(set(scopes)), lasts_s=lasts_s, rate=rate,
        )  # fmt: skip
        record = keys.get(session, key_id)
        if record is None:
            raise Conflict("the key's prefix is taken", remedy="Ask again.")
        _require_end(session, by, record)
        audit.record(session, audit.current(), key_id)
        if before_commit is not None:
            before_commit(record, text)
    return record, text


def first_key(database: Database, keep: Callable[[str], None]) -> bool:
    """Make a key that may do everything, where none was ever made; whether it was made.

    `keep` puts its text where somebody finds it: what that raises makes no key, since nobody could
    ask for it again.
    """
    prefix, text = new_key()
    with database.write() as session:
        if keys.listing(session):
            return False
        is_made = keys.add(
            session, key_id=FIRST_ID, prefix=prefix, secret_sha256=digest_of(text), project=LOCAL,
            name="first", scopes=sorted(Scope), lasts_s=None, rate=None,
        )  # fmt: skip
        if is_made:
            keep(text)
    return is_made


def _require(by: Caller, project: str, scopes: Iterable[Scope]) -> None:
    """Refuse who may not give or take these scopes there."""
    if by.may(Scope.ADMIN):
        return
    if project != by.project:
        raise _beyond(f"a key of project {project}", by, pointer="/project")
    more = sorted(set(scopes) - by.scopes)
    if more:
        raise _beyond(f"the scope {', '.join(more)}", by, pointer="/scopes")


def _require_live(session: Session, by: Caller) -> None:
    """A server that has just seen a key takes it for seconds more; what it made would stay."""
    maker = None if by.key_id is None else keys.get(session, by.key_id)
    if maker is not None and not maker.is_live:
        raise KeyNeeded(f"the key {maker.name!r} ({maker.id}) has ended")


def _require_end(session: Session, by: Caller, made: KeyRecord) -> None:
    maker = None if by.may(Scope.ADMIN) or by.key_id is None else keys.get(session, by.key_id)
    ends = inf if maker is None or maker.expires is None else maker.expires
    if (inf if made.expires is None else made.expires) > ends:
        raise _beyond("a key that lasts longer than this one", by, pointer="/days")


def _beyond(what: str, by: Caller, pointer: str) -> ScopeMissing:
    return ScopeMissing(
        f"{what} is not for the key {by.who!r} of project {by.project} to give or take",
        pointer=pointer, limit=str(Scope.ADMIN), actual=", ".join(sorted(by.scopes)),
    )  # fmt: skip


def _reached(session: Session, by: Caller, key_id: str) -> KeyRecord:
    """A key that `by` may change; nobody else does meanwhile.

    Raises:
        NotFound: there is none, or it is another project's.
        ScopeMissing: it may do what `by` may not.
    """
    found = keys.hold(session, key_id)
    if found is None or not (by.may(Scope.ADMIN) or found.project == by.project):
        raise NotFound("no such key", actual=key_id[:80])
    _require(by, found.project, found.scopes)
    return found


def list_keys(database: Database, by: Caller = OPERATOR) -> tuple[KeyRecord, ...]:
    """All keys that `by` may know of, dead ones too."""
    with database.read() as session:
        return tuple(keys.listing(session, None if by.may(Scope.ADMIN) else by.project))


def revoke_key(database: Database, key_id: str, by: Caller = OPERATOR) -> None:
    """End a key; twice is fine.

    Raises:
        NotFound: there is no such key, or it is another project's.
        ScopeMissing: it may do what `by` may not.
    """
    with database.write() as session:
        _reached(session, by, key_id)
        keys.revoke(session, key_id)
        audit.record(session, audit.current(), key_id)


def set_role(
    database: Database,
    key_id: str,
    role: Role,
    before_commit: Callable[[KeyRecord], None] | None = None,
    by: Caller = OPERATOR,
) -> KeyRecord:
    """Let a key do what a role says, and nothing else.

    Raises:
        NotFound: there is no such key, or it is another project's.
        Conflict: it was revoked.
        ScopeMissing: it may do, or is to do, what `by` may not.
        KeyNeeded: the key of `by` has ended.
    """
    with database.write() as session:
        _require_live(session, by)
        _require(by, _reached(session, by, key_id).project, SCOPES_OF[role])
        is_changed = keys.allow(session, key_id, sorted(SCOPES_OF[role]))
        found = keys.get(session, key_id)
        if found is None:
            raise NotFound("no such key", actual=key_id[:80])
        if not is_changed:
            raise Conflict("the key was revoked", remedy="Make another one.")
        audit.record(session, audit.current(), key_id)
        if before_commit is not None:
            before_commit(found)
    return found


def recognised(database: Database, text: str) -> tuple[KeyRecord, ProjectLimits] | None:
    """The key that a text is, dead ones too, and the limits of its project; None: it is none.

    A live one was used now.
    """
    prefix = prefix_of(text)
    found = None if prefix is None else _find(database, prefix)
    if found is None or not is_same(found[0].secret_sha256, text):
        return None
    return _used(database, found)


def by_prefix(database: Database, prefix: str) -> tuple[KeyRecord, ProjectLimits] | None:
    """The same of the key with this prefix: its holder has proven by other means to be that."""
    found = _find(database, prefix)
    return None if found is None else _used(database, found)


def _find(database: Database, prefix: str) -> tuple[KeyRecord, ProjectLimits] | None:
    with database.read() as session:
        found = keys.find(session, prefix)
        return None if found is None else (found, projects.limits(session, found.project))


def _used(
    database: Database, known: tuple[KeyRecord, ProjectLimits]
) -> tuple[KeyRecord, ProjectLimits]:
    found, limits = known
    if found.is_live:
        with database.write() as session:
            keys.touch(session, found.id, TOUCHED_S)
    return found, limits


def limits_of(database: Database, project: str) -> ProjectLimits:
    """What a project may use instead of what settings say."""
    with database.read() as session:
        return projects.limits(session, project)

"""What `doctor` finds in a store, and what `doctor --fix` does about it.

Everything that is mended here is what workers mend by themselves, or what a release does when it
starts; it is of use where none runs, or after a crash.  What could lose something is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from migrations import HEAD
from service.bootstrap import Services, open_services
from service.errors import Conflict, ServiceError
from service.jobs.reconcile import expire_leases
from service.settings import Settings
from service.store.blobs import UPLOADS, sweep_spool
from service.store.repos import items, results
from service.store.session import current_revision, is_sqlite, migrate
from worker.runner.main import DataDirectory, stale_workplaces, sweep_workplaces
from worker.sandbox.compiled_loops import ensure_compiled_loops, has_compiled_loops
from worker.sandbox.held import sweep_unheld, unheld

_DAY_S = 86_400.0
_MOST_LEASES = 1000


class Refused(Exception):
    """It was not mended: it could do harm, or did not work; the text says why and what to do."""

    level = "error"


class Without(Refused):
    """It was not mended, and all works without."""

    level = "warning"


@dataclass(frozen=True, slots=True)
class Ailment:
    """Something that is not as it should be."""

    name: str
    level: str
    """`warning` or `error`, as of a check."""
    found: str
    mend: Callable[[], str]
    """Does it and says what it did; raises Refused."""


def look(settings: Settings) -> Iterator[Ailment]:
    """Give what is found, one after the other: what is mended may bring the next to light.

    Cost: lists all content of the store.
    """
    if not has_compiled_loops():
        yield Ailment("compiled loops", "warning", "not there: first jobs take longer", _compile)
    database = Path(make_url(settings.database_url).database or "")
    if is_sqlite(settings.database_url) and not database.is_file():
        return
    try:
        yield from _of_schema(settings)
        if current_revision(settings.database_url) == HEAD:
            services = open_services(settings)
            try:
                yield from _of_store(services)
            finally:
                services.close()
    except (SQLAlchemyError, ServiceError) as error:
        yield Ailment("database", "error", f"cannot be read: {str(error)[:300]}", _hopeless)


def _of_schema(settings: Settings) -> Iterator[Ailment]:
    revision = current_revision(settings.database_url)
    if revision == HEAD:
        return
    if revision is not None and revision > HEAD:
        found = f"has schema {revision}, of a newer release; this one knows {HEAD}"
        yield Ailment("schema", "error", found, _newer)
        return
    found = f"{revision or 'none'}, this release has {HEAD}"
    yield Ailment("schema", "warning", found, lambda: _migrate(settings, revision))


def _of_store(services: Services) -> Iterator[Ailment]:
    with services.database.read() as session:
        lapsed = len(items.lapsed(session, _MOST_LEASES))
        named = results.all_digests(session)
    if lapsed:
        found = f"{lapsed} have run out and were not taken back"
        yield Ailment("leases", "warning", found, lambda: _expire(services))
    asked = services.settings.asked_dir
    if stale := len([*stale_workplaces(services), *unheld(asked)]):
        found = f"{stale} are left of attempts and questions that nobody works on"
        yield Ailment("work folders", "warning", found, lambda: _sweep(services))
    stored = set(services.blobs.list_digests())
    if orphans := sorted(stored - named):
        found = f"{len(orphans)} that no row names: of uploads under way, or of a crash"
        yield Ailment("files", "warning", found, lambda: _remove(services, orphans))
    if lost := sorted(named - stored):
        found = f"{len(lost)} are lost that rows name, as sha256:{lost[0]}"
        yield Ailment("content", "error", found, _lost)
    spool = services.blobs.spool_dir
    if parts := len([*spool.glob("*.part"), *(spool / UPLOADS).glob("*")]):
        found = f"{parts} half-written files: of uploads under way, or of a crash"
        yield Ailment("spool", "warning", found, lambda: _sweep_parts(spool, parts))


def _compile() -> str:
    ensure_compiled_loops()
    if not has_compiled_loops():
        raise Without("another process compiles them now, or they cannot be kept here")
    return "compiled"


@contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    """Hold a SQLite store's folder, so that no server works on it."""
    directory = DataDirectory(settings)
    try:
        if is_sqlite(settings.database_url):
            directory.lock()
    except Conflict as error:
        raise Refused("a server works on it: stop it, it may be of the older release") from error
    try:
        yield
    finally:
        directory.unlock()


def _migrate(settings: Settings, revision: str | None) -> str:
    with _alone(settings):
        migrate(settings.database_url)
    kept = f", the file as it was is kept as *.before-{revision}"
    is_kept = is_sqlite(settings.database_url) and revision is not None
    return f"brought to {HEAD}{kept if is_kept else ''}"


def _newer() -> str:
    raise Refused("going back would drop what the newer release stored: install that release")


def _lost() -> str:
    raise Refused("nothing can bring it back but a backup, or an upload of the same file")


def _hopeless() -> str:
    raise Refused("see to the database first")


def _expire(services: Services) -> str:
    count = 0
    while taken := expire_leases(services.database, services.settings):
        count += taken
    return f"took back {count}; their attempts count"


def _sweep(services: Services) -> str:
    gone = sweep_workplaces(services) + sweep_unheld(services.settings.asked_dir)
    return f"removed {gone}"


def _remove(services: Services, orphans: list[str]) -> str:
    gone = sum(services.blobs.delete(one, older_than_s=_DAY_S) for one in orphans)
    return f"removed {gone}; {len(orphans) - gone} are younger than a day and stay"


def _sweep_parts(spool: Path, parts: int) -> str:
    gone = sweep_spool(spool, older_than_s=_DAY_S)
    return f"removed {gone}; {parts - gone} are younger than a day and stay"

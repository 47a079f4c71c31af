"""Sweeps: models times machines as one thing.  Each function is one transaction, or says so.

A sweep keeps its items as rows of its own, and `service.jobs.feed` gives a few of them a job at a
time: an ordinary job, so that leases, the cache, cancels and repairs need not know of sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import Session

from service.errors import (
    Conflict,
    Malformed,
    NotFound,
    QuotaExceeded,
    TooLarge,
    problem,
)
from service.jobs import audit
from service.jobs.exploring import Explore, check_range, owes_winners, part_rows
from service.jobs.query import Page, checked_limit, cursor_of, place_of
from service.jobs.submit import IdempotencyKey, NewSpec, check_arrays, first_made
from service.settings import Settings
from service.states import (
    OPEN_SWEEP_STATES,
    SweepItemState,
    SweepState,
)
from service.store.ids import new_id
from service.store.records import Document, Standing, SweepItemRecord, SweepRecord
from service.store.repos import catalog, jobs, sweeps
from service.store.session import Database
from worker.compiler.errors import Detail
from worker.compiler.options import CompileOptions

_BATCH = 100
"""Jobs of one transaction that deletes."""


@dataclass(frozen=True, slots=True)
class NewPoint:
    """One machine of a sweep that was read."""

    spec: NewSpec | str | None
    """To be stored, or the id of a stored one; None: the document is no machine."""
    name: str
    values: tuple[Detail, ...] = ()
    """Of the fields that are varied."""
    on_chip_bytes: int | None = None
    error: Document | None = None
    """Why it is no machine."""


@dataclass(frozen=True, slots=True)
class NewExplore:
    """A range of machines that is estimated, and what of it is compiled."""

    base: NewSpec | str
    """To be stored, or the id of a stored one."""
    name: str
    vary: tuple[str, ...]
    machines: int
    """How many the range has."""
    costs: tuple[str, ...]
    winners: int


@dataclass(frozen=True, slots=True)
class NewSweep:
    """What a user asks for."""

    models: tuple[str, ...]
    """Ids, or digests of their bytes."""
    points: tuple[NewPoint, ...]
    fields: tuple[str, ...] = ()
    """What the points' `values` are of."""
    explore: NewExplore | None = None
    """What is estimated in place of `points`."""
    options: CompileOptions = field(default_factory=CompileOptions)
    label: str | None = None
    priority: int = 0
    owner: str = "local"
    wall_limit_s: float | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep with all of its items."""

    record: SweepRecord
    items: tuple[SweepItemRecord, ...]


@dataclass(frozen=True, slots=True)
class SweepCounts:
    """A sweep in a list."""

    record: SweepRecord
    counts: dict[SweepItemState, int]


def _nothing(sweep: Sweep) -> None:
    del sweep


def check_size(models: int, points: int, settings: Settings) -> None:
    """Refuse a sweep with too many items, before its machines are made.

    Raises:
        Malformed: it has none.
        TooLarge: it has more than `settings.max_sweep_items`.
    """
    if not models or not points:
        where = "/models" if not models else "/hardware"
        raise Malformed("a sweep needs a model and a machine", pointer=where, limit=1, actual=0)
    if (number := models * points) > settings.max_sweep_items:
        raise TooLarge(
            f"{models} models on {points} machines are {number} items;"
            f" a sweep has {settings.max_sweep_items} at most",
            limit=settings.max_sweep_items, actual=number,
            remedy="Give fewer models, machines or values, several sweeps, or raise"
            " TILEWRIGHT_MAX_SWEEP_ITEMS.",
        )  # fmt: skip


def submit_sweep(
    database: Database,
    settings: Settings,
    new: NewSweep,
    idempotency: IdempotencyKey | None = None,
    before_commit: Callable[[Sweep], None] = _nothing,
) -> tuple[Sweep, bool]:
    """Accept a sweep: once this returns, a kill -9 of anything does not lose it.

    Returns:
        The sweep, and True when it is new (False: the key was used before).

    Raises:
        NotFound: a model, a spec or arrays that it names are unknown.
        Malformed, TooLarge: it has no items, or too many.
        QuotaExceeded: the owner has too many unfinished sweeps.
        IdempotencyMismatch: the key was used with another body.
    """
    sweep_id = new_id("swp")
    with database.write() as session:
        made = first_made(session, idempotency, sweep_id)
        if made is None:
            _insert(session, sweep_id, new, settings)
            audit.record(session, audit.current(), sweep_id)
        elif sweeps.get(session, made) is None:
            raise NotFound("the sweep of this Idempotency-Key was deleted", actual=made)
        sweep = _whole(session, made or sweep_id)
        before_commit(sweep)
    return sweep, made is None


def replayed(database: Database, idempotency: IdempotencyKey) -> Sweep | None:
    """The sweep that a request with this key and body has made, or None: its machines need not be
    read again.  A key that was used with another body is `submit_sweep`'s to refuse."""
    with database.read() as session:
        known = catalog.recall(session, idempotency.scope, idempotency.key)
        if known is None or known[0] != idempotency.request_sha256:
            return None
        record = sweeps.get(session, known[1])
        return None if record is None else Sweep(record, tuple(sweeps.items(session, record.id)))


def _insert(session: Session, sweep_id: str, new: NewSweep, settings: Settings) -> None:
    models = tuple(dict.fromkeys(_model_id(session, new, at) for at in range(len(new.models))))
    check_arrays(session, new.options, new.owner)
    unfinished = sweeps.count_open(session, new.owner)
    if unfinished >= settings.max_active_sweeps:
        raise QuotaExceeded(
            f"{unfinished} sweeps are unfinished; the limit is {settings.max_active_sweeps}",
            limit=settings.max_active_sweeps, actual=unfinished, headers={"Retry-After": "60"},
            remedy="Wait for a sweep to end, or cancel one.",
        )  # fmt: skip
    base = None if new.explore is None else new.explore.base
    named = (base, *(point.spec for point in new.points))
    specs = {spec.id: spec for spec in named if isinstance(spec, NewSpec)}
    catalog.add_all_hardware(
        session, new.owner,
        [{"id": spec.id, "machine_digest": spec.machine_digest, "name": spec.name,
          "document": dict(spec.document)} for spec in specs.values()],
    )  # fmt: skip
    values = {
        "id": sweep_id, "owner": new.owner, "label": new.label, "fields": list(new.fields),
        "options": new.options.to_json(), "priority": new.priority,
        "wall_limit_s": new.wall_limit_s, "traceparent": new.traceparent,
    }  # fmt: skip
    if new.explore is not None:
        explore = _explore(session, new.explore, new.owner)
        check_range(len(models), explore.machines, explore.winners, settings)
        values["explore"] = explore.to_json()
        rows = part_rows(explore, models, new.explore.name)
    else:
        rows = _machine_rows(session, new, models, settings)
    sweeps.insert(session, values, [{"number": n, **row} for n, row in enumerate(rows)])


def _explore(session: Session, new: NewExplore, owner: str) -> Explore:
    base = new.base.id if isinstance(new.base, NewSpec) else new.base
    if not catalog.has_hardware(session, base, owner):
        raise NotFound("no such hardware spec", pointer="/base", actual=base[:80])
    return Explore(new.vary, new.costs, new.winners, base, new.machines)


def _machine_rows(
    session: Session, new: NewSweep, models: Sequence[str], settings: Settings
) -> list[dict[str, Any]]:
    """Every model on every machine, without numbers."""
    points: dict[object, dict[str, Any]] = {}
    for number, point in enumerate(new.points):
        row = _point_row(session, point, number, new.owner)
        points.setdefault(row["hardware_id"] or number, row)
    check_size(len(models), len(points), settings)
    return [{"model_id": model, **row} for row in points.values() for model in models]


def _model_id(session: Session, new: NewSweep, at: int) -> str:
    """Id of the model that is named by id, or by the digest of its bytes."""
    name = new.models[at]
    found = catalog.get_model(session, name) or catalog.find_model(session, new.owner, name)
    if found is None or found.owner != new.owner:
        raise NotFound("no such model", pointer=f"/models/{at}", actual=name[:80])
    return found.id


def _point_row(session: Session, point: NewPoint, number: int, owner: str) -> dict[str, Any]:
    spec = point.spec
    if isinstance(spec, NewSpec):
        spec = spec.id
    elif spec is not None and not catalog.has_hardware(session, spec, owner):
        raise NotFound("no such hardware spec", pointer=f"/hardware/{number}", actual=spec[:80])
    state = SweepItemState.PENDING if spec is not None else SweepItemState.REFUSED
    return {
        "hardware_id": spec, "hardware_name": point.name, "values": list(point.values),
        "on_chip_bytes": point.on_chip_bytes, "state": str(state),
        "error": None if point.error is None else dict(point.error),
    }  # fmt: skip


def _whole(session: Session, sweep_id: str) -> Sweep:
    record = sweeps.get(session, sweep_id)
    if record is None:
        raise NotFound("no such sweep", actual=sweep_id[:80])
    return Sweep(record, tuple(sweeps.items(session, sweep_id)))


def _held(session: Session, sweep_id: str, owner: str | None) -> SweepRecord:
    record = sweeps.lock(session, sweep_id)
    if record is None or (owner is not None and record.owner != owner):
        raise NotFound("no such sweep", actual=sweep_id[:80])
    return record


def get_sweep(database: Database, sweep_id: str, owner: str | None = None) -> Sweep:
    """Give one sweep with its items.

    Raises:
        NotFound: it is unknown, or another owner's.
    """
    with database.read() as session:
        sweep = _whole(session, sweep_id)
    if owner is not None and sweep.record.owner != owner:
        raise NotFound("no such sweep", actual=sweep_id[:80])
    return sweep


def find_sweep(database: Database, sweep_id: str) -> Sweep | None:
    """One sweep with its items, of whatever owner; None: there is none."""
    with database.read() as session:
        record = sweeps.get(session, sweep_id)
        return None if record is None else Sweep(record, tuple(sweeps.items(session, sweep_id)))


def job_of_item(database: Database, name: str, owner: str | None = None) -> str:
    """Id of the job of the item that `SWEEP:NUMBER` names.

    Raises:
        NotFound: it names no item, or one of another owner's or without a job.
    """
    sweep_id, _, number = name.partition(":")
    found = None
    if number.isascii() and number.isdecimal() and len(number) < len("1000000000"):
        with database.read() as session:
            found = sweeps.item_job(session, sweep_id, int(number))
    if found is None or (owner is not None and found[0] != owner):
        raise NotFound("no such item of a sweep", actual=name[:80])
    if found[1] is None:
        raise NotFound("the item of the sweep has no job (yet)", actual=name[:80])
    return found[1]


def standings(database: Database, sweep_ids: Iterable[str]) -> dict[str, Standing]:
    """Give how each sweep stands that exists; one query for all who wait."""
    with database.read() as session:
        return sweeps.standings(session, sweep_ids)


def list_sweeps(
    database: Database, *, owner: str | None = None, states: Sequence[SweepState] = (),
    label: str | None = None, cursor: str | None = None, limit: int = 50,
) -> Page[SweepCounts]:  # fmt: skip
    """List sweeps, newest first.

    Raises:
        Malformed: a bad cursor or limit.
    """
    with database.read() as session:
        rows = sweeps.page(
            session, owner=owner, states=states, label=label, before=place_of(cursor),
            limit=checked_limit(limit) + 1,
        )  # fmt: skip
        counts = sweeps.counts(session, [row.id for row in rows])
    more = cursor_of(rows[limit - 1].created, rows[limit - 1].id) if len(rows) > limit else None
    found = (SweepCounts(row, counts.get(row.id, {})) for row in rows[:limit])
    return Page(tuple(found), more)


def cancel_sweep(
    database: Database, sweep_id: str, owner: str | None = None,
    before_commit: Callable[[Sweep], None] = _nothing,
) -> Sweep:  # fmt: skip
    """Ask for a sweep's cancel: items without a job are canceled at once, those with one by
    `service.jobs.feed`, which the caller does not have to call.

    Cancelling a sweep that is canceling or canceled changes nothing and gives it back.

    Raises:
        NotFound: it is unknown, or another owner's.
        Conflict: it ended in another way first.
    """
    with database.write() as session:
        record = _held(session, sweep_id, owner)
        if record.state in (SweepState.SUCCEEDED, SweepState.FAILED):
            raise Conflict(
                f"a sweep that has {record.state} cannot be canceled", actual=str(record.state)
            )
        if sweeps.move(session, sweep_id, SweepState.CANCELING):
            error = problem("TW-SVC-007", "the sweep was canceled")
            sweeps.cancel_pending(session, record, error)
        audit.record(session, audit.current(), sweep_id)
        sweep = _whole(session, sweep_id)
        before_commit(sweep)
    return sweep


def resume_sweep(
    database: Database, sweep_id: str, owner: str | None = None,
    before_commit: Callable[[Sweep], None] = _nothing,
) -> Sweep:  # fmt: skip
    """Let an ended sweep go on with the items that have no result; what succeeded stays.

    A sweep that runs, or has succeeded, is given back as it is.

    Raises:
        NotFound: it is unknown, or another owner's.
        Conflict: its cancel is not through yet.
    """
    with database.write() as session:
        record = _held(session, sweep_id, owner)
        if record.state is SweepState.CANCELING:
            raise Conflict(
                "a sweep that is canceling cannot be resumed", actual=str(record.state),
                remedy="Resume it when it is canceled.",
            )  # fmt: skip
        is_left = record.state not in OPEN_SWEEP_STATES and (
            sweeps.renew_items(session, record) > 0 or owes_winners(session, record)
        )
        if is_left:
            sweeps.move(session, sweep_id, SweepState.RUNNING)
        audit.record(session, audit.current(), sweep_id)
        sweep = _whole(session, sweep_id)
        before_commit(sweep)
    return sweep


def delete_sweep(database: Database, sweep_id: str, owner: str | None = None) -> None:
    """Delete a sweep that has ended, with its jobs, in transactions of a hundred jobs.

    Raises:
        NotFound: it is unknown.
        Conflict: it has not ended: cancel it first.
    """
    while True:
        with database.write() as session:
            record = _held(session, sweep_id, owner)
            if record.state in OPEN_SWEEP_STATES:
                raise Conflict(
                    f"a sweep that is {record.state} cannot be deleted", actual=str(record.state),
                    remedy="Cancel the sweep and delete it when it is canceled.",
                )  # fmt: skip
            if remove_some(session, sweep_id):
                audit.record(session, audit.current(), sweep_id)
                return


def remove_some(session: Session, sweep_id: str) -> bool:
    """Delete some jobs of an ended sweep, or, when none is left, the sweep: then True."""
    found = sweeps.jobs_of(session, sweep_id, _BATCH)
    for job_id in found:
        jobs.remove(session, job_id)
    if len(found) < _BATCH:
        sweeps.remove(session, sweep_id)
        return True
    return False

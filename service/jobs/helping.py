"""An idle worker fills the cache of a job that another one runs (decision 0098).

Nothing is handed over and no state of a job hangs on it: whoever helps asks the cache for the units
that the job comes to last, and the job finds them there.  What helps may be killed at any time.
"""

from __future__ import annotations

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.errors import LeaseLost
from service.jobs.claim import Claim
from service.store.repos import catalog, helps, items, jobs
from service.store.repos.helps import Scheduling
from service.store.session import Database
from service.store.strategy_sets import is_served, offered

_MOST = 64
"""Jobs that are looked at: of more than that, workers are busy."""


def needing(database: Database, worker_id: str, slots: int) -> tuple[Scheduling, ...]:
    """Attempts that this worker could help; none while it has work, or work waits for it."""
    offer = offered()
    with database.read() as session:
        if not _is_idle(session, worker_id, slots, offer):
            return ()
        found = helps.scheduling(session, _MOST)
        return tuple(each for each in found if is_served(each.strategies, offer))


def begin(database: Database, worker_id: str, found: Scheduling) -> Claim | None:
    """What it takes to run the same job again; None: it is helped, over, or keeps no cache."""
    try:
        with database.write() as session:
            job = jobs.get(session, found.job_id)
            if job is None or job.options.get("no_cache"):
                return None
            model = catalog.get_model(session, job.model_id)
            hardware = catalog.get_hardware(session, job.hardware_id)
            if model is None or hardware is None:
                return None
            if not helps.begin(session, worker_id, job.id):
                return None
            # This locks the job's row: what ends it comes before or after, so that nothing is told
            # of a job behind its end.
            jobs.add_event(session, job.id, "help", {"worker": worker_id})
            if not helps.is_scheduling(session, found.item_id, found.fence):
                raise LeaseLost(found.item_id, found.fence)
            return Claim(found.item_id, worker_id, found.fence, 0, 0, job, model, hardware)
    except (IntegrityError, LeaseLost):  # another worker was faster, or it went on meanwhile
        return None


def is_needed(database: Database, held: Claim, slots: int) -> bool:
    """Whether the attempt that is helped still looks for kernels, and nothing else waits here."""
    with database.read() as session:
        return _is_idle(session, held.owner, slots, offered()) and helps.is_scheduling(
            session, held.item_id, held.fence
        )


def end(database: Database, worker_id: str) -> None:
    """Say that this worker helps nobody."""
    with database.write() as session:
        helps.end(session, worker_id)


def _is_idle(session: Session, worker_id: str, slots: int, offer: str) -> bool:
    if len(items.leased_by(session, worker_id)) >= slots:
        return False
    return not any(is_served(want, offer) for want in items.wants_of_ready(session))

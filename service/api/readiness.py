"""What `/readyz` asks: database, blob store, workers, the age of the queue."""

from __future__ import annotations

from pydantic import JsonValue
from sqlalchemy.exc import SQLAlchemyError

from service.api.deps import ApiState
from service.errors import ServiceError, Unavailable
from service.jobs import query
from worker.compiler.errors import Finding

STALLED_S = 300.0
"""Ready work this old, while workers claim to be alive, means that nobody hears the doorbell."""
_NO_BLOB = "0" * 64


def check_readiness(state: ApiState) -> dict[str, JsonValue]:
    """Give the facts behind a positive answer.

    Raises:
        Unavailable: with one finding per failed check.
    """
    checks: dict[str, JsonValue] = {"embedded": state.settings.embedded}
    failed: list[Finding] = []
    try:
        stats = query.queue_stats(state.database)
        sandboxes = sorted({w.sandbox_tier for w in query.list_workers(state.database)})
    except (SQLAlchemyError, OSError) as error:
        failed.append(Finding("TW-SVC-005", f"database: {type(error).__name__}", "/database"))
    else:
        checks["database"] = "ok"
        checks["workers_alive"] = stats.workers_alive
        checks["oldest_ready_s"] = round(stats.oldest_ready_s, 1)
        checks["sandbox"] = list[JsonValue](sandboxes)
        if stats.workers_alive == 0:
            failed.append(Finding("TW-SVC-005", "no worker is alive", "/workers_alive", None, 1, 0))
        elif stats.oldest_ready_s > STALLED_S:
            failed.append(
                Finding(
                    "TW-SVC-005",
                    "work is ready but no worker takes it",
                    "/oldest_ready_s",
                    None,
                    STALLED_S,
                    round(stats.oldest_ready_s, 1),
                )
            )
    try:
        state.blobs.head(_NO_BLOB)
        checks["blobs"] = "ok"
    except (ServiceError, OSError) as error:
        failed.append(Finding("TW-SVC-005", f"blob store: {type(error).__name__}", "/blobs"))
    if failed:
        raise Unavailable(
            "not ready: " + "; ".join(f.message for f in failed), findings=tuple(failed)
        )
    return checks

"""Write a running job's progress to the database, as its child reports it.

What comes soon after something else is written with what comes after it: a short job passes all its
stages and files in a second, and a transaction of each would weigh more than its submit and its end
(decision 0072).  Whoever watches sees it a quarter of a second later at most.

Progress is best effort: a database that is away loses updates, never the job.  Losing the lease is
different: it stops the job.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from service.jobs.claim import Artifact, Claim, Progress, Stage, Units, record
from service.log import get_logger
from service.store.blobs import BlobStore, put_stream
from service.store.records import BlobRef
from service.store.session import Database
from service.tracing import AttemptSpans
from worker.sandbox.payload import open_left

PERIOD_S = 0.25
"""Between two transactions: those who watch ask about as often (`service.api.watch`)."""
_MEDIA_TYPES = {
    ".json": "application/json",
    ".html": "text/html; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".gz": "application/gzip",
    ".zip": "application/zip",
    ".twb": "application/zip",
    ".svg": "image/svg+xml",
}


def media_type(file_name: str) -> str:
    """Give the media type by the file's ending."""
    return _MEDIA_TYPES.get(Path(file_name).suffix, "application/octet-stream")


class ProgressRecorder:
    """Records stages, unit counts and artifacts of one claimed job."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        held: Claim,
        out_dir: Path,
        *,
        max_artifact_bytes: int,
        spans: AttemptSpans,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._held = held
        self._out_dir = out_dir
        self._max_artifact_bytes = max_artifact_bytes
        self._spans = spans
        self._stored: dict[str, tuple[tuple[int, int], BlobRef]] = {}
        self._pending: list[tuple[Progress, float]] = []
        """What is not written yet, and when it came."""
        self._written = float("-inf")
        self.last_stage = held.job.stage

    def stage(self, name: str, state: str) -> None:
        """Record that a stage started or finished."""
        self.last_stage = name
        self._spans.stage(name, state)
        self._add(Stage(name, state))

    def units(self, solved: int, cached: int, total: int) -> None:
        """Record unit counts; of several between two transactions the last."""
        self._spans.units(solved, cached, total)
        if self._pending and isinstance(self._pending[-1][0], Units):
            self._pending.pop()
        self._add(Units(solved, cached, total))

    def artifact(self, name: str, file_name: str) -> None:
        """Store a finished artifact, so that it outlives a failure of a later stage."""
        self._add(Artifact(name, file_name, self.store(file_name)))

    def _add(self, progress: Progress) -> None:
        self._pending.append((progress, time.monotonic()))
        if self.due_s() == 0.0:
            self.flush()

    def due_s(self) -> float | None:
        """Seconds until what was held back is to be written; None where nothing is."""
        if not self._pending:
            return None
        return max(0.0, self._written + PERIOD_S - time.monotonic())

    def flush(self) -> None:
        """Write what was held back.

        Raises:
            LeaseLost: the item is somebody else's now.
        """
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        self._written = now = time.monotonic()
        try:
            record(self._database, self._held, [(found, now - at) for found, at in pending])
        except DBAPIError as error:
            get_logger().warning("progress lost", error=str(error.orig))

    def store(self, file_name: str) -> BlobRef:
        """Copy an output file into the blob store (once, while it does not change).

        Raises:
            ProtocolError: the name leaves the output folder, or is not a regular file: the child
                wrote it and may be hostile.
            TooLarge: it is over the artifact limit.
        """
        with open_left(self._out_dir, file_name) as file:
            status = os.fstat(file.fileno())
            version = (status.st_size, status.st_mtime_ns)
            known = self._stored.get(file_name)
            if known is not None and known[0] == version:
                return known[1]
            ref = put_stream(self._blobs, file, self._max_artifact_bytes, media_type(file_name))
        self._stored[file_name] = (version, ref)
        return ref

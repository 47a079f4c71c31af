"""Write a running job's progress to the database, as its child reports it.

Progress is best effort: a database that is away loses updates, never the job.  Losing the lease is
different: it stops the job.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from service.jobs import claim as protocol
from service.jobs.claim import Claim
from service.log import get_logger
from service.store.blobs import BlobStore, put_stream
from service.store.records import BlobRef
from service.store.session import Database
from service.tracing import AttemptSpans
from worker.sandbox.payload import open_left

_UNITS_PERIOD_S = 0.25
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
        self._last_units = float("-inf")
        self._pending_units: tuple[int, int, int] | None = None
        self.last_stage = held.job.stage

    def stage(self, name: str, state: str) -> None:
        """Record that a stage started or finished."""
        self.flush()
        self.last_stage = name
        self._spans.stage(name, state)
        try:
            protocol.record_stage(self._database, self._held, name, state)
        except DBAPIError as error:
            get_logger().warning("progress lost", error=str(error.orig))

    def units(self, solved: int, cached: int, total: int) -> None:
        """Record unit counts, at most four times a second; the last counts always arrive."""
        self._pending_units = (solved, cached, total)
        self._spans.units(solved, cached, total)
        if time.monotonic() - self._last_units >= _UNITS_PERIOD_S:
            self.flush()

    def flush(self) -> None:
        """Write unit counts that were held back."""
        if self._pending_units is None:
            return
        pending, self._pending_units = self._pending_units, None
        self._last_units = time.monotonic()
        try:
            protocol.record_units(self._database, self._held, *pending)
        except DBAPIError as error:
            get_logger().warning("progress lost", error=str(error.orig))

    def artifact(self, name: str, file_name: str) -> None:
        """Store a finished artifact, so that it outlives a failure of a later stage."""
        ref = self.store(file_name)
        try:
            protocol.record_artifact(self._database, self._held, name, file_name, ref)
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

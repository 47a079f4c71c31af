"""`explain layer` over HTTP: the payload reads the job's bundle in a process of its own.

The same answer as the command line's.  It follows from the bundle alone, so it is remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any

from service.api.preflight_slots import PreflightSlots
from service.errors import ServiceError, Unavailable
from service.settings import Settings
from service.store.blobs import BlobStore, copy_to
from service.store.records import ArtifactRecord
from worker.sandbox.asking import Died, Refused, ask
from worker.sandbox.held import own_folder
from worker.sandbox.payload import Workplace
from worker.sandbox.sandbox import End

LIMIT_S = 120
NICE = 10
"""Explanations give way to jobs."""
REMEMBERED = 256


class ExplanationRefused(ServiceError):
    """The payload's own refusal, as it came."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(str(document.get("detail", "refused")), code=str(document["code"]))
        self.document = document

    def to_problem(self) -> dict[str, Any]:
        return self.document


class Explanations:
    """Asks payloads, at most as many at a time as there are slots, and keeps what they said."""

    def __init__(self, settings: Settings, blobs: BlobStore, slots: PreflightSlots) -> None:
        self._settings = settings
        self._blobs = blobs
        self._slots = slots
        self._known: OrderedDict[tuple[str, int, bool], dict[str, Any]] = OrderedDict()
        self._lock = Lock()

    def of(self, bundle: ArtifactRecord, index: int, *, asks: bool) -> dict[str, Any]:
        """What the kernel `index` does; `asks`: and what twice of each resource would bring.

        Raises:
            ExplanationRefused: the bundle is damaged, or the layer is no kernel.
            Unavailable: too many are asked at once, the payload died or ran too long.
        """
        key = (bundle.sha256, index, asks)
        with self._lock:
            known = self._known.get(key)
        if known is not None:
            return known
        found = self._ask(bundle, index, asks)
        with self._lock:
            self._known[key] = found
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return found

    def _ask(self, bundle: ArtifactRecord, index: int, asks: bool) -> dict[str, Any]:
        settings = self._settings
        with (
            self._slots.taken(),
            own_folder(settings.asked_dir, "explain") as folder,
        ):
            place = Workplace(folder)
            place.create()
            path = place.given / "job.twb"
            copy_to(self._blobs, bundle.sha256, path)
            try:
                return ask(
                    "worker.children.explain_child",
                    {"source": str(path), "index": index, "asks": asks},
                    place,
                    limits=settings.payload_limits(LIMIT_S, bundle.size_bytes),
                    choice=settings.isolation,
                    search_path=settings.child_path,
                    hidden=settings.data_dir,
                    nice=NICE,
                )
            except Refused as refusal:
                raise ExplanationRefused(refusal.problem) from refusal
            except Died as death:
                if death.report.end is End.WALL:
                    message = f"explaining took longer than {LIMIT_S} s"
                    raise Unavailable(message, limit=LIMIT_S) from death
                raise Unavailable(f"the process that explains died: {death}") from death

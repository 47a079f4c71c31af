"""`explain layer` over HTTP: the payload reads the job's bundle in a process of its own.

The same answer as the command line's.  It follows from the bundle alone, so it is remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any

from service.api.payloads import StoredFile, ask_about
from service.api.preflight_slots import PreflightSlots
from service.settings import Settings
from service.store.blobs import BlobStore
from service.store.records import ArtifactRecord

REMEMBERED = 256


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

        Raises: as `ask_about`; PayloadRefused where the bundle is damaged, or the layer no kernel.
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
        return ask_about(
            StoredFile(bundle.sha256, bundle.size_bytes, "job.twb"),
            "worker.children.explain_child",
            {"index": index, "asks": asks},
            "explaining",
            path_field="source",
            settings=self._settings,
            blobs=self._blobs,
            slots=self._slots,
        )

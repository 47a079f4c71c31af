"""Compiles of the gate in this process, remembered whole.

A pair whose model, spec, options and toolchain are those of an earlier gate is not compiled again:
its documents lie in the data directory's cache (kind `run`), as results of sub-graphs do.
"""

from __future__ import annotations

import json
import threading
import zlib
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from types import TracebackType
from typing import Any, Self

from service.client.uploads import file_sha256
from service.gate.runs import Documents, Outcome, documents_in, refusal
from service.orders.beside import external_files
from service.orders.order import Order
from service.settings import Settings
from worker.compiler.cache import Cache, CacheKey, CacheKind, NullCache
from worker.compiler.errors import CompilerError
from worker.job.request import NoProgress
from worker.report.sections import REPORT_VERSION

DOCUMENTS = "1"
"""Raise it when documents of the same report version say more than before."""


@dataclass(frozen=True, slots=True)
class Known:
    """Documents of earlier compiles."""

    cache: Cache

    def get(self, key: CacheKey) -> Documents | None:
        """None: there are none, or they cannot be read any more."""
        packed = self.cache.get(key)
        try:
            return None if packed is None else json.loads(zlib.decompress(packed))
        except (zlib.error, ValueError):
            return None

    def put(self, key: CacheKey, documents: Documents) -> None:
        """Keep documents."""
        text = json.dumps(documents, separators=(",", ":"), sort_keys=True)
        self.cache.put(key, zlib.compress(text.encode(), 6))


def run_key(order: Order) -> CacheKey:
    """Everything that decides the documents of an order.

    Raises:
        SpecError: the spec inherits from nothing that there is.
    """
    from worker.compiler.machine import canonical_document, preset_document
    from worker.compiler.options import CompileOptions
    from worker.job.toolchain import toolchain

    given = order.hardware
    document = preset_document(given["preset"]) if set(given) == {"preset"} else given
    beside = [order.model.parent / name for name in external_files(order.model)]
    models = [file_sha256(path) for path in (order.model, *beside) if path.is_file()]
    options = CompileOptions.from_json(order.options)
    return CacheKey(
        CacheKind.RUN,
        (
            ("documents", DOCUMENTS),
            ("report", str(REPORT_VERSION)),
            ("model", " ".join(models)),
            ("name", order.model.stem),
            ("hardware", _digest(canonical_document(document))),
            ("options", json.dumps(order.options, sort_keys=True)),
            ("toolchain", json.dumps(toolchain(options), sort_keys=True)),
        ),
    )


class Stopped(Exception):
    """Nobody waits for this compile any more."""


class Until(NoProgress):
    """Ends a compile, at the next that is heard of it, once nobody waits for it."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def stage(self, name: str, state: str) -> None:
        """
        Raises:
            Stopped.
        """
        if self._stop.is_set():
            raise Stopped

    def units(self, solved: int, cached: int, total: int) -> None:
        """
        Raises:
            Stopped.
        """
        self.stage("", "")


class Here:
    """Compiles in the sandbox of this machine, for several threads."""

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        """`stop`: set, it ends what is being compiled."""
        from service.store.open_blobs import open_blob_store
        from service.store.session import Database, migrate

        self._settings = settings
        self._stop = stop
        self._making_loops = threading.Lock()
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        migrate(settings.database_url)
        self._database = Database(settings.database_url)
        self._blobs = open_blob_store(settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._database.close()

    def outcome(self, order: Order) -> Outcome:
        """Look the order up, or compile it.

        Raises:
            CompilerError: the machine is at fault, not what was ordered.
            Stopped: it was told to.
        """
        from worker.runner.store_cache import StoreCache

        if order.options["no_cache"]:
            return self._outcome(order, Known(NullCache()))
        store = StoreCache(
            self._database, self._blobs, job_id=None,
            inline_bytes=self._settings.cache_inline_bytes,
        )  # fmt: skip
        with closing(store):
            return self._outcome(order, Known(store))

    def _outcome(self, order: Order, known: Known) -> Outcome:
        from service.orders.here import compile_here
        from worker.sandbox.compiled_loops import ensure_compiled_loops

        try:
            key = run_key(order)
        except CompilerError as error:
            return Outcome(problem=error.to_problem())
        found = known.get(key)
        if found is not None:
            return Outcome(documents=found)
        with self._making_loops:  # a second compile waits for them, else it would make its own
            ensure_compiled_loops()
        job = compile_here(order, self._settings, Until(self._stop))
        if job["state"] != "succeeded":
            return refusal(job["error"])
        documents = documents_in(job["files"])
        known.put(key, documents)
        return Outcome(documents=documents)


def _digest(document: Any) -> str:
    return sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

"""Compiling in this process on a data directory: the same stages, cache and JSON, no server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service.cli.compiling import Order
from service.cli.connection import load_settings, quiet_logs
from service.cli.failures import problem_of
from service.cli.progress import ProgressView


class LocalProgress(ProgressView):
    """A progress view that also remembers what a job document would show."""

    def __init__(self, title: str, *, quiet: bool) -> None:
        super().__init__(title, quiet=quiet)
        self.last_stage: str | None = None
        self.counts = (0, 0, 0)
        self.files: dict[str, str] = {}

    def stage(self, name: str, state: str) -> None:
        """Remember the stage."""
        self.last_stage = name
        super().stage(name, state)

    def units(self, solved: int, cached: int, total: int) -> None:
        """Remember the counts."""
        self.counts = (solved, cached, total)
        super().units(solved, cached, total)

    def artifact(self, name: str, file_name: str) -> None:
        """Remember the file."""
        self.files[name] = file_name


def compile_here(order: Order, data_dir: Path | None, *, quiet: bool) -> dict[str, Any]:
    """Run the job in this process and give a document shaped like the API's job.

    The cache is the data directory's database, so that local and served jobs share it.
    """
    from service.store.blobs import open_blob_store
    from service.store.session import Database, migrate
    from worker.compiler.cache import Cache, NullCache
    from worker.compiler.errors import CompilerError
    from worker.compiler.options import CompileOptions
    from worker.job import run_job
    from worker.request import JobRequest
    from worker.store_cache import StoreCache

    quiet_logs()
    settings = load_settings(data_dir)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    migrate(settings.database_url)
    database = Database(settings.database_url)
    options = CompileOptions.from_json(order.options)
    stored = StoreCache(
        database,
        open_blob_store(settings),
        job_id=None,
        inline_bytes=settings.cache_inline_bytes,
    )
    cache: Cache = NullCache() if options.no_cache else stored
    order.output.mkdir(parents=True, exist_ok=True)
    request = JobRequest(
        model_path=order.model,
        model_name=order.model.stem,
        hardware=order.hardware,
        options=options,
        build_dir=settings.build_dir,
        calibration_path=order.calibration,
    )
    state, error, summary, bundle = "succeeded", None, None, None
    with LocalProgress(order.model.name, quiet=quiet) as view:
        try:
            outcome = run_job(request, order.output, cache, view)
        except CompilerError as failure:
            state, error = "failed", problem_of(failure)
        else:
            view.files.update(dict(outcome.artifacts))
            summary, bundle = dict(outcome.summary), outcome.bundle_digest
        finally:
            stored.flush_hits()
            database.close()
    solved, cached, total = view.counts
    return {
        "id": None,
        "state": state,
        "stage": view.last_stage,
        "progress": {"units_total": total, "units_solved": solved, "units_cached": cached},
        "options": order.options,
        "error": error,
        "summary": summary,
        "bundle_sha256": bundle,
        "output_dir": str(order.output),
        "files": {name: str(order.output / file) for name, file in sorted(view.files.items())},
    }

"""Compiling on a data directory without a server: the same sandbox, limits, cache and JSON."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from service.orders.beside import with_external_data
from service.orders.order import Order

if TYPE_CHECKING:
    from service.settings import Settings
    from worker.job.request import ProgressSink
    from worker.runner.conversation import Conversation
    from worker.runner.store_cache import StoreCache
    from worker.sandbox.payload import Workplace
    from worker.sandbox.sandbox import Report, Sandbox


class _Keeper:
    """Takes over the files, remembers what a job document would show, and passes progress on."""

    def __init__(self, sink: ProgressSink, made: Path, output: Path) -> None:
        self._sink = sink
        self._made = made
        self._output = output
        self.last_stage: str | None = None
        self.counts = (0, 0, 0)
        self.files: dict[str, str] = {}

    def stage(self, name: str, state: str) -> None:
        self.last_stage = name
        self._sink.stage(name, state)

    def units(self, solved: int, cached: int, total: int) -> None:
        self.counts = (solved, cached, total)
        self._sink.units(solved, cached, total)

    def artifact(self, name: str, file_name: str) -> None:
        """Copy the file to the user's folder, once, so that it outlives a later failure.

        Raises:
            ProtocolError: the payload named a file that is not its own.
        """
        from worker.sandbox.payload import open_left

        if name in self.files:
            return
        with open_left(self._made, file_name) as source:
            target = self._output / file_name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(source, file)
        self.files[name] = file_name
        self._sink.artifact(name, file_name)


def compile_here(order: Order, settings: Settings, sink: ProgressSink) -> dict[str, Any]:
    """Run the job in the sandbox that jobs have and give a document shaped like the API's job.

    The cache is the data directory's database, so that local and served jobs share it.  Limits of
    time, memory and files are the settings'.  A refusal is the document's `error`.
    """
    from service.store.open_blobs import open_blob_store
    from service.store.session import Database, migrate
    from worker.compiler.errors import CompilerError
    from worker.runner.store_cache import StoreCache
    from worker.sandbox.compiled_loops import ensure_compiled_loops
    from worker.sandbox.payload import Workplace

    parent = _parent(settings)
    migrate(settings.database_url)
    database = Database(settings.database_url)
    stored = StoreCache(
        database,
        open_blob_store(settings),
        job_id=None,
        inline_bytes=settings.cache_inline_bytes,
    )
    order.output.mkdir(parents=True, exist_ok=True)
    error, summary, bundle = None, None, None
    with TemporaryDirectory(dir=parent) as folder:
        place = Workplace(Path(folder) / "job")
        ensure_compiled_loops()
        place.create()
        kept = _Keeper(sink, place.out, order.output)
        try:
            with with_external_data(order.model) as path:
                said, report = _run(order, path, settings, place, kept, stored)
            error = _problem(said, report, settings, order, kept.last_stage)
            if error is None and said.done is not None:
                summary, bundle = said.done.head["summary"], said.done.text("bundle_digest")
        except CompilerError as failure:
            error = failure.to_problem()
        finally:
            stored.close()
            database.close()
    solved, cached, total = kept.counts
    return {
        "id": None,
        "state": "succeeded" if error is None else "failed",
        "stage": kept.last_stage,
        "progress": {"units_total": total, "units_solved": solved, "units_cached": cached},
        "options": order.options,
        "error": error,
        "summary": summary,
        "bundle_sha256": bundle,
        "output_dir": str(order.output),
        "files": {name: str(order.output / file) for name, file in sorted(kept.files.items())},
    }


def _parent(settings: Settings) -> Path:
    """Folder of the folders of local compiles, rid of what killed ones left.

    It is not the workers': they remove what has no lease.  No compile lasts longer than its limit.
    """
    parent = settings.data_dir / "local"
    parent.mkdir(parents=True, exist_ok=True)
    for path in parent.iterdir():
        with suppress(FileNotFoundError):  # it ended by itself
            if time.time() - path.stat().st_mtime > 2 * settings.wall_limit_s:
                shutil.rmtree(path, ignore_errors=True)
    return parent


def _run(
    order: Order, model: Path, settings: Settings, place: Workplace, kept: _Keeper,
    cache: StoreCache,
) -> tuple[Conversation, Report]:  # fmt: skip
    """Start the payload and serve it until it ends; interrupting kills it."""
    from worker.job.request import request_document
    from worker.runner.conversation import Conversation, answer, artifact_names
    from worker.sandbox import wire
    from worker.sandbox.stage_clock import StageClock

    document = request_document(
        model.absolute(), order.model.stem, order.hardware, order.options,
        order.calibration.absolute() if order.calibration else None, place.build, place.out,
        order.inputs.absolute() if order.inputs else None, order.watch,
        link=order.link.absolute() if order.link else None,
    )  # fmt: skip
    (place.given / "request.json").write_text(json.dumps(document), encoding="utf-8")
    with _sandbox(order, model, settings, place) as sandbox:
        clock = StageClock(settings.stage_limits_s, sandbox.kill)
        said = Conversation(cache_bytes_left=settings.cache_intake_bytes, clock=clock)
        sandbox.start()
        try:
            with clock:
                while (frame := wire.receive(sandbox.channel)) is not None:
                    answer(frame, sandbox, kept, cache, said)
            for name, file in artifact_names(said.done) if said.done is not None else ():
                kept.artifact(name, file)
        except wire.ProtocolError as broken:
            said.violation = str(broken)
            sandbox.kill()
        except ConnectionError:
            sandbox.kill()  # it died while an answer was on its way: the report says of what
        return said, sandbox.report()


def _sandbox(order: Order, model: Path, settings: Settings, place: Workplace) -> Sandbox:
    from worker.sandbox.isolation import isolation
    from worker.sandbox.payload import payload_argv, payload_env
    from worker.sandbox.sandbox import Sandbox

    files = (model, order.calibration, order.inputs, order.link)
    given = [path.absolute() for path in files if path is not None]
    python = settings.child_python_path
    return Sandbox(
        payload_argv(
            "worker.children.sandbox_child", str(place.given / "request.json"), "{channel}",
            "--runner", settings.runner, "--strategy-limit-s", str(settings.strategy_limit_s),
        ),
        env=payload_env(
            place, settings.child_path, threads=settings.child_threads, python_path=python
        ),
        cwd=place.temp,
        log_path=place.log,
        limits=settings.payload_limits(settings.wall_limit_s, model.stat().st_size),
        view=place.view(settings.child_path, settings.data_dir, (*given, *map(Path, python))),
        isolation=isolation(settings.isolation),
    )  # fmt: skip


def _problem(
    said: Conversation, report: Report, settings: Settings, order: Order, stage: str | None
) -> dict[str, Any] | None:
    """Why the job did not succeed; None when it did."""
    from worker.compiler.errors import CompilerError
    from worker.runner.verdict import over_limit
    from worker.sandbox.sandbox import End

    if said.problem is not None:
        return said.problem
    limits = settings.payload_limits(settings.wall_limit_s, order.model.stat().st_size)
    over = over_limit(said, report, limits, stage)
    if over is not None:
        return over
    if said.violation or said.done is None or report.end is not End.EXITED or report.code != 0:
        why = said.violation or report.sentence()
        if order.link is not None and stage == "verify" and report.signal is not None:
            ran = f"kernels that call {order.link.name} were verified: {why}"
            return CompilerError("TW-LINK-005", ran, pointer="/options/link").to_problem()
        return CompilerError("TW-INT-001", f"the compile ended early: {why}").to_problem()
    return None

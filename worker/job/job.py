"""One compile job from files to files: what the sandboxed child and `--local` both run.

`run_job` chains the pure libraries (compiler, simulator, verification) and writes artifacts into
`out_dir`.  It knows no database, queue or HTTP.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from worker.compiler.assembly.packing import bundle_contents, regions_of
from worker.compiler.cache import Cache, NullCache
from worker.compiler.collector import rare_collections
from worker.compiler.errors import Detail
from worker.compiler.frontend.declared import completed
from worker.compiler.frontend.limits import Limits
from worker.compiler.judge.compiled import Compile, CompiledModel
from worker.compiler.options import RESULT_OPTIONS, VerifyMode
from worker.compiler.oracles import asked
from worker.compiler.package.bundle import write_bundle
from worker.compiler.package.kernel_library import TOOL, KernelLibrary
from worker.compiler.stages import run_stages
from worker.job.hardware import require_plugins, resolve_machine
from worker.job.images import Written, written
from worker.job.linking import linked_library, require_linked, told, tool_of
from worker.job.ports import open_ports, scoring_samples
from worker.job.request import JobOutcome, JobRequest, ProgressSink
from worker.job.simulation import Simulated, refuse_violations, simulate_model
from worker.job.stages import AFTER, STAGES
from worker.job.toolchain import toolchain
from worker.job.unlocking import unlock_rows
from worker.report.document import NOT_ASKED, Verification, report_document
from worker.report.graph import graph_document
from worker.report.layers import layers_csv
from worker.report.nulls import null_reasons
from worker.report.page import report_page
from worker.report.run import run_document
from worker.simulator.trace import trace_json

_SCHEDULE = "schedule.json"
_TRACE = "trace.json.gz"


class _TimedProgress:
    """Passes progress on and keeps wall seconds per stage (never part of a digest)."""

    def __init__(self, sink: ProgressSink) -> None:
        self._sink = sink
        self._started: dict[str, float] = {}
        self._seconds: dict[str, float] = {}

    def stage(self, name: str, state: str) -> None:
        now = time.perf_counter()
        if state == "started":
            self._started[name] = now
        else:
            self._seconds[name] = now - self._started.pop(name, now)
        self._sink.stage(name, state)

    def units(self, solved: int, cached: int, total: int) -> None:
        self._sink.units(solved, cached, total)

    def so_far(self) -> dict[str, float]:
        """Seconds of every stage that was started."""
        now = time.perf_counter()
        found = {**self._seconds, **{name: now - at for name, at in self._started.items()}}
        return {name: round(spent, 6) for name, spent in found.items()}


@dataclass(slots=True)
class _Writer:
    """Writes artifacts whole (temporary name, then rename) and announces them."""

    out_dir: Path
    progress: ProgressSink
    written: list[tuple[str, str]]

    def save(self, name: str, file_name: str, data: bytes) -> None:
        target = self.out_dir / file_name
        temporary = target.with_name(target.name + ".part")
        temporary.write_bytes(data)
        temporary.replace(target)
        self.announce(name, file_name)

    def announce(self, name: str, file_name: str) -> None:
        self.written.append((name, file_name))
        self.progress.artifact(name, file_name)

    def show(self, stage: str, text: str) -> None:
        """Keep what `--print-after` asked for."""
        self.save(f"{AFTER}{stage}", f"after-{stage}.txt", text.encode())


@dataclass(frozen=True, slots=True)
class Job(Compile):
    """What every stage of one job may ask for."""

    request: JobRequest
    cache: Cache
    writer: _Writer
    timed: _TimedProgress
    link: KernelLibrary | None = None
    """What kernels are linked with; None: nothing."""

    @property
    def bundle_name(self) -> str:
        """Of the bundle's file."""
        return f"{safe_stem(self.name)}.twb"


@dataclass(frozen=True, slots=True)
class Packaged:
    """The bundle that was written."""

    path: Path
    digest: str
    images: Written
    """What serializers made of its regions."""
    tools: Mapping[str, Detail]
    """What its results depend on."""
    warnings: tuple[tuple[str, str], ...] = ()
    """About its kernel library."""


def canonical_json(value: Any) -> bytes:
    """Indented JSON with sorted keys: the same value always gives the same bytes."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)


@rare_collections()
def run_job(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """Compile, simulate, package, verify and report one model, stage by stage (`STAGES`).

    Artifacts appear as their stages finish.  A cold and a warm compile give the same bytes but for
    run.json: cache outcomes and times.  A job that is stopped early has the artifacts so far, and
    no summary but where it stopped.

    Raises:
        CompilerError: any of its subclasses; `to_problem()` is what the user sees.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    timed = _TimedProgress(progress)
    writer = _Writer(out_dir, progress, [])
    options = request.options
    used_cache: Cache = NullCache() if options.no_cache else cache
    machine = resolve_machine(request.hardware)
    require_plugins(machine, request.hardware)
    link = linked_library(request, machine)
    machine = asked(machine, used_cache, is_known=options.require_cache)
    size = request.model_path.stat().st_size
    ports = open_ports(
        machine, options, used_cache, timed, request.calibration_path, size,
        is_helping=request.is_helping,
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        path = completed(request.model_path, machine.operators, Path(folder), Limits())
        job = Job(
            path, request.model_name, machine, options, ports, Limits(), request.model_path,
            request, used_cache, writer, timed, link,
        )  # fmt: skip
        outcome = run_stages(STAGES, job, timed, request.watch, writer.show).get("report")
    if isinstance(outcome, JobOutcome):
        return replace(outcome, artifacts=tuple(writer.written))
    return JobOutcome(tuple(writer.written), "", {"stopped_after": request.watch.stop_after})


def simulated(job: Job, compiled: CompiledModel) -> Simulated:
    """Write what was planned, and simulate it."""
    save = job.writer.save
    save("placement", "placement.json", canonical_json(placement_document(compiled)))
    save("graph", "graph.json", canonical_json(graph_document(compiled)))
    save("schedule", _SCHEDULE, canonical_json(schedule_document(compiled)))
    sims, whole = simulate_model(compiled, job.cache, job.options.loop_trips)
    trace = trace_json(compiled.linked.program, sims, whole, job.machine)
    save("trace", _TRACE, gzip.compress(trace, 6, mtime=0))
    return Simulated(sims, whole)


def packaged(job: Job, compiled: CompiledModel, found: Simulated) -> Packaged:
    """Write the bundle; its large parts are gone from memory when this returns.

    Raises:
        CompilerError: TW-PLUG-002, a serializer failed; TW-PLUG-005, one cannot write a region, and
            --fail-on-fallback.
        InputError: TW-LINK-004, the kernel library lacks a function.
    """
    options, folder = job.options, job.writer.out_dir
    tools = toolchain(options, job.machine)
    warnings: tuple[tuple[str, str], ...] = ()
    if job.link is not None:
        linked, warnings = require_linked(job.link, compiled)
        if linked.symbols:
            tools[TOOL] = tool_of(linked)
    regions = regions_of(compiled)
    images = written(regions, options.fail_on_fallback)
    pending = Verification(str(options.verify), "none", None, None, None, None, "not run")
    document = report_document(
        told(images.told(compiled), warnings), found.units, found.whole, options, pending, tools,
        compiled.summaries,
    )  # fmt: skip
    document["images"] = list[Detail](images.rows)
    contents = bundle_contents(
        compiled,
        tools,
        (folder / _SCHEDULE).read_bytes(),
        canonical_json(stable_report(document)),
        (folder / _TRACE).read_bytes(),
        regions,
    )
    path = folder / job.bundle_name
    made = Packaged(path, write_bundle(path, contents), images, tools, warnings)
    job.writer.announce("bundle", job.bundle_name)
    compiled.model.release_pages()
    return made


def verified(job: Job, compiled: CompiledModel, made: Packaged) -> Verification:
    """Run the kernels and compare them with a reference, and engines with the kernels.

    Raises: as `given_inputs` and `verify_model`.
    """
    if job.options.verify is VerifyMode.NONE:
        return NOT_ASKED
    from worker.verification.drive import verify_model
    from worker.verification.given_inputs import given_inputs

    request = job.request
    given = None
    if request.inputs_path is not None:
        given = given_inputs(request.inputs_path, compiled.model)
    scoring = None
    if compiled.boundaries:
        scoring = scoring_samples(compiled.source, job.options, request.calibration_path)
    bundle = made.path if any(target.engine for target in job.machine.targets) else None
    return verify_model(
        job.path, compiled, job.options, request.build_dir, given, scoring, bundle, job.link
    )


def reported(
    job: Job,
    compiled: CompiledModel,
    found: Simulated,
    made: Packaged,
    verification: Verification,
) -> JobOutcome:
    """Write the report in its three forms and run.json; then fail where a check failed.

    Raises:
        SimulationError: an invariant of the simulation is violated.
        Mismatch: a kernel is wrong.
    """
    options, save = job.options, job.writer.save
    document = report_document(
        told(made.images.told(compiled), made.warnings), found.units, found.whole, options,
        verification, made.tools, compiled.summaries,
    )  # fmt: skip
    document["images"] = list[Detail](made.images.rows)
    document["unlock"] = unlock_rows(compiled.source, compiled.machine, options)
    document["null_reasons"] = null_reasons(document)
    document["bundle"] = {"sha256": made.digest}
    rows = [r for r in _listed(document["layers"]) if isinstance(r, dict)]
    save("layers", "layers.csv", layers_csv(rows, found.whole.cycles))
    page = report_page(document, compiled, found.units, found.whole)
    save("report_html", "report.html", page.encode())
    save("report", "report.json", canonical_json(document))
    signatures = [unit.signature for unit in compiled.units]
    run = run_document(signatures, compiled.cache_events, job.timed.so_far())
    save("run", "run.json", canonical_json(run))
    refuse_violations(found.units, found.whole)
    if options.verify is not VerifyMode.NONE:
        from worker.verification.drive import refuse_mismatch

        refuse_mismatch(verification)
    summary = document["summary"]
    assert isinstance(summary, dict)
    return JobOutcome(tuple(job.writer.written), made.digest, summary)


def _listed(value: Detail) -> list[Detail]:
    return value if isinstance(value, list) else []


def stable_report(document: Mapping[str, Detail]) -> dict[str, Detail]:
    """The report without what is known only after packaging (verification), or decides no result
    (how the cache may be used)."""
    kept = {k: v for k, v in document.items() if k != "verification"}
    options = document["options"]
    if isinstance(options, dict):
        kept["options"] = {k: v for k, v in options.items() if k in RESULT_OPTIONS}
    return kept


def safe_stem(name: str) -> str:
    """A file name from a user's model name: letters, digits, `.`, `_`, `-`; never empty."""
    stem = name.rsplit("/", 1)[-1].removesuffix(".onnx").removesuffix(".zip")
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in stem)
    return kept.strip(".")[:80] or "model"


def placement_document(compiled: CompiledModel) -> list[dict[str, Detail]]:
    """The placement table, one row per ONNX node."""
    return [
        {
            "node": row.node,
            "op_type": row.op_type,
            "target": str(row.target),
            "reason_code": str(row.reason_code),
            "reason": row.reason,
        }
        for row in compiled.placement
    ]


def schedule_document(compiled: CompiledModel) -> dict[str, Detail]:
    """Schedules by unit signature with the ONNX nodes they serve."""
    nodes: dict[int, list[Detail]] = {}
    for call in compiled.linked.program.calls:
        unit = getattr(call, "unit", None)
        if isinstance(unit, int):
            nodes.setdefault(unit, []).extend(call.onnx_nodes)
    return {
        "schema_version": 1,
        "units": [
            {
                "signature": unit.signature,
                "kernel": unit.kernel_name,
                "strategy": unit.schedule.strategy,
                "predicted_cycles": unit.schedule.predicted_cycles,
                "onnx_nodes": nodes.get(k, []),
                "text": unit.schedule_text,
            }
            for k, unit in enumerate(compiled.units)
        ],
    }

"""One compile job from files to files: what the sandboxed child and `--local` both run.

`run_job` chains the pure libraries (compiler, simulator, verification) and writes artifacts into
`out_dir`.  It knows no database, queue or HTTP.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson

from worker.compiler.assembly.packing import bundle_contents
from worker.compiler.cache import Cache, NullCache
from worker.compiler.codegen.kernel import CODEGEN_VERSION
from worker.compiler.descriptors import taking_part
from worker.compiler.errors import Detail
from worker.compiler.frontend.limits import Limits
from worker.compiler.ir.signature import IR_VERSION
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.lower.lower import LOWER_VERSION
from worker.compiler.options import CompileOptions, VerifyMode
from worker.compiler.package.bundle import write_bundle
from worker.compiler.pipeline import compile_model
from worker.job.hardware import resolve_machine
from worker.job.ports import open_ports
from worker.job.request import JobOutcome, JobRequest, ProgressSink
from worker.job.simulation import refuse_violations, simulate_model
from worker.job.unlocking import unlock_rows
from worker.report.document import Verification, report_document
from worker.report.graph import graph_document
from worker.report.layers import layers_csv
from worker.report.nulls import null_reasons
from worker.report.page import report_page
from worker.simulator.results import ModelSimulation, UnitSimulation
from worker.simulator.run import SIMULATOR_VERSION
from worker.simulator.trace import trace_json


class _TimedProgress:
    """Passes progress on and keeps wall seconds per stage (never part of a digest)."""

    def __init__(self, sink: ProgressSink) -> None:
        self._sink = sink
        self._started: dict[str, float] = {}
        self.seconds: dict[str, float] = {}

    def stage(self, name: str, state: str) -> None:
        now = time.perf_counter()
        if state == "started":
            self._started[name] = now
        else:
            spent = now - self._started.pop(name, now)
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
        self._sink.stage(name, state)

    def units(self, solved: int, cached: int, total: int) -> None:
        self._sink.units(solved, cached, total)


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


def canonical_json(value: Any) -> bytes:
    """Indented JSON with sorted keys: the same value always gives the same bytes."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)


def toolchain(options: CompileOptions) -> dict[str, Detail]:
    """Versions that decide results: part of the report and the bundle."""
    try:
        release = version("tilewright")
    except PackageNotFoundError:
        release = "0+source"
    return {
        "version": release,
        "ir": IR_VERSION,
        "lower": LOWER_VERSION,
        "codegen": CODEGEN_VERSION,
        "simulator": SIMULATOR_VERSION,
        "strategies": {
            row.name: {"version": row.version, "distribution": row.distribution}
            for row in taking_part(options.strategy)
        },
    }


def run_job(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """Compile, simulate, package, verify and report one model.

    Artifacts appear as their stages finish.  The bundle's own report leaves out `timings` and the
    cache outcomes, so a cold and a warm compile give the same bytes.

    Raises:
        CompilerError: any of its subclasses; `to_problem()` is what the user sees.
    """
    from worker.verification.drive import verify_model
    from worker.verification.given_inputs import given_inputs

    out_dir.mkdir(parents=True, exist_ok=True)
    timed = _TimedProgress(progress)
    writer = _Writer(out_dir, progress, [])
    options = request.options
    used_cache: Cache = NullCache() if options.no_cache else cache
    machine = resolve_machine(request.hardware)
    size = request.model_path.stat().st_size
    ports = open_ports(machine, options, used_cache, timed, request.calibration_path, size)
    compiled = compile_model(
        request.model_path, request.model_name, machine, options, ports, Limits()
    )
    given = None
    if request.inputs_path is not None:
        given = given_inputs(request.inputs_path, compiled.model)
    writer.save("placement", "placement.json", canonical_json(placement_document(compiled)))
    writer.save("graph", "graph.json", canonical_json(graph_document(compiled)))
    schedule = canonical_json(schedule_document(compiled))
    writer.save("schedule", "schedule.json", schedule)

    timed.stage("simulate", "started")
    sims, whole = simulate_model(compiled, used_cache, options.loop_trips)
    trace = gzip.compress(trace_json(compiled.linked.program, sims, whole, machine), 6, mtime=0)
    writer.save("trace", "trace.json.gz", trace)
    timed.stage("simulate", "finished")

    timed.stage("package", "started")
    bundle_name = f"{safe_stem(request.model_name)}.twb"
    bundle_digest = _package(out_dir / bundle_name, compiled, sims, whole, options, schedule, trace)
    writer.announce("bundle", bundle_name)
    compiled.model.release_pages()
    timed.stage("package", "finished")

    timed.stage("verify", "started")
    verification = verify_model(request.model_path, compiled, options, request.build_dir, given)
    timed.stage("verify", "finished")
    return _report(request, compiled, sims, whole, verification, bundle_digest, timed, writer)


def _package(
    path: Path,
    compiled: CompiledModel,
    sims: tuple[UnitSimulation, ...],
    whole: ModelSimulation,
    options: CompileOptions,
    schedule: bytes,
    trace: bytes,
) -> str:
    """Write the bundle; its large parts are gone from memory when this returns."""
    pending = Verification(str(options.verify), "none", None, None, None, None, "not run")
    document = report_document(
        compiled, sims, whole, options, pending, toolchain(options), compiled.summaries
    )
    report = canonical_json(stable_report(document))
    contents = bundle_contents(compiled, toolchain(options), schedule, report, trace)
    return write_bundle(path, contents)


def _report(
    request: JobRequest,
    compiled: CompiledModel,
    sims: tuple[UnitSimulation, ...],
    whole: ModelSimulation,
    verification: Verification,
    bundle_digest: str,
    timed: _TimedProgress,
    writer: _Writer,
) -> JobOutcome:
    from worker.verification.drive import refuse_mismatch

    timed.stage("report", "started")
    document = report_document(
        compiled,
        sims,
        whole,
        request.options,
        verification,
        toolchain(request.options),
        compiled.summaries,
    )
    document["unlock"] = unlock_rows(compiled.source, compiled.machine, request.options)
    document["null_reasons"] = null_reasons(document)
    document["bundle"] = {"sha256": bundle_digest}
    rows = [r for r in _listed(document["layers"]) if isinstance(r, dict)]
    writer.save("layers", "layers.csv", layers_csv(rows))
    page = report_page(document, compiled, sims, whole)
    writer.save("report_html", "report.html", page.encode())
    timed.stage("report", "finished")
    document["timings"] = {k: round(v, 6) for k, v in timed.seconds.items()}
    writer.save("report", "report.json", canonical_json(document))
    refuse_violations(sims, whole)
    if request.options.verify is not VerifyMode.NONE:
        refuse_mismatch(verification)
    summary = document["summary"]
    assert isinstance(summary, dict)
    return JobOutcome(tuple(writer.written), bundle_digest, summary)


def _listed(value: Detail) -> list[Detail]:
    return value if isinstance(value, list) else []


RESULT_OPTIONS = (
    "strategy",
    "strategy_options",
    "objective",
    "effort",
    "max_power_w",
    "max_latency_ms",
    "symbols",
    "precision",
    "partition",
    "calibration",
    "loop_trips",
)
"""Options that decide what is compiled; the others decide how the job runs."""


def stable_report(document: Mapping[str, Detail]) -> dict[str, Detail]:
    """The report without anything that differs between a cold and a warm compile, that is known
    only after packaging (verification), or that decides no result (how the cache may be used)."""
    kept = {k: v for k, v in document.items() if k not in ("timings", "cache", "verification")}
    options = document["options"]
    if isinstance(options, dict):
        kept["options"] = {k: v for k, v in options.items() if k in RESULT_OPTIONS}
    kept["layers"] = [
        {k: v for k, v in row.items() if k != "cache"}
        for row in _listed(document["layers"])
        if isinstance(row, dict)
    ]
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

"""The whole compiler in order: bytes -> model -> parts -> graphs -> units -> program.

    load -> bind -> simplify -> partition -> express -> group -> solve units -> plan home memory

`compile_model` is the only entry; it is pure (no clock, environment, network, database): the cache
and the progress sink come in as values.  Simulation, verification and reporting follow in the
worker, on the `CompiledModel` this returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from worker.compiler.cache import Cache, CacheEvent
from worker.compiler.control.compile import (
    CompiledControl,
    compile_bodies,
    explained,
    interpreted,
    whole,
)
from worker.compiler.control.isolate import isolate
from worker.compiler.control.shapes import settle_shapes
from worker.compiler.errors import CompilerError, Finding, Shortfall
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.express import Expressed, express_region
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.simplify import simplify
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import OpaqueOp, TensorOp
from worker.compiler.ir.region import Cuts, is_view
from worker.compiler.ir.signature import canonicalize
from worker.compiler.link import LinkedModel, PlannedCall, PlannedHost, link
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions
from worker.compiler.partition.partition import partition
from worker.compiler.partition.plan import HOST, Part, Partitioning, Placement
from worker.compiler.rejection import ReasonCode, Rejection
from worker.compiler.schedule.stages import Grouping
from worker.compiler.strategies.base import Strategy
from worker.compiler.strategies.registry import strategy_for
from worker.compiler.units import Unit, UnitSolver


class Progress(Protocol):
    """What the pipeline tells its caller while it works."""

    def stage(self, name: str, state: str) -> None: ...

    def units(self, solved: int, cached: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """Everything later stages need about one compiled model."""

    model: OnnxModel
    machine: Machine
    strategy: str
    placement: tuple[Placement, ...]
    units: tuple[Unit, ...]
    linked: LinkedModel
    constants: Mapping[str, Callable[[], npt.NDArray[Any]]]
    """Values of the constants units read, by name."""
    cache_events: tuple[CacheEvent, ...]
    warnings: tuple[tuple[str, str], ...]
    """(code, message)."""
    controls: tuple[CompiledControl[CompiledModel], ...] = ()
    """Control-flow nodes, in model order, with their compiled bodies."""

    @property
    def home_bytes(self) -> int:
        """Of the home arenas of the model and of every program nested in it."""
        bodies = [body for control in self.controls for body in control.bodies]
        return self.linked.program.home_bytes + sum(b.home_bytes for b in bodies if b is not None)

    @property
    def is_offloading(self) -> bool:
        """Whether any kernel runs, here or in a nested program."""
        return bool(self.units) or any(control.flow for control in self.controls)


def compile_model(
    path: Path,
    name: str,
    machine: Machine,
    options: CompileOptions,
    cache: Cache,
    progress: Progress,
    limits: Limits,
) -> CompiledModel:
    """Compile one ONNX file for one machine.

    Raises:
        CompilerError: see the stages; Infeasible only when an operator fits neither the
            accelerator nor (being refused by --fail-on-fallback) the host.
    """
    progress.stage("ingest", "started")
    loaded = load_model(path, limits, name)
    progress.stage("ingest", "finished")
    progress.stage("simplify", "started")
    model = simplify(bind(loaded, dict(options.symbols)))
    settle_shapes(model)
    progress.stage("simplify", "finished")
    strategy = strategy_for(options.strategy)
    solver = UnitSolver.create(machine, strategy, options, cache)
    return _compile_graph(model, options, strategy, solver, progress)


class _Nested:
    """Bodies are compiled inside the partition stage of their model: nothing to announce."""

    def stage(self, name: str, state: str) -> None:
        del name, state

    def units(self, solved: int, cached: int, total: int) -> None:
        del solved, cached, total


def _compile_graph(
    model: OnnxModel,
    options: CompileOptions,
    strategy: Strategy,
    solver: UnitSolver,
    progress: Progress,
) -> CompiledModel:
    """A simplified model, or a body of one, to a linked program."""
    machine = solver.machine
    inner = replace(options, fail_on_fallback=False)
    controls = compile_bodies(
        model,
        lambda body: _compile_graph(body, inner, strategy, solver, _Nested()),
        lambda body: body.is_offloading,
    )
    refused: dict[str, Rejection] = {}
    while True:
        progress.stage("partition", "started")
        parts = partition(model, machine, refused)
        parts = replace(parts, parts=isolate(model, parts.parts, interpreted(controls)))
        progress.stage("partition", "finished")
        progress.stage("schedule", "started")
        solved = _solve(model, parts, machine, strategy, solver, progress)
        if not solved.shortfalls:
            break
        refused.update(
            (node, Rejection(ReasonCode.DOES_NOT_FIT, _sentence(shortfall)))
            for node, shortfall in solved.shortfalls
        )
    progress.stage("schedule", "finished")
    placement = explained(_final_placement(parts, solved.view_nodes), controls)
    if options.fail_on_fallback:
        _refuse_fallback(placement, solved, refused)
    progress.stage("codegen", "started")
    linked = link(model, solved.calls, solved.units, solved.graphs, machine)
    progress.stage("codegen", "finished")
    compiled = CompiledModel(
        model, machine, strategy.name, placement, solved.units, linked, solved.constants,
        tuple(solver.events), _warnings(machine, placement), controls,
    )  # fmt: skip
    usable = machine.home.usable_bytes
    if compiled.home_bytes <= usable:
        return compiled
    # Each program fits alone.  Bodies that do not fit beside it run in ONNX Runtime.
    controls = whole(
        controls,
        f"its programs and the model's need {compiled.home_bytes} bytes of {machine.home.name},"
        f" has {usable}",
    )
    return replace(compiled, controls=controls, placement=explained(placement, controls))


@dataclass(frozen=True, slots=True)
class _Solved:
    calls: tuple[PlannedCall | PlannedHost, ...]
    units: tuple[Unit, ...]
    graphs: tuple[Graph, ...]
    constants: Mapping[str, Callable[[], npt.NDArray[Any]]]
    shortfalls: tuple[tuple[str, Shortfall], ...]
    view_nodes: frozenset[str]


def _solve(
    model: OnnxModel,
    parts: Partitioning,
    machine: Machine,
    strategy: Strategy,
    solver: UnitSolver,
    progress: Progress,
) -> _Solved:
    """Express and solve every accelerator part; host parts become PlannedHost."""
    nodes = list(model.ir.graph)
    calls: list[PlannedCall | PlannedHost] = []
    units: dict[str, int] = {}
    solved: list[Unit] = []
    graphs: list[Graph] = []
    constants: dict[str, Callable[[], npt.NDArray[Any]]] = {}
    shortfalls: dict[str, Shortfall] = {}
    kernel_nodes: set[str] = set()
    regions: list[tuple[Part, Expressed | None, Grouping | None]] = []
    for part in parts.parts:
        if part.is_host:
            regions.append((part, None, None))
            continue
        region = express_region([nodes[k] for k in part.nodes], part.outputs, model.opset)
        regions.append((part, region, strategy.group(region.graph, machine)))
    total = sum(len(grouping.groups) for _, _, grouping in regions if grouping is not None)
    done = solved_now = 0
    for number, (part, expressed, grouping) in enumerate(regions):
        if expressed is None or grouping is None:
            calls.append(_host_call(part, nodes))
            continue
        graph = expressed.graph
        graphs.append(graph)
        cuts = Cuts.of(graph)
        constants.update(expressed.constants)
        for group in grouping.groups:
            done += 1
            ops = [cuts.op(name) for name in group.ops]
            if len(ops) == 1 and is_view(ops[0], graph.tensors):
                calls.append(_view_call(ops[0]))
                progress.units(solved_now, done - solved_now, total)
                continue
            origin_nodes = tuple(dict.fromkeys(n for op in ops for n in op.origin.nodes))
            kernel_nodes.update(origin_nodes)
            canonical = canonicalize(cuts.piece(group.ops))
            signature = canonical.signature
            if signature not in units:
                before = len(solver.events)
                unit = solver.solve(canonical, origin_nodes[0] if origin_nodes else group.ops[0])
                if isinstance(unit, Shortfall):
                    shortfalls.update((n, unit) for n in origin_nodes)
                    continue
                units[signature] = len(solved)
                solved.append(unit)
                solved_now += any(e.outcome == "miss" for e in solver.events[before:])
            names = dict(canonical.tensor_of)
            calls.append(
                PlannedCall(
                    units[signature],
                    tuple((new, names[new]) for new in names),
                    origin_nodes,
                    ops[0].origin.op_type,
                    number,
                    part.target,
                )
            )
            progress.units(solved_now, done - solved_now, total)
    every_node = {nodes[k].name or "" for part in parts.regions for k in part.nodes}
    return _Solved(
        tuple(calls), tuple(solved), tuple(graphs), constants, tuple(shortfalls.items()),
        frozenset(every_node - kernel_nodes),
    )  # fmt: skip


def _view_call(op: TensorOp | OpaqueOp) -> PlannedCall:
    assert isinstance(op, TensorOp)
    return PlannedCall(
        None, (("src", op.reads[0].tensor), ("dst", op.write.tensor)), op.origin.nodes,
        op.origin.op_type,
    )  # fmt: skip


def _host_call(part: Part, nodes: list[Any]) -> PlannedHost:
    return PlannedHost(
        part.nodes,
        part.inputs,
        part.outputs,
        tuple(nodes[k].name or "" for k in part.nodes),
        tuple(nodes[k].op_type for k in part.nodes),
    )


def _sentence(shortfall: Shortfall) -> str:
    lever = f"; {shortfall.levers[0]}" if shortfall.levers else ""
    return (
        f"{shortfall.resource} needs {shortfall.demand} {shortfall.unit},"
        f" has {shortfall.bound}{lever}"
    )


def _final_placement(parts: Partitioning, view_nodes: frozenset[str]) -> tuple[Placement, ...]:
    return tuple(
        replace(row, reason_code=ReasonCode.VIEW, reason="renames memory only; no kernel runs")
        if row.target != HOST and row.node in view_nodes
        else row
        for row in parts.placement
    )


def _refuse_fallback(
    placement: tuple[Placement, ...], solved: _Solved, refused: Mapping[str, Rejection]
) -> None:
    del solved
    fallen = [row for row in placement if row.target == HOST]
    if not fallen:
        return
    findings = tuple(
        Finding(str(row.reason_code), row.reason, None, row.node, None, row.op_type)
        for row in fallen
    )
    misfits = [row.node for row in fallen if row.node in refused]
    raise CompilerError(
        "TW-UNSUP-001",
        f"{len(fallen)} operators fall back to the host, the first is {fallen[0].node}"
        f" ({fallen[0].op_type}): {fallen[0].reason}",
        node=(misfits or [fallen[0].node])[0],
        limit=0,
        actual=len(fallen),
        findings=findings,
    )


def _warnings(machine: Machine, placement: tuple[Placement, ...]) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    if machine.guesses:
        first = machine.guesses[0]
        found.append(
            (
                "GUESSED_HARDWARE",
                f"{len(machine.guesses)} numbers of the hardware spec are guesses,"
                f" e.g. {first.pointer} = {first.value}",
            )
        )
    on_host = sum(row.target == HOST for row in placement)
    if on_host:
        found.append(("HOST_FALLBACK", f"{on_host} of {len(placement)} nodes run on the host"))
    return tuple(found)

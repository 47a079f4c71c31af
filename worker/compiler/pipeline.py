"""The whole compiler in order: bytes -> model -> parts -> graphs -> units -> program.

    load -> bind -> simplify -> convert -> partition -> solve (express, lay out, group, schedule)
         -> weigh -> link

`compile_model` is the only entry; it is pure (no clock, environment, network, database): the cache,
the progress sink, calibration samples and simulated times come in through `Ports`.  Simulation of
the whole, verification and reporting follow in the worker, on the `CompiledModel` this returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from math import ceil
from pathlib import Path

from worker.compiler.collector import rare_collections
from worker.compiler.control.compile import (
    CompiledControl,
    compile_bodies,
    explained,
    whole,
)
from worker.compiler.control.shapes import settle_shapes
from worker.compiler.errors import CompilerError, Finding, Shortfall
from worker.compiler.faults import Fault
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.passes import interface_of, require_interface
from worker.compiler.frontend.simplify import simplify
from worker.compiler.frontend.sizes import require_sizes
from worker.compiler.judge.compiled import CompiledModel, Ports, Samples
from worker.compiler.judge.elect import Pass, Way, elect, only, ways_for
from worker.compiler.judge.entrants import entrants
from worker.compiler.judge.figures import Caps, ProgramLimits
from worker.compiler.judge.link import PlannedCall, link
from worker.compiler.judge.pool import UnitPool
from worker.compiler.judge.solve import Progress, RegionSolver, Solved
from worker.compiler.judge.summaries import unit_summaries
from worker.compiler.judge.verdict import recall, remember, verdict_key
from worker.compiler.machine import digest
from worker.compiler.machine.machine import Conversion, Machine, PartitionMode
from worker.compiler.options import CompileOptions, PartitionChoice
from worker.compiler.partition.annotate import annotate
from worker.compiler.partition.balance import NodeCosts
from worker.compiler.partition.host_work import host_flops
from worker.compiler.partition.hostless import require_host
from worker.compiler.partition.join import joined
from worker.compiler.partition.partition import partition
from worker.compiler.partition.plan import HOST, Partitioning, Placement
from worker.compiler.partition.weigh import weigh
from worker.compiler.quantize.boundary import Converted
from worker.compiler.quantize.choose import choose_conversions
from worker.compiler.quantize.convert import convert
from worker.compiler.quantize.ranges import observe
from worker.compiler.quantize.split import split_dequantisations
from worker.compiler.rejection import ReasonCode, Rejection

_MOST_NAMED = 8
"""Nodes that a warning names."""


@rare_collections()
def compile_model(
    path: Path,
    name: str,
    machine: Machine,
    options: CompileOptions,
    ports: Ports,
    limits: Limits,
) -> CompiledModel:
    """Compile one ONNX file for one machine.

    Raises:
        CompilerError: see the stages; Infeasible only when an operator fits neither the
            accelerator nor (being refused by --fail-on-fallback) the host.
    """
    progress = ports.progress
    progress.stage("ingest", "started")
    loaded = load_model(path, limits, name)
    promised = interface_of(loaded.ir)
    progress.stage("ingest", "finished")
    progress.stage("simplify", "started")
    model = simplify(bind(loaded, dict(options.symbols)))
    settle_shapes(model)
    require_sizes(model, limits)
    require_interface("simplify", promised, model.ir)
    progress.stage("simplify", "finished")
    progress.stage("convert", "started")
    conversions, converted = convert_for(model, machine, options, ports.samples)
    progress.stage("convert", "finished")
    field, last_resort = entrants(options)
    pool = UnitPool(machine, options, ports.cache, field, last_resort, ports.figures)
    compiled = _compile_graph(converted.model, options, pool, ports, progress)
    return replace(
        compiled,
        conversions=conversions,
        boundaries=converted.boundaries,
        source=model,
        interface=promised,
        warnings=(
            *compiled.warnings, *converted.warnings, *_calibration(converted, options),
            *_fallbacks(pool),
        ),
    )  # fmt: skip


def convert_for(
    model: OnnxModel, machine: Machine, options: CompileOptions, samples: Samples
) -> tuple[Mapping[str, Conversion], Converted]:
    """Put what targets will take into their number formats.

    Raises:
        OptionError: TW-OPT-003, no target has the precision asked for.
        ModelError: TW-CAL codes, the calibration samples do not fit.
    """
    model = split_dequantisations(model)
    choices = choose_conversions(model, machine, options.precision)
    if not choices:
        return choices, Converted(model)
    annotation = annotate(model, machine, {}, choices)
    converted = convert(
        model, annotation.placement, choices, lambda names: observe(model, names, samples(model))
    )
    if converted.boundaries and not partition(converted.model, machine, {}, _mode(options)).regions:
        # Nothing would run in the new format: the user would pay its noise for nothing.
        unused = (
            "CONVERSION_UNUSED",
            f"no region of {machine.name} would be left after quantisation, so the model stays as"
            " it is and runs on the host",
        )
        return {}, Converted(model, warnings=(unused,))
    return choices, converted


class _Nested:
    """Bodies are compiled inside the partition stage of their model: nothing to announce."""

    def stage(self, name: str, state: str) -> None:
        del name, state

    def units(self, solved: int, cached: int, total: int) -> None:
        del solved, cached, total


class _ComparedFirst:
    """The first of several programs: scheduling goes on after it, and nothing is coded yet."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.units = progress.units

    def stage(self, name: str, state: str) -> None:
        if name != "codegen" and (name, state) != ("schedule", "finished"):
            self._progress.stage(name, state)


def _told(progress: Progress, made_for: Pass) -> Progress:
    """Who is told of the making of a program."""
    match made_for:
        case Pass.ONLY:
            return progress
        case Pass.FIRST:
            return _ComparedFirst(progress)
        case Pass.FURTHER | Pass.LAST:
            return _Nested()


def _compile_graph(
    model: OnnxModel, options: CompileOptions, pool: UnitPool, ports: Ports, progress: Progress
) -> CompiledModel:
    """A simplified and converted model, or a body of one, to the best program for it."""
    inner = replace(options, fail_on_fallback=False, max_power_w=None, max_latency_ms=None)
    controls = compile_bodies(
        model,
        lambda body: _compile_graph(body, inner, pool, ports, _Nested()),
        lambda body: body.is_offloading,
    )
    made = partial(_program, RegionSolver(model, pool), model, options, ports, controls)

    def program(way: Way, made_for: Pass) -> CompiledModel:
        if made_for is Pass.LAST:
            progress.stage("schedule", "finished")
            progress.stage("codegen", "started")
        found = made(_told(progress, made_for), way, made_for)
        if made_for is Pass.LAST:
            progress.stage("codegen", "finished")
        return found

    caps, is_weighable = Caps.of(options), bool(_weighable(pool.machine, options))
    ways = ways_for(pool.entrants, options.objective, is_weighable, caps)
    limits = ProgramLimits(caps, pool.machine.clock_hz)
    if len(ways) == 1:
        return only(ways[0], program, ports.whole, limits)
    field = tuple({e.name: e for e in (*pool.entrants, pool.last_resort)}.values())
    key = verdict_key(model, digest(pool.machine), field, options, ports.simulator)
    election, event = recall(ports.cache, key, ways, model.name)
    if election is None:
        election = elect(ways, program, ports.whole, options.objective, limits)
        if not pool.fallbacks:  # a strategy's fault is told in every report
            remember(ports.cache, key, election)
        kept = program(election.way, Pass.LAST)
    else:
        kept = program(election.way, Pass.ONLY)
    return replace(
        kept,
        strategy=election.strategy,
        programs=election.programs,
        cache_events=(event, *kept.cache_events),
    )


def _program(
    solver: RegionSolver,
    model: OnnxModel,
    options: CompileOptions,
    ports: Ports,
    controls: tuple[CompiledControl[CompiledModel], ...],
    progress: Progress,
    way: Way,
    made_for: Pass,
) -> CompiledModel:
    """One program of a model: by one strategy, or by a mixture."""
    machine = solver.pool.machine
    is_coding = made_for in (Pass.ONLY, Pass.LAST)

    def solved_by_way(parts: Partitioning) -> Solved:
        return solver.solve(parts, way.entrants, way.measure, progress, is_coding)

    parts, solved, refused = _solved_parts(model, machine, options, way, solved_by_way, progress)
    if way.is_weighed and parts.regions:
        progress.stage("partition", "started")
        costs = _node_costs(model, parts, solved, ports, machine)
        weighed = weigh(model, machine, parts, costs, _weighable(machine, options))
        if way.spans_regions:
            weighed = joined(weighed, model, machine, _mode(options))
        progress.stage("partition", "finished")
        again = solved_by_way(weighed)
        if not again.shortfalls:  # a smaller region may be laid out anew, into what does not fit
            parts, solved = weighed, again
    progress.stage("schedule", "finished")
    placement = explained(_final_placement(parts, solved.view_nodes), controls)
    parts = replace(parts, placement=placement)
    if options.fail_on_fallback:
        _refuse_fallback(placement, refused)
    require_host(model, placement)
    progress.stage("codegen", "started")
    linked = link(model, solved.calls, solved.units, solved.graphs, machine)
    progress.stage("codegen", "finished")
    compiled = CompiledModel(
        model=model,
        machine=machine,
        strategy="",  # whose kernels it has is said when it is elected
        partitioning=parts,
        units=solved.units,
        linked=linked,
        region_graphs=solved.graphs,
        constants=solved.constants,
        cache_events=solver.pool.events,
        warnings=_warnings(machine, placement),
        conversions={},
        boundaries=(),
        layouts=solved.layouts,
        source=model,
        interface=interface_of(model.ir),
        controls=controls,
        summaries=unit_summaries(solved.units, solved.calls),
        handed=solved.handed,
    )
    usable = machine.home.usable_bytes
    if compiled.home_bytes <= usable:
        return compiled
    # Each program fits alone.  Bodies that do not fit beside it run in ONNX Runtime.
    controls = whole(
        controls,
        f"its programs and the model's need {compiled.home_bytes} bytes of {machine.home.name},"
        f" has {usable}",
    )
    parts = replace(parts, placement=explained(placement, controls))
    return replace(compiled, controls=controls, partitioning=parts)


def _solved_parts(
    model: OnnxModel,
    machine: Machine,
    options: CompileOptions,
    way: Way,
    solved_by_way: Callable[[Partitioning], Solved],
    progress: Progress,
) -> tuple[Partitioning, Solved, Mapping[str, Rejection]]:
    """Partition and solve until every operator on the accelerator fits its memories."""
    refused: dict[str, Rejection] = {}
    while True:
        progress.stage("partition", "started")
        parts = partition(model, machine, refused, _mode(options))
        if way.spans_regions:
            parts = joined(parts, model, machine, _mode(options))
        progress.stage("partition", "finished")
        progress.stage("schedule", "started")
        solved = solved_by_way(parts)
        if not solved.shortfalls:
            return parts, solved, refused
        refused.update(
            (node, Rejection(ReasonCode.DOES_NOT_FIT, _sentence(shortfall)))
            for node, shortfall in solved.shortfalls
        )


def _mode(options: CompileOptions) -> PartitionMode | None:
    """The partition mode asked for; None: as each target's spec says."""
    if options.partition is PartitionChoice.SPEC:
        return None
    return PartitionMode(str(options.partition))


def _weighable(machine: Machine, options: CompileOptions) -> tuple[str, ...]:
    """Names of the targets whose regions may be changed by cost."""
    if options.partition is PartitionChoice.SPEC:
        return tuple(t.name for t in machine.targets if t.criteria.mode is PartitionMode.AUTO)
    every = tuple(target.name for target in machine.targets)
    return every if options.partition is PartitionChoice.AUTO else ()


def _node_costs(
    model: OnnxModel, parts: Partitioning, solved: Solved, ports: Ports, machine: Machine
) -> NodeCosts:
    """Simulated cycles of every node's kernels, and the host's roofline of the same node.

    A kernel of several nodes is shared out by the host's cycles of each; one of no node of the
    model goes to the first of its region.  What a composite costs stands at its last node.
    """
    nodes = list(model.ir.graph)
    position = {node.name or "": k for k, node in enumerate(nodes)}
    accelerator = [0] * len(nodes)
    host = [ceil(machine.host.work_s(*host_flops([node])) * machine.clock_hz) for node in nodes]
    for call in solved.calls:
        if isinstance(call, PlannedCall) and call.unit is not None:
            own = sorted({position[name] for name in call.onnx_nodes if name in position})
            own = own or [parts.regions[call.region].nodes[0]]
            cycles = ports.figures(solved.units[call.unit]).cycles
            for k, share in zip(own, shared_out(cycles, [host[k] for k in own]), strict=True):
                accelerator[k] += share
    for part in parts.regions:
        for composite in part.composites:
            last = composite.nodes[-1]
            for costs in (accelerator, host):
                total = sum(costs[k] for k in composite.nodes)
                for k in composite.nodes:
                    costs[k] = 0
                costs[last] = total
    return NodeCosts(tuple(accelerator), tuple(host))


def shared_out(cycles: int, weights: Sequence[int]) -> tuple[int, ...]:
    """`cycles` in whole shares in proportion to `weights`, evenly where they are all 0.

    The shares sum to `cycles`; each is within 1 of its exact value.
    """
    if not any(weights):
        weights = [1] * len(weights)
    ends = [total * cycles // sum(weights) for total in accumulate(weights, initial=0)]
    return tuple(end - start for start, end in pairwise(ends))


def _calibration(converted: Converted, options: CompileOptions) -> tuple[tuple[str, str], ...]:
    """A warning where ranges come from made-up inputs."""
    if options.calibration or not any(b.scale is not None for b in converted.boundaries):
        return ()
    return (
        (
            "SYNTHETIC_CALIBRATION",
            "quantisation ranges come from random inputs: latencies are meaningful, accuracy is"
            " not; give sample inputs with --calibration FILE.npz",
        ),
    )


def _fallbacks(pool: UnitPool) -> tuple[tuple[str, str], ...]:
    """A warning for every fault of a strategy, with the nodes that another way was taken for."""
    nodes_of: dict[Fault, dict[str, None]] = {}
    for fallback in pool.fallbacks:
        nodes_of.setdefault(fallback.fault, {}).update(dict.fromkeys(fallback.nodes))
    return tuple(
        (
            "STRATEGY_FALLBACK",
            f"{len(nodes)} nodes ({', '.join(list(nodes)[:_MOST_NAMED])}"
            f"{', ...' if len(nodes) > _MOST_NAMED else ''}) run another way:"
            f" {fault.sentence}; this is a bug in Tilewright: please report it",
        )
        for fault, nodes in nodes_of.items()
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
        if row.target != HOST and row.node in view_nodes and not row.composite
        else row
        for row in parts.placement
    )


def _refuse_fallback(placement: tuple[Placement, ...], refused: Mapping[str, Rejection]) -> None:
    fallen = [row for row in placement if row.target == HOST and not row.is_inserted]
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
    counted = [row for row in placement if not row.is_inserted]
    on_host = sum(row.target == HOST for row in counted)
    if on_host:
        found.append(("HOST_FALLBACK", f"{on_host} of {len(counted)} nodes run on the host"))
    return tuple(found)

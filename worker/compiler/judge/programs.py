"""The programs of one model: by one strategy or by a mixture, and the one that is kept.

    partition -> solve (express, lay out, group, schedule) -> weigh -> link -> elect -> code

Programs are compared before they are audited and coded; only the one that is kept is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import ceil
from typing import TypeAlias

from worker.compiler.cache import CacheEvent
from worker.compiler.control.compile import CompiledControl, compile_bodies, explained, whole
from worker.compiler.errors import CompilerError, Finding, Shortfall
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.passes import interface_of
from worker.compiler.heuristics import Heuristic
from worker.compiler.judge.compiled import CompiledModel, Ports
from worker.compiler.judge.elect import Election, Way, elect, only, ways_for
from worker.compiler.judge.figures import Caps, Figures, ProgramLimits
from worker.compiler.judge.link import PlannedCall, link
from worker.compiler.judge.pool import UnitPool
from worker.compiler.judge.solve import Counter, RegionSolver, Solved, Uncounted
from worker.compiler.judge.summaries import unit_summaries
from worker.compiler.judge.units import Unit
from worker.compiler.judge.verdict import recall, remember, verdict_key
from worker.compiler.machine import digest
from worker.compiler.machine.machine import Machine, PartitionMode
from worker.compiler.options import CompileOptions, Objective, PartitionChoice
from worker.compiler.partition.balance import NodeCosts
from worker.compiler.partition.host_work import host_flops
from worker.compiler.partition.hostless import require_host
from worker.compiler.partition.join import joined
from worker.compiler.partition.partition import all_on_host, partition
from worker.compiler.partition.plan import HOST, Part, Partitioning, Placement, RegionRule
from worker.compiler.partition.weigh import weigh
from worker.compiler.quantize.boundary import Converted
from worker.compiler.rejection import ReasonCode, Rejection


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The program that is kept, before it has kernels."""

    program: CompiledModel
    election: Election
    maker: ProgramMaker
    events: tuple[CacheEvent, ...]
    """What the cache said about the election."""


def schedule(
    source: OnnxModel,
    converted: Converted,
    parts: Partitioning | None,
    options: CompileOptions,
    pool: UnitPool,
    ports: Ports,
    units: Counter,
) -> Scheduled:
    """The best program for a simplified and converted model, or for a body of one.

    `source`: the model before conversion, which the host would run.  `parts`: the converted model's
    partitioning, where that is known already.

    Raises:
        CompilerError: no way has a program (the first way's error); TW-PLAN-003, none is within
            the limits; TW-UNSUP-001, the best leaves operators to the host, which was forbidden.
    """
    model = converted.model
    maker = ProgramMaker(source, converted, parts, options, pool, ports, units)
    caps = Caps.of(options)
    ways = ways_for(
        pool.entrants, options.objective, rules_of(pool.machine, options), caps,
        is_mixing=not pool.leaves_out(Heuristic.MIXTURES),
    )  # fmt: skip
    limits = ProgramLimits(caps, pool.machine.clock_hz)
    if len(ways) == 1:
        program, election = only(ways[0], maker.program, ports.whole, limits)
        return _allowed(Scheduled(program, election, maker, ()), options)
    field = tuple({e.name: e for e in (*pool.entrants, pool.last_resort)}.values())
    key = verdict_key(model, source, digest(pool.machine), field, options, ports.simulator)
    known, event = recall(ports.cache, key, ways, model.name)
    if known is not None:
        program = maker.program(known.way)
        return _allowed(Scheduled(program, known, maker, (event,)), options)
    program, election = elect(ways, maker.program, ports.whole, options.objective, limits)
    if not pool.fallbacks:  # a strategy's fault is told in every report
        remember(ports.cache, key, election)
    return _allowed(Scheduled(program, election, maker, (event,)), options)


def code(scheduled: Scheduled) -> CompiledModel:
    """The program with its kernels audited and coded.

    A kernel that breaks is replaced by another way, as everywhere.
    """
    election = scheduled.election
    program = scheduled.maker.program(election.way, is_coding=True)
    return replace(
        program,
        strategy=election.strategy if election.programs else program.made_by,
        programs=election.programs,
        cache_events=(*scheduled.events, *program.cache_events),
    )


class ProgramMaker:
    """Makes programs of one model in several ways, out of one pool of units.

    Args:
        source: the model before conversion, which the host would run.
        parts: the partitioning with nothing refused, where that is known already.
        units: hears of the units of the first program; the others have mostly the same ones.
    """

    def __init__(
        self,
        source: OnnxModel,
        converted: Converted,
        parts: Partitioning | None,
        options: CompileOptions,
        pool: UnitPool,
        ports: Ports,
        units: Counter,
    ) -> None:
        model = converted.model
        self._source = source
        self._converted = converted
        self._model = model
        self._options = options
        self._ports = ports
        self._units = units
        self.pool = pool
        self._machine = pool.machine
        self._solver = RegionSolver(model, pool, is_helping=ports.is_helping)
        self._parts: dict[_Asked, Partitioning] = {}
        """By what was refused so far, the rule, and whether neighbouring regions are one."""
        if parts is not None:
            self._parts[(), RegionRule.CRITERIA, False] = parts
        self._made: dict[tuple[tuple[Part, ...], tuple[str, ...], Objective], CompiledModel] = {}
        """Programs that are good for comparing, by parts, strategies and measure: several rules
        often end in the same regions."""
        inner = replace(options, fail_on_fallback=False, max_power_w=None, max_latency_ms=None)
        self._controls: tuple[CompiledControl[CompiledModel], ...] = compile_bodies(
            model,
            lambda body: code(
                schedule(body, Converted(body), None, inner, pool, ports, Uncounted())
            ),
            lambda body: body.is_offloading,
        )

    def program(self, way: Way, is_coding: bool = False) -> CompiledModel:
        """The program of a way; without `is_coding` it is good for comparing, and has no kernels.

        Cost: what the pool does not know yet is solved; then one link.
        """
        machine, model = self._machine, self._model
        if way.regions is RegionRule.HOST:
            return self._host_program()
        parts, solved = self._solved_parts(way, is_coding)
        if way.regions is RegionRule.WEIGHED and parts.regions:
            costs = node_costs(model, parts, solved, self._ports.figures, machine)
            weighable = _weighable(machine, self._options)
            weighed = weigh(model, machine, parts, costs, weighable)
            if way.spans_regions:
                weighed = joined(weighed, model, machine, mode_of(self._options))
            again = self._solved(weighed, way, is_coding)
            if not again.shortfalls:  # a smaller region may be laid out anew, into what misfits
                parts, solved = weighed, again
        self._units = Uncounted()
        known_as = parts.parts, way.names, way.measure
        if not is_coding and known_as in self._made:
            return self._made[known_as]
        placement = explained(_final_placement(parts, solved.view_nodes), self._controls)
        if self._options.fail_on_fallback and way.regions is not RegionRule.WEIGHED:
            refuse_fallback(placement)
        compiled = self._linked(self._converted, replace(parts, placement=placement), solved)
        if not is_coding:
            self._made[known_as] = compiled
        return compiled

    def _host_program(self) -> CompiledModel:
        """The user's model, as one host part but for control flow, whose bodies decide alone."""
        parts = all_on_host(self._source)
        parts = replace(parts, placement=explained(parts.placement, self._controls))
        converted = self._converted
        if converted.model is not self._source:
            converted = Converted(self._source, warnings=(_UNCONVERTED,))
        solver = RegionSolver(self._source, self.pool)
        solved = solver.solve(parts, self.pool.entrants, Objective.LATENCY, Uncounted(), False)
        return self._linked(converted, parts, solved)

    def _linked(self, converted: Converted, parts: Partitioning, solved: Solved) -> CompiledModel:
        """What was solved as one program of the form of the model that it is in."""
        model, machine, placement = converted.model, self._machine, parts.placement
        require_host(model, placement)
        compiled = CompiledModel(
            model=model,
            machine=machine,
            strategy="",  # whose kernels it has is said when it is elected
            partitioning=parts,
            units=solved.units,
            linked=link(model, solved.calls, solved.units, solved.graphs, machine),
            region_graphs=solved.graphs,
            constants=solved.constants,
            cache_events=self.pool.events,
            warnings=(*_warnings(machine, placement), *converted.warnings),
            conversions=converted.conversions,
            boundaries=converted.boundaries,
            quantised=converted.quantised,
            layouts=solved.layouts,
            source=self._source,
            interface=interface_of(model.ir),
            controls=self._controls,
            summaries=unit_summaries(solved.units, solved.calls),
            handed=solved.handed,
        )
        usable = machine.home.usable_bytes
        if compiled.home_bytes <= usable:
            return compiled
        # Each program fits alone.  Bodies that do not fit beside it run in ONNX Runtime.
        controls = whole(
            self._controls,
            f"its programs and the model's need {compiled.home_bytes} bytes of"
            f" {machine.home.name}, has {usable}",
        )
        parts = replace(parts, placement=explained(placement, controls))
        return replace(compiled, controls=controls, partitioning=parts)

    def _solved_parts(self, way: Way, is_coding: bool) -> tuple[Partitioning, Solved]:
        """Partition and solve until every operator on the accelerator fits its memories."""
        refused: dict[str, Rejection] = {}
        while True:
            parts = self._partitioned(refused, way.regions, way.spans_regions)
            solved = self._solved(parts, way, is_coding)
            if not solved.shortfalls:
                return parts, solved
            refused.update(
                (node, Rejection(ReasonCode.DOES_NOT_FIT, _sentence(shortfall)))
                for node, shortfall in solved.shortfalls
            )

    def _solved(self, parts: Partitioning, way: Way, is_coding: bool) -> Solved:
        return self._solver.solve(parts, way.entrants, way.measure, self._units, is_coding)

    def _partitioned(
        self, refused: Mapping[str, Rejection], rule: RegionRule, is_joined: bool
    ) -> Partitioning:
        """Partition with some nodes refused; once each, as several ways ask for the same."""
        if rule is RegionRule.WEIGHED:
            rule = RegionRule.CRITERIA  # it starts from there
        known_as = tuple(refused.items()), rule, is_joined
        if known_as not in self._parts:
            mode = mode_of(self._options)
            if rule is RegionRule.GREEDY:
                mode = PartitionMode.GREEDY
            self._parts[known_as] = (
                joined(self._partitioned(refused, rule, False), self._model, self._machine, mode)
                if is_joined
                else partition(self._model, self._machine, refused, mode)
            )
        return self._parts[known_as]


_Asked: TypeAlias = "tuple[tuple[tuple[str, Rejection], ...], RegionRule, bool]"
_UNCONVERTED = (
    "CONVERSION_UNUSED",
    "the user's model is best on the host as it is, so that nothing is converted",
)


def rules_of(machine: Machine, options: CompileOptions) -> tuple[RegionRule, ...]:
    """The rules whose programs are compared, for the mode that was asked for.

    The host stands for election where its costs are known by the objective: its time is, its energy
    where the spec gives it; its own memory and traffic are none of the accelerator's.
    """
    weighable = _weighable(machine, options)
    if not weighable:
        return (RegionRule.CRITERIA,)
    if len(weighable) < len(machine.targets):  # a named choice of one target binds the others
        return RegionRule.WEIGHED, RegionRule.CRITERIA
    accelerated = RegionRule.WEIGHED, RegionRule.CRITERIA, RegionRule.GREEDY
    is_energy = options.objective in (Objective.ENERGY, Objective.EDP)
    is_known = (
        machine.host.energy_pj_per_flop > 0
        if is_energy
        else (options.objective is Objective.LATENCY)
    )
    return (*accelerated, RegionRule.HOST) if is_known else accelerated


def mode_of(options: CompileOptions) -> PartitionMode | None:
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


def node_costs(
    model: OnnxModel,
    parts: Partitioning,
    solved: Solved,
    figures: Callable[[Unit], Figures],
    machine: Machine,
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
            cycles = figures(solved.units[call.unit]).cycles
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


def _allowed(scheduled: Scheduled, options: CompileOptions) -> Scheduled:
    """`scheduled`, unless it leaves operators to the host and that was forbidden."""
    if options.fail_on_fallback:
        refuse_fallback(scheduled.program.placement)
    return scheduled


def refuse_fallback(placement: tuple[Placement, ...]) -> None:
    """Check that the host has no operator of the user's.

    Raises:
        CompilerError: TW-UNSUP-001, naming every one and why.
    """
    fallen = [row for row in placement if row.target == HOST and not row.is_inserted]
    if not fallen:
        return
    findings = tuple(
        Finding(str(row.reason_code), row.reason, None, row.node, None, row.op_type)
        for row in fallen
    )
    misfits = [row.node for row in fallen if row.reason_code is ReasonCode.DOES_NOT_FIT]
    chosen = [r for r in fallen if r.reason_code in (ReasonCode.WEIGHED, ReasonCode.ALL_ON_HOST)]
    raise CompilerError(
        "TW-UNSUP-001",
        f"{len(fallen)} operators fall back to the host, the first is {fallen[0].node}"
        f" ({fallen[0].op_type}): {fallen[0].reason}",
        node=(misfits or [fallen[0].node])[0],
        limit=0,
        actual=len(fallen),
        remedy=_FORCED if len(chosen) == len(fallen) else None,
        findings=findings,
    )


_FORCED = "Drop --fail-on-fallback, or force the accelerator with --partition greedy."


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

"""Solve the regions of a partitioning: express, lay out, group, and find a unit for every group.

A `UnitPool` lives as long as one compile.  The compile may partition again (an operator fits no
memory, a region is not worth its transfers) and compiles bodies of control flow; what was solved
before is remembered by target and signature and not solved twice.

A strategy that breaks is not the user's end: another form of it, smaller groups and the strategy
for single operators follow, and the pool notes it (decisions/0017).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt
import onnx_ir

from worker.compiler.cache import Cache, CacheEvent
from worker.compiler.cost.bounds import bound_cycles
from worker.compiler.errors import InternalError, Shortfall
from worker.compiler.faults import Fallback, Fault, T, attempt
from worker.compiler.frontend.express import Expressed, express_region
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.qdq import QdqCluster, find_clusters
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import OpaqueOp, TensorOp
from worker.compiler.ir.region import Cuts, is_view
from worker.compiler.ir.signature import Canonical, canonicalize
from worker.compiler.judge.link import PlannedCall, PlannedHost
from worker.compiler.judge.units import Unit, UnitSolver
from worker.compiler.layout.lay_out import LayoutChange, lay_out
from worker.compiler.machine.machine import LaunchUnit, Machine
from worker.compiler.options import CompileOptions, Variant
from worker.compiler.partition.plan import CompositeKind, Part, Partitioning
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.stages import Grouping, check_grouping
from worker.compiler.strategies.base import Strategy
from worker.compiler.strategies.registry import strategy, strategy_for

_MIN_HALVED = 4
"""Operators of a group that does not fit, or is slow, and is still tried in halves."""


class Progress(Protocol):
    """What the pipeline tells its caller while it works."""

    def stage(self, name: str, state: str) -> None: ...

    def units(self, solved: int, cached: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Solved:
    """Every part of a partitioning as calls in execution order."""

    calls: tuple[PlannedCall | PlannedHost, ...]
    units: tuple[Unit, ...]
    graphs: tuple[Graph, ...]
    """One per accelerator part."""
    constants: Mapping[str, Callable[[], npt.NDArray[Any]]]
    shortfalls: tuple[tuple[str, Shortfall], ...]
    """(ONNX node, what does not fit): then the calls are not complete."""
    view_nodes: frozenset[str]
    """Nodes of accelerator parts for which no kernel runs."""
    layouts: tuple[tuple[int, LayoutChange], ...]
    """(region, change)."""


@dataclass(frozen=True, slots=True)
class _Region:
    part: Part
    expressed: Expressed
    grouping: Grouping
    solver: UnitSolver
    """By the chosen strategy."""
    single: UnitSolver
    """By the strategy that schedules operators one by one."""
    layouts: tuple[LayoutChange, ...]


class UnitPool:
    """Units of one compile by target and signature, nested programs included."""

    def __init__(self, machine: Machine, options: CompileOptions, cache: Cache) -> None:
        self.machine = machine
        self.strategy = strategy_for(options.strategy, options.variant)
        self.is_baseline = options.variant is not Variant.FULL
        self.fallback = strategy("naive")
        self.solver_of = {
            (target.name, way.name): UnitSolver.create(
                machine.restricted(target), way, options, cache
            )
            for target in machine.targets
            for way in dict.fromkeys((self.strategy, self.fallback))
        }
        self.plain_of: dict[tuple[str, str], UnitSolver] = {}
        """By simpler forms of the strategy, made when they are asked for: (target, version)."""
        self.best: dict[tuple[str, str, str, str], UnitSolver] = {}
        """Whose unit is the fastest, by what the strategy's own is known as."""
        self._options, self._cache = options, cache
        self.known: dict[tuple[str, str, str, str], Unit | Shortfall | Fault] = {}
        self.fallbacks: dict[Fallback, None] = {}
        """Every fault that was met, once, in the order in which they were."""

    def broke(self, nodes: Sequence[str], fault: Fault) -> None:
        """Note that another way is taken for some ONNX nodes."""
        self.fallbacks.setdefault(Fallback(tuple(nodes), fault))

    def plainer(
        self, target: str, solver: UnitSolver, schedule: Schedule | None, nodes: Sequence[str]
    ) -> UnitSolver | None:
        """A solver by a simpler form of another's strategy, if there is one worth trying."""
        way = _attempt(solver.strategy, "split", lambda: solver.strategy.plainer(schedule))
        if isinstance(way, Fault):
            self.broke(nodes, way)
            return None
        if way is None:
            return None
        key = target, way.version
        if key not in self.plain_of:
            self.plain_of[key] = UnitSolver.create(solver.machine, way, self._options, self._cache)
        return self.plain_of[key]

    @property
    def events(self) -> tuple[CacheEvent, ...]:
        """What the cache answered, target by target."""
        solvers = (*self.solver_of.values(), *self.plain_of.values())
        return tuple(event for solver in solvers for event in solver.events)


class RegionSolver:
    """Solves partitionings of one model from one pool of units."""

    def __init__(
        self,
        model: OnnxModel,
        pool: UnitPool,
        progress: Progress,
        unit_cycles: Callable[[Unit], int],
    ) -> None:
        self._model = model
        self._nodes = list(model.ir.graph)
        self._progress = progress
        self._pool = pool
        self._unit_cycles = unit_cycles

    def solve(self, parts: Partitioning) -> Solved:
        """Express and solve every accelerator part; host parts become PlannedHost.

        Cost: one expression per region; one schedule, lowering and kernel per new signature.
        """
        regions = [None if part.is_host else self._prepare(part) for part in parts.parts]
        total = sum(len(r.grouping.groups) for r in regions if r is not None)
        found = _Collector(total, self._progress)
        for part, region in zip(parts.parts, regions, strict=True):
            if region is None:
                found.calls.append(_host_call(part, self._nodes))
            else:
                self._solve_region(region, found)
        every_node = {
            self._nodes[k].name or "" for p in parts.parts if not p.is_host for k in p.nodes
        }
        return found.solved(frozenset(every_node - found.kernel_nodes))

    def _prepare(self, part: Part) -> _Region:
        solver = self._pool.solver_of[part.target, self._pool.strategy.name]
        single = self._pool.solver_of[part.target, self._pool.fallback.name]
        nodes = [self._nodes[k] for k in part.nodes]
        clusters = _clusters(part, nodes)
        expressed = express_region(nodes, part.outputs, self._model.opset, clusters)
        together = (*expressed.together, *self._composites(part, expressed.graph))
        changes: tuple[LayoutChange, ...] = ()
        policy = solver.machine.targets[0].layout
        if policy is not None:
            laid = lay_out(expressed, policy, together)
            expressed, changes, together = laid.expressed, laid.changes, laid.together
        grouping, solver = self._grouped(expressed.graph, together, solver, single)
        return _Region(part, expressed, grouping, solver, single, changes)

    def _grouped(
        self,
        graph: Graph,
        together: Sequence[tuple[str, ...]],
        solver: UnitSolver,
        single: UnitSolver,
    ) -> tuple[Grouping, UnitSolver]:
        """Groups by the chosen strategy, or where that breaks by the one for single operators."""
        nodes = tuple(dict.fromkeys(n for op in graph.ops for n in op.origin.nodes))

        def checked(way: UnitSolver) -> Grouping:
            grouping = way.strategy.group(graph, way.machine, together)
            check_grouping(grouping, graph)
            return grouping

        found = _attempt(solver.strategy, "group", lambda: checked(solver))
        if not isinstance(found, Fault):
            return found, solver
        self._pool.broke(nodes, found)
        found = _attempt(single.strategy, "group", lambda: checked(single))
        if isinstance(found, Fault):
            raise _no_way(nodes, found)
        return found, single

    def _composites(self, part: Part, graph: Graph) -> tuple[tuple[str, ...], ...]:
        """Operator names of each pattern composite, in graph order."""
        composite_of: dict[str, int] = {}
        rows = [c for c in part.composites if c.kind is CompositeKind.PATTERN]
        for number, composite in enumerate(rows):
            for k in composite.nodes:
                composite_of[self._nodes[k].name or ""] = number
        members: list[list[str]] = [[] for _ in rows]
        for op in graph.ops:
            owners = {composite_of.get(node, -1) for node in op.origin.nodes}
            if len(owners) == 1 and -1 not in owners:
                members[owners.pop()].append(op.name)
        return tuple(tuple(names) for names in members if len(names) > 1)

    def _solve_region(self, region: _Region, found: _Collector) -> None:
        graph = region.grouping.graph
        number = len(found.graphs)
        found.graphs.append(graph)
        found.layouts.extend((number, change) for change in region.layouts)
        found.constants.update(region.expressed.constants)
        cuts = Cuts.of(graph)
        for group in region.grouping.groups:
            before = len(self._pool.events)
            self._solve_group(region, cuts, group.ops, number, found)
            found.count(any(e.outcome == "miss" for e in self._pool.events[before:]))

    def _solve_group(
        self, region: _Region, cuts: Cuts, group: tuple[str, ...], number: int, found: _Collector
    ) -> None:
        """Calls of a group; where a kernel's code breaks, its operators are solved once more."""
        for names, solver in self._ways(region, cuts, group):
            calls = self._calls(region, cuts, names, solver, number, found)
            if isinstance(calls, Fault):
                self._pool.best.pop(
                    _known_as(region, region.solver, canonicalize(cuts.piece(names))), None
                )
                self._solve_group(region, cuts, names, number, found)
            else:
                found.calls.extend(calls)

    def _ways(
        self, region: _Region, cuts: Cuts, names: tuple[str, ...]
    ) -> list[tuple[tuple[str, ...], UnitSolver]]:
        """The kernels of a group: one for all where that simulates no slower than one each.

        The cost model sees less of stalls than the simulator does, so it does not decide this.
        What does not fit as one kernel, or is slower, is tried in halves.
        """
        apart: list[tuple[tuple[str, ...], UnitSolver]]
        apart = [((name,), region.single) for name in names]
        if len(names) == 1:
            return apart
        solver, whole = self._better(region, cuts, names)
        if isinstance(whole, Unit) and (
            self._pool.is_baseline or self._is_faster(region, cuts, names, whole)
        ):
            return [(names, solver)]
        halves: tuple[tuple[str, ...], ...] = ()
        if len(names) >= _MIN_HALVED:
            halves = self._halves(region, cuts, names)
        if len(halves) < 2:
            return apart
        return [way for half in halves for way in self._ways(region, cuts, half)]

    def _halves(
        self, region: _Region, cuts: Cuts, names: tuple[str, ...]
    ) -> tuple[tuple[str, ...], ...]:
        way = region.solver.strategy
        found = _attempt(way, "split", lambda: way.halves(cuts.piece(names)))
        if isinstance(found, Fault):
            self._pool.broke(_nodes(cuts, names), found)
            return ()
        is_sound = sorted(name for half in found for name in half) == sorted(names)
        if is_sound and max(map(len, found)) < len(names):
            return found
        if found != (names,):
            fault = Fault(way.name, way.version, "split", "halves are not a partition of the group")
            self._pool.broke(_nodes(cuts, names), fault)
        return ()

    def _better(
        self, region: _Region, cuts: Cuts, names: tuple[str, ...]
    ) -> tuple[UnitSolver, Unit | Shortfall | Fault]:
        """One kernel for a group, by the strategy or by a simpler form of it: the fastest.

        Programs are large: of two that are compared, only the better one is kept.
        """
        canonical = canonicalize(cuts.piece(names))
        asked = _known_as(region, region.solver, canonical)
        if asked in self._pool.best:
            best = self._pool.best[asked]
            return best, self._unit(region, cuts, names, best)[1]
        best = solver = region.solver
        _, whole = self._unit(region, cuts, names, solver)
        unit = whole
        # Without addresses for one form there may be some for another, and what breaks one may
        # not break another; nothing else helps.
        may_try = not isinstance(whole, Shortfall) or whole.resource.startswith("memory:")
        while may_try:
            schedule = unit.schedule if isinstance(unit, Unit) else None
            nodes = _nodes(cuts, names)
            plainer = self._pool.plainer(region.part.target, solver, schedule, nodes)
            if plainer is None:
                break
            solver = plainer
            _, unit = self._unit(region, cuts, names, solver)
            if not isinstance(unit, Unit):
                continue
            slower = solver
            if not isinstance(whole, Unit) or self._unit_cycles(unit) < self._unit_cycles(whole):
                slower, best, whole = best, solver, unit
            key = _known_as(region, slower, canonical)
            if isinstance(self._pool.known[key], Unit):
                del self._pool.known[key]
        self._pool.best[asked] = best
        return best, whole

    def _is_faster(self, region: _Region, cuts: Cuts, names: Sequence[str], whole: Unit) -> bool:
        """Whether one kernel each takes at least as long, launches included.

        An operator counts with its lower bound until it is solved; most are never solved, because
        the bounds of the others decide.
        """
        machine = region.solver.machine
        target = machine.targets[0]
        by_kernel = target.launch_unit is LaunchUnit.KERNEL
        launch = machine.launch_cycles(target) if by_kernel else 0
        limit = self._unit_cycles(whole) + launch
        bounds = [
            (bound_cycles(cuts.piece((name,)), machine), name)
            for name in names
            if not is_view(cuts.op(name), cuts.graph.tensors)
        ]
        apart = sum(bound + launch for bound, _ in bounds)
        # Largest first: they are furthest above their bounds.
        for bound, name in sorted(bounds, key=lambda found: -found[0]):
            if apart >= limit:
                return True
            _, unit = self._unit(region, cuts, (name,), region.single)
            if not isinstance(unit, Unit):
                return True
            apart += self._unit_cycles(unit) - bound
        return apart >= limit

    def _unit(
        self, region: _Region, cuts: Cuts, names: Sequence[str], solver: UnitSolver
    ) -> tuple[Canonical, Unit | Shortfall | Fault]:
        """Some operators and their unit, not coded yet: known, cached, or solved now."""
        canonical = canonicalize(cuts.piece(names))
        key = _known_as(region, solver, canonical)
        if key not in self._pool.known:
            self._pool.known[key] = solver.lowered(canonical, _label(cuts, names))
        unit = self._pool.known[key]
        if isinstance(unit, Fault):
            self._pool.broke(_nodes(cuts, names), unit)
        return canonical, unit

    def _calls(
        self,
        region: _Region,
        cuts: Cuts,
        names: Sequence[str],
        solver: UnitSolver,
        number: int,
        found: _Collector,
    ) -> list[PlannedCall] | Fault:
        """The call of one kernel; nothing when a single operator does not fit, which is noted.

        Raises:
            InternalError: TW-INT-004, a single operator's kernel broke: no other way is left.
        """
        ops = [cuts.op(name) for name in names]
        target = region.part.target
        if len(ops) == 1 and is_view(ops[0], cuts.graph.tensors):
            return [_view_call(ops[0], number, target)]
        origin_nodes = tuple(dict.fromkeys(n for op in ops for n in op.origin.nodes))
        canonical, unit = self._unit(region, cuts, names, solver)
        found.kernel_nodes.update(origin_nodes)
        if isinstance(unit, Shortfall):
            found.shortfalls.update((n, unit) for n in origin_nodes)
            return []
        if isinstance(unit, Unit):
            unit = solver.coded(unit)
            self._pool.known[_known_as(region, solver, canonical)] = unit
        if isinstance(unit, Fault):
            if len(ops) == 1:
                raise _no_way(origin_nodes, unit)
            self._pool.broke(origin_nodes, unit)
            return unit
        return [
            PlannedCall(
                found.index_of((target, unit.schedule.strategy, unit.signature), unit),
                canonical.tensor_of,
                origin_nodes,
                "+".join(dict.fromkeys(op.origin.op_type for op in ops)),
                number,
                target,
            )
        ]


class _Collector:
    """Grows the result of one `solve`."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.calls: list[PlannedCall | PlannedHost] = []
        self.graphs: list[Graph] = []
        self.constants: dict[str, Callable[[], npt.NDArray[Any]]] = {}
        self.shortfalls: dict[str, Shortfall] = {}
        self.kernel_nodes: set[str] = set()
        self.layouts: list[tuple[int, LayoutChange]] = []
        self._units: list[Unit] = []
        self._index: dict[tuple[str, str, str], int] = {}
        self._total = total
        self._progress = progress
        self._done = 0
        self._new = 0

    def index_of(self, key: tuple[str, str, str], unit: Unit) -> int:
        if key not in self._index:
            self._index[key] = len(self._units)
            self._units.append(unit)
        return self._index[key]

    def count(self, is_new: bool) -> None:
        self._done += 1
        self._new += is_new
        self._progress.units(self._new, self._done - self._new, self._total)

    def solved(self, view_nodes: frozenset[str]) -> Solved:
        return Solved(
            tuple(self.calls), tuple(self._units), tuple(self.graphs), self.constants,
            tuple(self.shortfalls.items()), view_nodes, tuple(self.layouts),
        )  # fmt: skip


def _known_as(
    region: _Region, solver: UnitSolver, canonical: Canonical
) -> tuple[str, str, str, str]:
    way = solver.strategy
    return region.part.target, way.name, way.version, canonical.signature


def _attempt(way: Strategy, step: str, work: Callable[[], T]) -> T | Fault:
    return attempt(way.name, way.version, step, work)


def _no_way(nodes: Sequence[str], fault: Fault) -> InternalError:
    named = ", ".join(nodes[:8]) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")
    return InternalError(
        "TW-INT-004",
        f"no strategy has a kernel for {named or 'an operator'}; the last, {fault.sentence}",
        node=nodes[0] if nodes else None,
    )


def _nodes(cuts: Cuts, names: Sequence[str]) -> tuple[str, ...]:
    """The ONNX nodes of some operators, each once."""
    return tuple(dict.fromkeys(n for name in names for n in cuts.op(name).origin.nodes))


def _label(cuts: Cuts, names: Sequence[str]) -> str:
    """What messages call a unit: its first ONNX node."""
    nodes = [node for name in names for node in cuts.op(name).origin.nodes]
    return nodes[0] if nodes else names[0]


def _clusters(part: Part, nodes: Sequence[onnx_ir.Node]) -> tuple[QdqCluster, ...]:
    """The clusters of the region that partitioning has accepted, by position in the region."""
    accepted = {c.nodes for c in part.composites if c.kind is CompositeKind.CLUSTER}
    if not accepted:
        return ()
    return tuple(
        cluster
        for cluster in find_clusters(nodes, part.outputs)
        if tuple(part.nodes[k] for k in cluster.nodes) in accepted
    )


def _view_call(op: TensorOp | OpaqueOp, region: int, target: str) -> PlannedCall:
    assert isinstance(op, TensorOp)
    return PlannedCall(
        None, (("src", op.reads[0].tensor), ("dst", op.write.tensor)), op.origin.nodes,
        op.origin.op_type, region, target,
    )  # fmt: skip


def _host_call(part: Part, nodes: Sequence[onnx_ir.Node]) -> PlannedHost:
    return PlannedHost(
        part.nodes,
        part.inputs,
        part.outputs,
        tuple(nodes[k].name or "" for k in part.nodes),
        tuple(nodes[k].op_type for k in part.nodes),
    )

"""Solve the regions of a partitioning: express, lay out, and choose a kernel for every operator.

What was solved before is remembered by the pool.  Where several strategies may win, a region is put
together of their groups by the cheapest way through it (`mixture`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt
import onnx_ir

from worker.compiler.errors import InternalError, Shortfall
from worker.compiler.faults import Fault
from worker.compiler.frontend.express import Expressed, express_region
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.qdq import QdqCluster, find_clusters
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Tensor, TensorOp
from worker.compiler.ir.region import Cuts, is_view
from worker.compiler.judge.entrants import Entrant
from worker.compiler.judge.link import PlannedCall, PlannedHost
from worker.compiler.judge.mixture import Cost, cheapest, states_of
from worker.compiler.judge.pool import UnitKey, UnitPool
from worker.compiler.judge.regions import (
    Cover,
    Kernel,
    Pieces,
    Region,
    Weigher,
    nodes_of,
    try_step,
)
from worker.compiler.judge.units import Unit
from worker.compiler.layout.lay_out import LayoutChange, lay_out
from worker.compiler.options import Objective
from worker.compiler.partition.instructions import with_instructions
from worker.compiler.partition.plan import CompositeKind, Part, Partitioning


class Counter(Protocol):
    """Hears how many units are solved."""

    def units(self, solved: int, cached: int, total: int) -> None: ...


class Uncounted:
    """Units that nobody is told of."""

    def units(self, solved: int, cached: int, total: int) -> None:
        """Forget it."""
        del solved, cached, total


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
    handed: tuple[HandedOver, ...] = ()
    """Kernels that are another strategy's than their groups'."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Operators that a strategy has a group for and no kernel, or a worse one."""

    nodes: tuple[str, ...]
    """ONNX nodes, in graph order."""
    strategy: str
    to: str
    """The strategy whose kernels run."""
    why: str


class _Laid(NamedTuple):
    """A part as operators of the algebra, laid out."""

    region: Expressed
    layouts: tuple[LayoutChange, ...]
    together: tuple[tuple[str, ...], ...]
    """Names of operators that run as one (composites)."""


class RegionSolver:
    """Solves partitionings of one model from one pool of units."""

    def __init__(self, model: OnnxModel, pool: UnitPool, *, is_helping: bool = False) -> None:
        self._model = model
        self._is_helping = is_helping
        self._nodes = list(model.ir.graph)
        self.pool = pool
        self._expressed: dict[Part, _Laid] = {}
        self._grouped: dict[tuple[Part, str], Pieces | Fault] = {}
        """By part and strategy."""
        self._covers: dict[tuple[Part, str, Objective], Cover] = {}
        """By part, strategy and measure: the passes of one compile ask for the same ones."""

    def solve(
        self,
        parts: Partitioning,
        entrants: Sequence[Entrant],
        measure: Objective,
        counter: Counter,
        is_coding: bool = True,
    ) -> Solved:
        """Express and solve every accelerator part; host parts become PlannedHost.

        `measure` is an additive one.  Without `is_coding` units are only good for comparing: they
        are not audited and have no kernels.  Cost: one expression per region; per new signature a
        schedule and a lowering of every candidate of every entrant, and one kernel.
        """
        regions = [
            None if part.is_host else self._prepare(part, entrants, measure) for part in parts.parts
        ]
        total = sum(len(c.grouping.groups) for r in regions if r is not None for c in r.covers)
        found = _Collector(total, counter, is_coding)
        if self._is_helping:
            self._from_the_end([region for region in regions if region is not None])
        for part, region in zip(parts.parts, regions, strict=True):
            if region is None:
                found.calls.append(_host_call(part, self._nodes))
            else:
                self._solve_region(region, found)
        every_node = {
            self._nodes[k].name or "" for p in parts.parts if not p.is_host for k in p.nodes
        }
        return found.solved(frozenset(every_node - found.kernel_nodes))

    def _from_the_end(self, regions: Sequence[Region]) -> None:
        """Solve every candidate, those first that whoever is helped comes to last."""
        for region in reversed(regions):
            weigher = Weigher(self.pool, region.part.target)
            for cover in reversed(region.covers):
                for group in reversed(cover.grouping.groups):
                    weigher.cost(cover, group.ops)

    def _prepare(self, part: Part, entrants: Sequence[Entrant], measure: Objective) -> Region:
        """The region of a part, grouped by every strategy that can; else by the last resort."""
        if part not in self._expressed:
            self._expressed[part] = self._express(part, entrants[0])
        expressed, changes, _ = self._expressed[part]
        nodes = tuple(dict.fromkeys(n for op in expressed.graph.ops for n in op.origin.nodes))
        covers: list[Cover] = []
        fault: Fault | None = None
        asked = {entrant.name for entrant in entrants}
        field = {entrant.name: entrant for entrant in (*entrants, self.pool.last_resort)}
        for name, entrant in field.items():
            if covers and name not in asked:
                break
            found = self._cover(part, entrant, measure)
            if isinstance(found, Fault):
                fault = found
                self.pool.broke(nodes, found)
            else:
                covers.append(found)
        if not covers:
            assert fault is not None
            raise _no_way(nodes, fault)
        return Region(part, expressed, tuple(covers), changes)

    def _express(self, part: Part, entrant: Entrant) -> _Laid:
        nodes = [self._nodes[k] for k in part.nodes]
        clusters = _clusters(part, nodes)
        machine = self.pool.solver(part.target, entrant).machine
        expressed = with_instructions(
            express_region(nodes, part.outputs, self._model.opset, clusters),
            part, self._nodes, machine,
        )  # fmt: skip
        together = (*expressed.together, *self._composites(part, expressed.graph))
        policy = machine.targets[0].layout
        if policy is None:
            return _Laid(expressed, (), together)
        laid = lay_out(expressed, policy, together)
        return _Laid(laid.expressed, laid.changes, laid.together)

    def _cover(self, part: Part, entrant: Entrant, measure: Objective) -> Cover | Fault:
        known_as = part, entrant.name, measure
        if known_as not in self._covers:
            grouped = self._groups(part, entrant)
            if isinstance(grouped, Fault):
                return grouped
            self._covers[known_as] = Cover(entrant, grouped, measure)
        return self._covers[known_as]

    def _groups(self, part: Part, entrant: Entrant) -> Pieces | Fault:
        known_as = part, entrant.name
        if known_as not in self._grouped:
            machine = self.pool.solver(part.target, entrant).machine
            expressed, _, together = self._expressed[part]
            asked = partial(entrant.group, expressed.graph, machine, together)
            found = try_step(entrant, "group", asked)
            self._grouped[known_as] = (
                found if isinstance(found, Fault) else Pieces(found, Cuts.of(found.graph))
            )
        return self._grouped[known_as]

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

    def _solve_region(self, region: Region, found: _Collector) -> None:
        number = len(found.graphs)
        weigher = Weigher(self.pool, region.part.target)
        taken = self._taken(region.covers, weigher, found)
        found.graphs.append(_graph_of(taken))
        found.layouts.extend((number, change) for change in region.layouts)
        found.constants.update(region.expressed.constants)
        for cover, group in taken:
            before = self.pool.num_missed
            self._solve_group(region.part.target, cover, group, number, weigher, found)
            if len(region.covers) == 1:
                found.count(self.pool.num_missed > before)

    def _taken(
        self, covers: Sequence[Cover], weigher: Weigher, found: _Collector
    ) -> tuple[tuple[Cover, tuple[str, ...]], ...]:
        """The groups that run, in order."""
        if len(covers) == 1:
            return tuple((covers[0], group.ops) for group in covers[0].grouping.groups)
        costs: list[list[Cost]] = []
        for cover in covers:
            costs.append([])
            for group in cover.grouping.groups:
                before = self.pool.num_missed
                costs[-1].append(weigher.cost(cover, group.ops))
                found.count(self.pool.num_missed > before)
        path = cheapest([states_of(cover.grouping) for cover in covers], costs)
        return tuple(
            (covers[step.entrant], covers[step.entrant].grouping.groups[step.group].ops)
            for step in path
        )

    def _solve_group(
        self,
        target: str,
        cover: Cover,
        group: tuple[str, ...],
        number: int,
        weigher: Weigher,
        found: _Collector,
    ) -> None:
        """Calls of a group; where a kernel's code breaks, the group is decided about anew."""
        while True:
            calls: list[PlannedCall] = []
            for kernel in weigher.kernels(cover, group):
                made = self._calls(target, cover, kernel, number, weigher, found)
                if isinstance(made, Fault):
                    weigher.forget(cover, group, kernel.ops)
                    break
                calls.extend(made)
            else:
                found.calls.extend(calls)
                return

    def _calls(
        self,
        target: str,
        cover: Cover,
        kernel: Kernel,
        number: int,
        weigher: Weigher,
        found: _Collector,
    ) -> list[PlannedCall] | Fault:
        """The call of one kernel; nothing when a single operator does not fit, which is noted.

        Raises:
            InternalError: TW-INT-004, a single operator's kernel broke: no other way is left.
        """
        ops = [cover.cuts.op(name) for name in kernel.ops]
        if len(ops) == 1 and is_view(ops[0], cover.cuts.graph.tensors):
            return [_view_call(ops[0], number, target)]
        origin_nodes = nodes_of(cover.cuts, kernel.ops)
        candidate, unit = weigher.best(cover, kernel.ops, kernel.entrant)
        found.kernel_nodes.update(origin_nodes)
        if isinstance(unit, Shortfall):
            found.shortfalls.update((n, unit) for n in origin_nodes)
            return []
        canonical = cover.pieces.canonical(kernel.ops)
        if isinstance(unit, Unit) and found.is_coding:
            unit = self.pool.solver(target, kernel.entrant).coded(unit)
            key = UnitKey(target, kernel.entrant.name, canonical.signature, candidate)
            self.pool.known[key] = unit
        if isinstance(unit, Fault):
            if kernel.entrant is self.pool.last_resort and len(ops) == 1:
                raise _no_way(origin_nodes, unit)
            self.pool.broke(origin_nodes, unit)
            return unit
        if kernel.why and kernel.entrant is not cover.entrant:
            handed = HandedOver(
                origin_nodes, cover.entrant.name, unit.schedule.strategy, kernel.why
            )
            found.handed[handed] = None
        return [
            PlannedCall(
                found.index_of((target, unit.schedule.strategy, unit.signature), unit),
                canonical.tensor_of,
                origin_nodes,
                "+".join(dict.fromkeys(op.origin.op_type for op in ops)),
                number,
                target,
                tuple(op.origin for op in cover.cuts.piece(kernel.ops).ops),
            )
        ]


def _graph_of(taken: Sequence[tuple[Cover, tuple[str, ...]]]) -> Graph:
    """The graph that runs: one strategy's own, or the operators of the groups that were taken."""
    first = taken[0][0].grouping.graph if taken else None
    assert first is not None, "a region has operators"
    if all(cover is taken[0][0] for cover, _ in taken):
        return first
    ops = tuple(cover.cuts.op(name) for cover, group in taken for name in group)
    tensors: dict[str, Tensor] = {}
    constants: dict[str, None] = {}
    for cover, group in taken:
        piece = cover.cuts.piece(group)
        tensors.update(piece.tensors)
        constants.update(dict.fromkeys(piece.constants))
    for name in (*first.inputs, *first.outputs):
        tensors.setdefault(name, first.tensors[name])
    return Graph.build(
        _named_apart(ops), tuple(tensors.values()), first.inputs, first.outputs, tuple(constants)
    )


def _named_apart(ops: Sequence[TensorOp]) -> tuple[TensorOp, ...]:
    """Operators of several graphs may have one name."""
    return tuple(replace(op, name=f"{op.name}@{k}") for k, op in enumerate(ops))


class _Collector:
    """Grows the result of one `solve`."""

    def __init__(self, total: int, counter: Counter, is_coding: bool) -> None:
        self.is_coding = is_coding
        self.calls: list[PlannedCall | PlannedHost] = []
        self.graphs: list[Graph] = []
        self.constants: dict[str, Callable[[], npt.NDArray[Any]]] = {}
        self.shortfalls: dict[str, Shortfall] = {}
        self.kernel_nodes: set[str] = set()
        self.layouts: list[tuple[int, LayoutChange]] = []
        self.handed: dict[HandedOver, None] = {}
        self._units: list[Unit] = []
        self._index: dict[tuple[str, str, str], int] = {}
        self._total = total
        self._counter = counter
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
        self._counter.units(self._new, self._done - self._new, self._total)

    def solved(self, view_nodes: frozenset[str]) -> Solved:
        return Solved(
            tuple(self.calls), tuple(self._units), tuple(self.graphs), self.constants,
            tuple(self.shortfalls.items()), view_nodes, tuple(self.layouts), tuple(self.handed),
        )  # fmt: skip


def _no_way(nodes: Sequence[str], fault: Fault) -> InternalError:
    named = ", ".join(nodes[:8]) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")
    return InternalError(
        "TW-INT-004",
        f"no strategy has a kernel for {named or 'an operator'}; the last, {fault.sentence}",
        node=nodes[0] if nodes else None,
    )


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


def _view_call(op: TensorOp, region: int, target: str) -> PlannedCall:
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

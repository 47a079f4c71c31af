"""Lower bounds on a unit's cycles, whatever its schedule, from its operators and the machine."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from worker.compiler.cost.compute import able_engines, keeps_sums, pace_of
from worker.compiler.cost.traffic import compulsory_bytes
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.machine.machine import Engine, EngineKind, Machine


def bound_cycles(graph: Graph, machine: Machine) -> int:
    """The larger of two bounds: the compute peak of all cores, and compulsory traffic through the
    home level's ports.

    Compute: each operator on its fastest kind of engine, all engines of that kind busy, no padding
    and no startup, but what a described array loads or its ports take longer for; different kinds
    may overlap, so the busiest kind counts.  For a single operator
    no schedule is faster; of several, one that moves work to an idler kind may be.
    """
    by_kind: dict[EngineKind, float] = {}
    for op in graph.ops:
        kind, cycles = _op_cycles(op, graph, machine)
        by_kind[kind] = by_kind.get(kind, 0.0) + cycles
    compute = ceil(max(by_kind.values(), default=0.0) / machine.num_cores)
    read, written = compulsory_bytes(graph)
    home = machine.home
    return max(compute, int(home.transfer_cycles(read, written, home.instances)))


def _op_cycles(op: TensorOp, graph: Graph, machine: Machine) -> tuple[EngineKind, float]:
    """(kind, cycles of one core) of the fastest kind; no cycles where no engine can run it."""
    able = able_engines(op, machine, graph.tensors)
    best: tuple[EngineKind, float] | None = None
    for kind in (EngineKind.MATRIX, EngineKind.VECTOR, EngineKind.SCALAR):
        paces = [pace_of(op, e, graph.tensors) for e in able if e.kind is kind]
        if not paces:
            continue
        cycles = op.num_points / sum(1 / pace.point_cycles for pace in paces)
        cycles = max(cycles, _fed_cycles(op, [e for e in able if e.kind is kind], graph))
        if best is None or cycles < best[1]:
            best = (kind, cycles)
    return best or (EngineKind.SCALAR, 0.0)


def _fed_cycles(op: TensorOp, engines: Sequence[Engine], graph: Graph) -> float:
    """What loads and ports of engines that share an operator take at least; 0 if one's are free."""
    extents = tuple(axis.extent for axis in op.domain)
    shares = 0.0
    for engine in engines:
        pace = pace_of(op, engine, graph.tensors, stays=keeps_sums(op, engine))
        least = pace.least(extents) if pace.folding or pace.rows or pace.streams else 0
        if not least:
            return 0.0
        shares += 1 / least
    return 1 / shares

"""What a kernel takes at least, whatever its schedule: the tight lower bound, and why it holds.

**Over which schedules.**  All legal ones of one kernel's operators: any tiles, loops, orders,
cores, lanes, recomputation, placement of tensors, and any operator (or part of one) on any engine
of `able_engines`.  Not over other cuts into kernels, nor over other operators with the same result.

**Engines.**  An instruction over a box costs `startup + ceil(padded / speed)` (`compute.py`), and
the boxes of an operator cover its domain (the verifier's rule `coverage`).  So on every core an
engine that works until cycle T has done at most T - startup cycles of pure work, in whole arrays.

- A contraction on an array of R rows (depth) and C columns.  The boxes around a point of the result
  cover its depth K, and `up` is subadditive: up(k, R) of them sums to at least up(K, R).  Columns
  can always be filled, since lanes spread any axis over them, unless the whole result has fewer
  than C points.  So R * floor(K / R) points of each depth cost the full rate, and the other K mod R
  together as much as R: two `Piece`s.  The cheap points come first, so what is paid for a part is
  convex, and the price also holds where other engines take the rest.
- On an array with a dataflow the same holds along the axis that it walks first; to it come what its
  folds need besides, or its ports (`folds.py`, `Least`).
- Everything else costs its elementary operations, or its elements where the engine states an output
  stage that takes it, or the bytes of a point through its engine's ports, whichever takes longer.
  Two exceptions favour the chip.  An element-wise operator from integers to
  integers counts as none where another such operator reads its result: bias, requantisation,
  activation and addition may be one pass.  And it counts as one operation at the fastest rate of
  any type that it touches, also where a stage takes it: specs of integer accelerators may rate
  their units in elements, and a quantiser that gives summands one scale has the faster sums.

**Which engine.**  Let a point cost a on the array and b beside it.  For any weight y in [0, 1], the
sum of min((1 - y) a, y b) is at most the work that both sides do until T, weighted by 1 - y and y
(weak duality of linear programs); y is taken where the best fractional assignment balances.  The
engines of one side are pooled: at each operator their speeds add up.

**Bytes.**  Every element of an input or a constant that some point reads must leave home once,
every result must get there once, at the width of home's ports, or of all first steps away from it.
Where reads and writes share a port, its time is the sum of both.  Of several memories a step from
home, each with n instances that take in a and give out b bytes a cycle, A and B in all: weigh bytes
in by 1 / A and bytes out by 1 / B.  In T cycles one of them moves at most T n max(a / A, b / B)
(with a port for each the sum of these), and together they must move the weight of all bytes.

What is made inside might never leave the chip and is not counted.

**Latency.**  Where engines cannot address home, nothing is computed before a transfer of a cycle
and its latency, if every point reads something that comes from outside.  After the last
computation there is a transfer of the same kind, if every point is needed for a result.

Source: our own; the duality is that of fractional scheduling on unrelated machines.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, prod

from worker.compiler.cost.compute import EngineRate, able_engines, keeps_sums, pace_of, rate
from worker.compiler.cost.touched import touched_elems
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.ir.scalar import slots_read
from worker.compiler.machine.dma import dma_engine
from worker.compiler.machine.machine import Engine, EngineKind, Machine, MemoryLevel
from worker.compiler.schedule.walk import reach_memory

LATENCY = "latency"
_SLACK = 1e-9
"""Relative: a rounding error of floats must not add a cycle to a bound."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Points of one operator that cost the same."""

    points: int
    on_array: float
    """Cycles a point on the matrix engines of one core; inf: they cannot."""
    beside: float
    """The same on all other engines of a core."""


@dataclass(frozen=True, slots=True)
class Side:
    """The matrix engines of a core, or all its others."""

    names: tuple[str, ...]
    startup_cycles: int
    granule_cycles: float
    """Work comes in multiples of it; 0: in any amount."""

    def until(self, cycles: int) -> float:
        """Cycles of work that one core has done by then."""
        free = max(0, cycles - self.startup_cycles)
        if not self.granule_cycles:
            return free
        return floor(free / self.granule_cycles * (1 + _SLACK)) * self.granule_cycles


@dataclass(frozen=True, slots=True)
class Work:
    """What the operators of a kernel demand of a core's engines."""

    pieces: tuple[Piece, ...]
    array: Side
    beside: Side


Parts = tuple[tuple[str, int], ...]
"""(name, cycles), which sum to a bound."""


def kernel_floor(graph: Graph, machine: Machine) -> Parts:
    """Cycles that no schedule of `graph` as one kernel can beat, by what they are spent on.

    `compute:ENGINE` (`compute:A+B` where two share the work) or `traffic:LEVEL`, whichever takes
    longer, and `latency`.  Launches are not in it.

    Units: cycles.  Cost: n log n in operators.
    """
    able = [e for op in graph.ops for e in able_engines(op, machine, graph.tensors)]
    is_apart = machine.home.name not in {reach_memory(e.name, machine) for e in able}
    into, away = (_first_step(machine, outward=way) if is_apart else 0 for way in (False, True))
    signal = machine.engine_signal_cycles if is_apart and _has_movers(machine) else 0
    head = into + signal if _all_wait(graph) else 0
    tail = signal + away if _all_needed(graph) else 0
    least = 1 + min((engine.startup_cycles for engine in able), default=0)
    name, cycles = compute_floor((work_of(graph, machine),), machine.num_cores)
    terms = [(name, cycles, head + tail)]
    if is_apart:
        inward, outward = (sum(bytes_of.values()) for bytes_of in needed_bytes(graph))
        # After its last byte a fetch still has its latency, and the byte is computed with, stored.
        terms.append(
            (*_port(machine, inward, "read"), into - 1 + (signal + least + tail if tail else 0))
        )
        terms.append((*_port(machine, outward, "write"), head + least + signal + away - 1))
        # Whatever is last on a port of both directions has its latency behind it.
        terms.append((*_shared_port(machine, inward, outward), min(into, away) - 1))
    if not any(cycles for _, cycles, _ in terms):
        return ()
    name, cycles, latency = max((t for t in terms if t[1]), key=lambda t: t[1] + t[2])
    return tuple((part, spent) for part, spent in ((name, cycles), (LATENCY, latency)) if spent)


def work_of(graph: Graph, machine: Machine) -> Work:
    """What the engines of a core have to do, by the price list of `compute.py`."""
    found: list[Piece] = []
    sides: tuple[dict[str, int], dict[str, int]] = ({}, {})
    granules: tuple[set[float], set[float]] = (set(), set())
    for op in graph.ops:
        paces = [
            (engine, pace_of(op, engine, graph.tensors, stays=keeps_sums(op, engine)))
            for engine in able_engines(op, machine, graph.tensors)
        ]
        if not paces:
            continue  # no schedule has it, so nothing is claimed of one
        array = [pace for _, pace in paces if pace.roles is not None]
        single = [
            _point_cycles(graph, op, engine, pace) for engine, pace in paces if pace.roles is None
        ]
        for engine, pace in paces:
            started = pace.startup_cycles + _once(op, pace)
            side = sides[pace.roles is None]
            side[engine.name] = min(started, side.get(engine.name, started))
        # Folds have no common measure: their work comes in any amount.
        granules[0].update(0.0 if p.folding or p.rows else prod(p.array) / p.speed for p in array)
        granules[1].update(single)
        found += _pieces(op, array, _pooled(single))
    return Work(tuple(found), *map(_side, sides, granules))


def compute_floor(works: Sequence[Work], num_cores: int) -> tuple[str, int]:
    """(name, cycles) that the engines of `num_cores` cores need at least for all of some work.

    Several are on the same machine, one after the other or side by side.
    """
    pieces = [p for work in works for p in work.pieces if p.points]
    array, beside = (_joint([getattr(w, side) for w in works]) for side in ("array", "beside"))
    weight = _balance(pieces)
    demand = sum(p.points * _least(p, weight) for p in pieces) / num_cores * (1 - _SLACK)

    def done(cycles: int) -> float:
        return (1 - weight) * array.until(cycles) + weight * beside.until(cycles)

    low, high = 0, 1
    while done(high) < demand:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if done(middle) >= demand else (middle, high)
    used = (*array.names * (weight < 1), *beside.names * (weight > 0))
    return f"compute:{'+'.join(used)}", high if demand else 0


def needed_bytes(graph: Graph) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of inputs and constants that some point reads, and of results that some point writes,
    by tensor: of a concatenation, a kernel may make a part only."""
    inward: dict[str, int] = {}
    outward: dict[str, int] = {}
    for op in graph.ops:
        # Where something is looked up, any slot may hold the indices.
        slots = range(len(op.reads)) if op.has_lookup else slots_read(op.body)
        for access in (op.reads[slot] for slot in slots):
            tensor = graph.tensors[access.tensor]
            if tensor.name in graph.inputs or tensor.name in graph.constants:
                size = touched_elems(op, access, tensor.shape) * tensor.dtype.size_bytes
                inward[tensor.name] = max(inward.get(tensor.name, 0), size)
        tensor = graph.tensors[op.write.tensor]
        if tensor.name in graph.outputs:
            # Several operators write apart.
            size = touched_elems(op, op.write, tensor.shape) * tensor.dtype.size_bytes
            outward[tensor.name] = outward.get(tensor.name, 0) + size
    return inward, outward


def _pieces(op: TensorOp, array: Sequence[EngineRate], beside: float) -> list[Piece]:
    if len(array) != 1:
        # Arrays of different shapes: each at its cheapest points.
        return [Piece(op.num_points, _pooled([_on_array(op, p)[0][1] for p in array]), beside)]
    return [Piece(points, cycles, beside) for points, cycles in _on_array(op, array[0])]


def _on_array(op: TensorOp, pace: EngineRate) -> list[tuple[int, float]]:
    """(points, cycles a point), the cheapest first: what padding no tiling avoids."""
    roles = pace.roles
    assert roles is not None
    if pace.folding is not None:
        return _on_folds(op, pace)
    if pace.rows is not None:
        return [(op.num_points, pace.rows.point_cycles(_extents(op)))]
    depth, rows = (prod(op.domain[k].extent for k in group) for group in (roles.depth, roles.rows))
    results = op.num_points // depth
    match pace.array:
        case (tall, wide):
            padding = max(1.0, wide / results)
        case (high, wide, tall):
            # Rows are no lanes: few of them leave their side of the array empty.
            padding = max(1.0, high / rows, high * wide / results)
        case (wide,):
            tall, padding = 1, max(1.0, wide / results)
        case _:
            tall, padding = 1, 1.0
    full, rest = depth // tall * tall, depth % tall
    price = padding / pace.speed
    return [(n * results, p) for n, p in ((full, price), (rest, price * tall / max(1, rest))) if n]


def _on_folds(op: TensorOp, pace: EngineRate) -> list[tuple[int, float]]:
    least, first = pace.least_of(_extents(op))
    whole, rest = first // least.tall * least.tall, first % least.tall
    others = op.num_points // first
    last = least.padded * least.tall / max(1, rest) + least.even
    pieces = ((whole, least.padded + least.even), (rest, last))
    return [(n * others, price) for n, price in pieces if n]


def _once(op: TensorOp, pace: EngineRate) -> int:
    """Cycles of every instruction, beside its start, that no fold has."""
    return 0 if pace.folding is None else pace.least_of(_extents(op))[0].once


def _extents(op: TensorOp) -> tuple[int, ...]:
    return tuple(axis.extent for axis in op.domain)


def _point_cycles(graph: Graph, op: TensorOp, engine: Engine, pace: EngineRate) -> float:
    """Cycles of one point on an engine that takes points one by one."""
    if _is_output_stage(graph, op):
        types = {graph.tensors[a.tensor].dtype for a in (*op.reads, op.write)}
        if any(
            _is_output_stage(graph, other) and other.num_points >= op.num_points
            for other in graph.ops
            if op.write.tensor in other.input_names()
        ):
            return 0.0
        return 1 / max(pace.speed, *(rate(engine, dtype) for dtype in types))
    if pace.streams is None:
        return pace.point_cycles
    return max(pace.point_cycles, pace.streams.per_point(_extents(op)))


def _is_output_stage(graph: Graph, op: TensorOp) -> bool:
    """Element by element from integers to integers."""
    if op.reduce is not None or not op.reads:
        return False
    read = max((graph.tensors[a.tensor] for a in op.reads), key=lambda t: t.num_elems)
    return not (read.dtype.is_float or graph.tensors[op.write.tensor].dtype.is_float)


def _pooled(prices: Sequence[float]) -> float:
    """Cycles a point where all of these work side by side; inf without any."""
    if not prices:
        return inf
    return 0.0 if 0.0 in prices else 1 / sum(1 / price for price in prices)


def _side(engines: Mapping[str, int], granules: Collection[float]) -> Side:
    """`engines`: cycles before the work of each begins."""
    startup = min(engines.values(), default=0)
    is_even = len(engines) == 1 == len(granules)
    return Side(tuple(engines), startup, next(iter(granules)) if is_even else 0.0)


def _joint(sides: Sequence[Side]) -> Side:
    """One side for the work of several."""
    used = [side for side in sides if side.names]
    names = tuple(dict.fromkeys(name for side in used for name in side.names))
    granules = {side.granule_cycles for side in used}
    is_even = len(names) == 1 == len(granules)
    startup = min((side.startup_cycles for side in used), default=0)
    return Side(names, startup, next(iter(granules)) if is_even else 0.0)


def _least(piece: Piece, weight: float) -> float:
    """Weighted cycles of a point on the better side."""
    array = (1 - weight) * piece.on_array if piece.on_array < inf else inf
    return min(array, weight * piece.beside if piece.beside < inf else inf)


def _balance(pieces: Sequence[Piece]) -> float:
    """The weight of what is beside the array at which both sides are equally long busy.

    Pieces go to the array in the order of how much better it is at them, until the others take no
    longer for the rest: where a piece is split, the two sides' prices of it balance.
    """
    order = sorted(pieces, key=lambda p: (p.beside == 0, p.on_array / p.beside if p.beside else 0))
    rest = sum(p.points * p.beside for p in order if p.on_array == inf)
    both = [p for p in order if p.on_array < inf and p.beside < inf]
    taken = sum(p.points * p.on_array for p in order if p.beside == inf)
    behind = rest + sum(p.points * p.beside for p in both)
    for piece in both:
        taken += piece.points * piece.on_array
        behind -= piece.points * piece.beside
        if taken >= behind:
            before, after = taken - piece.points * piece.on_array, behind
            if before >= after + piece.points * piece.beside:
                break
            return piece.on_array / (piece.on_array + piece.beside)
    return 1.0 if behind > taken else 0.0


def _all_wait(graph: Graph) -> bool:
    """Whether nothing can be computed before something was brought in.

    A point that reads outside its tensor needs nothing of it.
    """
    brought = {*graph.inputs, *graph.constants}
    for op in graph.ops:
        reads = [op.reads[slot] for slot in slots_read(op.body)]
        if not any(read.fill is None and read.tensor in brought for read in reads):
            return False
        brought.add(op.write.tensor)
    return True


def _all_needed(graph: Graph) -> bool:
    """Whether every point of every operator is needed for a result."""
    made = {op.write.tensor for op in graph.ops} - set(graph.outputs)
    for op in graph.ops:
        for slot in slots_read(op.body):
            access = op.reads[slot]
            tensor = graph.tensors[access.tensor]
            is_known = not any(e.has_lookup for e in access.index)
            if is_known and touched_elems(op, access, tensor.shape) == tensor.num_elems:
                made.discard(tensor.name)
    return not made


def _has_movers(machine: Machine) -> bool:
    """Whether transfers are issued by other engines than those that compute."""
    return bool(machine.engines_of(EngineKind.DMA_IN) or machine.engines_of(EngineKind.DMA_OUT))


def _first_step(machine: Machine, *, outward: bool) -> int:
    """Cycles of the shortest transfer away from home, or `outward`, back; set up beforehand."""
    home = machine.home.name
    return 1 + min(
        max(machine.level(name).latency_cycles for name in machine.route(home, level.name))
        + dma_engine(machine, level.name, outward=outward).setup_cycles
        for level in machine.placeable
        if level.name != home
    )


def _port(machine: Machine, num_bytes: int, direction: str) -> tuple[str, int]:
    """(name, cycles) that bytes take at least on their way out of home (`read`), or into it."""
    home = machine.home
    is_read = direction == "read"
    own = (home.read_bytes_per_cycle if is_read else home.write_bytes_per_cycle) * home.instances
    below = [level for level in machine.placeable if level.name != home.name]
    first = sum(
        (level.write_bytes_per_cycle if is_read else level.read_bytes_per_cycle) * level.instances
        for level in below
    )
    name = home.name if own <= first else "+".join(level.name for level in below)
    return f"traffic:{name}", ceil(num_bytes / min(own, first) * (1 - _SLACK))


def _shared_port(machine: Machine, inward: int, outward: int) -> tuple[str, int]:
    """(name, cycles) that bytes out of home and into it take at least together."""
    home = machine.home
    below = [level for level in machine.placeable if level.name != home.name]
    own = _both_ways(
        [(home, home.read_bytes_per_cycle, home.write_bytes_per_cycle)], inward, outward
    )
    first = _both_ways(
        [(level, level.write_bytes_per_cycle, level.read_bytes_per_cycle) for level in below],
        inward, outward,
    )  # fmt: skip
    name = home.name if own >= first else "+".join(level.name for level in below)
    return f"traffic:{name}", ceil(max(own, first) * (1 - _SLACK))


def _both_ways(
    ports: Sequence[tuple[MemoryLevel, float, float]], inward: int, outward: int
) -> float:
    """Cycles for bytes that pass memories in and out, by (memory, rate in, rate out)."""
    total_in = sum(level.instances * into for level, into, _ in ports)
    total_out = sum(level.instances * out for level, _, out in ports)
    share = 0.0
    for level, into, out in ports:
        ways = into / total_in, out / total_out
        share += level.instances * (max(ways) if level.half_duplex else sum(ways))
    return (inward / total_in + outward / total_out) / share

"""How much work an operator is, and how many cycles an engine needs for a box of it.

Matrix-like operators (an ADD reduction of a product of two reads) are counted in MACs and may run
on a MATRIX engine, where each group of axes is padded up to the array.  Everything else is counted
in elementary operations of a VECTOR or SCALAR engine, of which a MAC is one; where such an engine
states an output stage, what is one pass of it (`output_stage.py`) takes its rate of elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf, prod

from worker.compiler.cost.calls import CallRate, calls_of
from worker.compiler.cost.folds import Extents, Folding, Least, folding, granule
from worker.compiler.cost.output_stage import stage_rate
from worker.compiler.cost.row_stationary import RowStationary, row_stationary, slides_of
from worker.compiler.cost.streams import OWN, HeldAs, Streams, axes_of, item_size, streams_of
from worker.compiler.errors import VerifyError
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Cast, Const, Fn, Read, Scalar, children, slots_read
from worker.compiler.machine.dataflow import Stationary
from worker.compiler.machine.machine import Engine, EngineKind, Machine

SPECIAL_FNS = frozenset(
    {
        Fn.DIV, Fn.FLOORMOD, Fn.FMOD, Fn.POW, Fn.EXP, Fn.LOG, Fn.SQRT, Fn.RSQRT, Fn.RECIPROCAL,
        Fn.SIN, Fn.COS, Fn.TAN, Fn.ASIN, Fn.ACOS, Fn.ATAN, Fn.SINH, Fn.COSH, Fn.TANH, Fn.ASINH,
        Fn.ACOSH, Fn.ATANH, Fn.ERF, Fn.SIGMOID,
    }
)  # fmt: skip
"""Functions that run at an engine's special rate."""
_SLACK = 1e-9
"""Relative: a rounding error of floats must not add a cycle to a bound."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """The axes of a matrix-like operator by the role they play; positions in the domain."""

    rows: tuple[int, ...]
    """In the left operand and the result only (m)."""
    columns: tuple[int, ...]
    """In the right operand and the result only (n)."""
    depth: tuple[int, ...]
    """REDUCE axes (k)."""
    batch: tuple[int, ...]
    """In both operands and the result: never spread over an array."""
    slots: tuple[int, int]
    """Read slots of the left and the right factor."""


@lru_cache(maxsize=4096)
def contraction(op: TensorOp) -> Contraction | None:
    """Axis roles when `op` is matrix-like, else None.  Cost: linear in the operator."""
    if op.reduce is not Reduce.ADD or not op.reduce_axes:
        return None
    body = op.body
    while isinstance(body, Cast):
        body = body.arg
    if not isinstance(body, Apply) or body.fn is not Fn.MUL or len(body.args) != 2:
        return None
    if not all(_is_factor(arg) for arg in body.args):
        return None
    left, right = (_main_slot(op, arg) for arg in body.args)
    if left is None or right is None or left == right:
        return None
    in_left, in_right = axes_of(op.reads[left]), axes_of(op.reads[right])
    rows: list[int] = []
    columns: list[int] = []
    depth: list[int] = []
    batch: list[int] = []
    for k, axis in enumerate(op.domain):
        if axis.kind is AxisKind.REDUCE:
            depth.append(k)
        elif axis.name in in_left and axis.name in in_right:
            batch.append(k)
        elif axis.name in in_right:
            columns.append(k)
        else:
            rows.append(k)
    return Contraction(tuple(rows), tuple(columns), tuple(depth), tuple(batch), (left, right))


def contracted_points(ops: Sequence[TensorOp]) -> dict[int, int]:
    """Multiply-accumulates of the matrix-like among some operators, by position.

    An operator that sums nothing up (a convolution of one tap in one channel) has none.
    """
    return {k: op.num_points for k, op in enumerate(ops) if contraction(op) is not None}


def _is_factor(expr: Scalar) -> bool:
    """A read, possibly converted and shifted by a zero point."""
    match expr:
        case Read() | Const():
            return True
        case Cast(_, arg):
            return _is_factor(arg)
        case Apply(fn, args):
            return fn is Fn.SUB and all(_is_factor(a) for a in args)
        case _:
            return False


def _main_slot(op: TensorOp, expr: Scalar) -> int | None:
    """The slot of highest rank in a factor (the others are zero points)."""
    slots = slots_read(expr)
    return max(slots, key=lambda s: (len(axes_of(op.reads[s])), -s)) if slots else None


@lru_cache(maxsize=4096)
def elementary_ops(op: TensorOp) -> tuple[int, int]:
    """(plain, special) elementary operations per domain point; at least one (a copy moves).

    A contraction's product and its addition to the sum are one: presets rate vector units in
    multiply-accumulates ("64 FP16 MAC/cycle", 5-hardware.md), `work` counts them so, and a bound
    of work / rate would otherwise be half of what any schedule could reach.  What else a body does
    (zero points taken off, conversions written out) counts on its own, and so does the combining
    of every other reduction.
    """
    plain, special = _count(op.body)
    if contraction(op) is None:
        plain += op.reduce is not None and bool(op.reduce_axes)
    return (plain, special) if plain + special else (1, 0)


def _count(expr: Scalar) -> tuple[int, int]:
    plain = special = 0
    match expr:
        case Apply(fn, args):
            steps = max(1, len(args) - 1)
            plain, special = (0, steps) if fn in SPECIAL_FNS else (steps, 0)
        case Read() | Const():
            pass
        case _:
            plain = 1
    for child in children(expr):
        p, s = _count(child)
        plain, special = plain + p, special + s
    return plain, special


def work(op: TensorOp, num_points: int) -> int:
    """MACs of a matrix-like operator, else elementary operations, of `num_points` points.

    Of a pass of an output stage too: the stage does them side by side, not for nothing.
    """
    if contraction(op) is not None:
        return num_points
    return num_points * sum(elementary_ops(op))


def compute_dtype(op: TensorOp, tensors: Mapping[str, Tensor]) -> DType:
    """Type whose rate applies: the left factor's, the widest read's, or the result's.

    Floats that an operator from integers to integers reads beside its data are scales, which
    integer units keep in fixed point: it computes in 32-bit integers, or the wider of its data.
    """
    roles = contraction(op)
    if roles is not None:
        return tensors[op.reads[roles.slots[0]].tensor].dtype
    used = [tensors[op.reads[s].tensor] for s in _slots_read(op)]
    result = tensors[op.write.tensor].dtype
    if not used:
        return result
    widest = max((t.dtype for t in used), key=lambda d: d.size_bytes)
    data = max(used, key=lambda t: (t.num_elems, t.dtype.is_float)).dtype
    if widest.is_float and not (data.is_float or result.is_float or op.reduce):
        return data if data.size_bytes > DType.I32.size_bytes else DType.I32
    return widest


def compute_dtypes(graph: Graph) -> dict[int, DType]:
    """The `compute_dtype` of every operator of a graph, by position."""
    return {k: compute_dtype(op, graph.tensors) for k, op in enumerate(graph.ops)}


@lru_cache(maxsize=4096)
def _slots_read(op: TensorOp) -> tuple[int, ...]:
    return slots_read(op.body)


def rate(engine: Engine, dtype: DType) -> float:
    """MACs, on VECTOR and SCALAR also other operations, per cycle for `dtype`; 0: it cannot.

    Only what the spec states: no format has the rate of another, however alike (decision 0041).
    """
    return engine.macs_per_cycle.get(dtype, 0.0)


def can_run(op: TensorOp, engine: Engine, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the spec gives `engine` every rate that the operator needs."""
    if stage_rate(op, engine, tensors) > 0:
        return True
    return _is_rated(op, engine, rate(engine, compute_dtype(op, tensors)))


def _is_rated(op: TensorOp, engine: Engine, speed: float) -> bool:
    if speed <= 0:
        return False
    if engine.kind is EngineKind.MATRIX:
        return contraction(op) is not None
    return elementary_ops(op)[1] == 0 or engine.special_ops_per_cycle > 0


@dataclass(frozen=True, slots=True)
class EngineRate:
    """How fast an engine runs one operator: all that its cycles need besides the box."""

    startup_cycles: int
    speed: float
    """MACs or plain operations per cycle; elements, where an output stage takes the operator."""
    special_speed: float
    """0: the operator needs none, or there is none."""
    ops: tuple[int, int]
    """(plain, special) elementary operations per point; (1, 0) in an output stage."""
    roles: Contraction | None
    """Where boxes are padded up to an array of MACs; else operations are counted."""
    array: tuple[int, ...]
    folding: Folding | None = None
    """How the array works through boxes; None: nobody says, so it is never filled or drained."""
    rows: RowStationary | None = None
    """Instead of folds, where cells keep rows."""
    streams: Streams | None = None
    """What passes its ports (of a described array what is neither factor); None: they are free."""
    calls: tuple[CallRate, ...] = ()
    """Instructions that may run it.  Then all of the above is the best of them and of `plain`: what
    no box is faster than."""
    plain: EngineRate | None = None
    """Beside `calls`: the engine without them; None: it is asked for one of them."""

    def cycles(self, extents: tuple[int, ...], lanes: int = 1) -> int:
        """Cycles of one instruction over a box of `extents`: see `engine_cycles`."""
        points = prod(extents) * lanes
        if points == 0:
            return 0
        if self.calls:
            called = min(call.cycles(extents, lanes) for call in self.calls)
            called += self.startup_cycles
            return called if self.plain is None else min(called, self.plain.cycles(extents, lanes))
        passing = 0 if self.streams is None else self.streams.cycles(extents, lanes)
        if self.roles is not None and self.folding is not None:
            size, batch = sizes(extents, self.roles)
            # Lanes are no columns: columns of one fold share what streams.
            return self.startup_cycles + self.folding.cycles(size, batch * lanes) + passing
        if self.rows is not None:
            return self.startup_cycles + self.rows.cycles(extents, lanes) + passing
        if self.roles is not None:
            cycles = _padded(extents, self.roles, self.array, lanes) / self.speed
        else:
            plain, special = self.ops
            cycles = points * plain / self.speed
            if special:
                cycles += points * special / self.special_speed
        return self.startup_cycles + max(ceil(cycles), passing)

    def by(self, instruction: str | None) -> EngineRate:
        """The pace where a schedule has chosen: one instruction, or (None) the engine without.

        Raises:
            VerifyError: the instruction does not run the operator.
        """
        if instruction is None:
            return self if self.plain is None else self.plain
        found = tuple(call for call in self.calls if call.name == instruction)
        if not found:
            raise VerifyError("cost", instruction, "calls", "it does not run this operator")
        return replace(self, calls=found, plain=None)

    def chosen(self, extents: tuple[int, ...]) -> str | None:
        """The instruction that is the fastest for a box; None: the engine without, also at ties."""
        best, name = inf if self.plain is None else float(self.plain.cycles(extents)), None
        for call in self.calls:
            cycles = call.cycles(extents) + self.startup_cycles
            if cycles < best:
                best, name = cycles, call.name
        return name

    @property
    def fed_at_once(self) -> EngineRate:
        """The same engine with ports of any width."""
        if self.calls:
            plain = None if self.plain is None else self.plain.fed_at_once
            return replace(self, streams=None, plain=plain)
        folding = self.folding
        if folding is not None:
            dataflow = replace(folding.dataflow, load_bytes_per_cycle=0.0)
            folding = replace(folding, dataflow=dataflow, feed=0.0, drain=0.0)
        rows = None if self.rows is None else replace(self.rows, feed=0.0, drain=0.0)
        return replace(self, folding=folding, rows=rows, streams=None)

    def least(self, extents: tuple[int, ...]) -> int:
        """Cycles, starts left out, that instructions over all of a box take at least together."""
        if self.calls:
            return int(prod(extents) * self.point_cycles * (1 - _SLACK))
        if self.rows is not None:
            return ceil(prod(extents) * self.rows.point_cycles(extents) * (1 - _SLACK))
        if self.roles is None or self.folding is None or not prod(extents):
            return max(0, self.cycles(extents) - self.startup_cycles)
        least, first = self.least_of(extents)
        return ceil(least.price(first) * (prod(extents) // first) * (1 - _SLACK))

    def least_of(self, extents: tuple[int, ...]) -> tuple[Least, int]:
        """Of a folding array: (what a point costs at least, points along the axis walked first)."""
        assert self.roles is not None
        assert self.folding is not None
        size, _ = sizes(extents, self.roles)
        return self.folding.least(size), self.folding.split(size)[0]

    @property
    def point_cycles(self) -> float:
        """Of one point, without padding."""
        if self.roles is not None:
            return 1 / self.speed
        plain, special = self.ops
        return plain / self.speed + (special / self.special_speed if special else 0.0)


def keeps_sums(op: TensorOp, engine: Engine) -> bool:
    """Whether sums of the operator may stand in registers of the engine."""
    return bool(engine.accumulators) and op.reduce is not None


def pace_of(
    op: TensorOp, engine: Engine, tensors: Mapping[str, Tensor], *, stays: bool = False,
    held: HeldAs = OWN,
) -> EngineRate:  # fmt: skip
    """The pace of `engine` at `op`: worth keeping where many boxes are asked for.

    `stays`: its result stands in registers of the engine, so it passes none of its ports.
    `held`: element types of tensors that stand in the engine's memory in another than their own.
    Sums do, of formats that are summed up in a wider one, and pass the ports as they stand.

    Raises:
        VerifyError: the engine cannot run it (a schedule names the wrong engine).
    """
    plain = _plain_pace(op, engine, tensors, stays=stays, held=held)
    roles = contraction(op)
    groups = None if roles is None else (roles.rows, roles.columns, roles.depth, roles.batch)
    calls = calls_of(op, engine, groups, compute_dtype(op, tensors)) if engine.intrinsics else ()
    if not calls:
        return plain
    speed = max(1 / plain.point_cycles, *(call.peak for call in calls))
    ops = (0, 0) if plain.roles is not None else (1, 0)
    return EngineRate(
        engine.startup_cycles, speed, 0.0, ops, plain.roles, (), calls=calls, plain=plain
    )


def _plain_pace(
    op: TensorOp, engine: Engine, tensors: Mapping[str, Tensor], *, stays: bool, held: HeldAs
) -> EngineRate:
    """The pace without any instruction of fixed size."""
    elements = stage_rate(op, engine, tensors)
    if elements > 0:
        return EngineRate(
            engine.startup_cycles, elements, 0.0, (1, 0), None, (),
            streams=_streams(op, None, engine, tensors, stays=stays, held=held),
        )  # fmt: skip
    dtype = compute_dtype(op, tensors)
    speed = rate(engine, dtype)
    if not _is_rated(op, engine, speed):
        raise VerifyError("cost", op.name, "rates", f"{engine.name} lacks a rate for it in {dtype}")
    roles = contraction(op) if engine.kind is EngineKind.MATRIX else None
    ops = (0, 0) if roles is not None else elementary_ops(op)
    folds = rows = None
    if roles is not None:
        depth = prod(op.domain[k].extent for k in roles.depth)
        items = item_bytes(op, roles, tensors, stays=stays, held=held)
        folds = folding(engine, speed, items, depth)
        rows = rows_of(op, roles, engine, speed, items)
    return EngineRate(
        engine.startup_cycles, speed, engine.special_ops_per_cycle, ops, roles, engine.array,
        folds, rows, _streams(op, roles, engine, tensors, stays=stays, held=held),
    )  # fmt: skip


def rows_of(
    op: TensorOp, roles: Contraction, engine: Engine, speed: float, items: tuple[int, int, int]
) -> RowStationary | None:
    """How an array whose cells keep rows works through `op`; None: it keeps something else.

    `items`: as of `item_bytes`.
    """
    if engine.dataflow is None or engine.dataflow.stationary is not Stationary.ROW:
        return None
    groups = roles.rows, roles.columns, roles.depth, roles.batch
    depth = prod(op.domain[k].extent for k in roles.depth)
    return row_stationary(engine, speed, slides_of(op, roles.slots[0], groups), items, depth)


def item_bytes(
    op: TensorOp, roles: Contraction, tensors: Mapping[str, Tensor], *, stays: bool, held: HeldAs
) -> tuple[int, int, int]:
    """Bytes of an element of the left factor, the right one, and the sum, as they pass the ports
    of an array; `stays`: sums do not.  `held` as of `pace_of`."""
    accesses = (*(op.reads[slot] for slot in roles.slots), op.write)
    left, right, total = (item_size(a.tensor, tensors, held) for a in accesses)
    return left, right, 0 if stays else total


def _streams(
    op: TensorOp, roles: Contraction | None, engine: Engine, tensors: Mapping[str, Tensor],
    *, stays: bool, held: HeldAs,
) -> Streams | None:  # fmt: skip
    """What passes an engine's ports beside a `Folding`'s factors and sums; None: they are free."""
    if not engine.feed_bytes_per_cycle and not engine.drain_bytes_per_cycle:
        return None
    factors = () if roles is None else roles.slots
    streams = streams_of(op, factors, engine, tensors, stays=stays, held=held)
    return streams if streams.reads or streams.result else None


def sizes(extents: tuple[int, ...], roles: Contraction) -> tuple[Extents, int]:
    """(rows, columns and depth of a box, its batch)."""
    m, n, k, b = (
        prod(extents[i] for i in group)
        for group in (roles.rows, roles.columns, roles.depth, roles.batch)
    )
    return Extents(m, n, k), b


def engine_cycles(
    op: TensorOp,
    extents: tuple[int, ...],
    engine: Engine,
    tensors: Mapping[str, Tensor],
    lanes: int = 1,
    held: HeldAs = OWN,
) -> int:
    """Cycles `engine` is busy with one instruction over a box of `extents` (domain order).

    `lanes` boxes of that size run side by side in the engine as one instruction; `held` as of
    `pace_of`.
    Units: cycles.  An empty box costs nothing.  Cost: linear in the domain's rank.
    """
    return pace_of(op, engine, tensors, held=held).cycles(extents, lanes)


def _padded(
    extents: tuple[int, ...], roles: Contraction, array: tuple[int, ...], lanes: int
) -> int:
    """MACs after padding: (k, n) to a two-dimensional array, (m, n, k) to a three-dimensional one.

    Lanes are further columns: the schedule asked for them to be spread over the array.
    """
    (m, n, k), b = sizes(extents, roles)
    step = granule(array, None)
    return b * _up(m, step.rows) * _up(n * lanes, step.columns) * _up(k, step.depth)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def pick_engine(op: TensorOp, machine: Machine, tensors: Mapping[str, Tensor]) -> Engine | None:
    """The compute engine that runs the whole operator in the fewest cycles.

    MATRIX engines take part only for matrix-like operators whose type they have a rate for, and
    win ties; then VECTOR, then SCALAR.  None when the machine has no engine that can run it.
    """
    extents = tuple(a.extent for a in op.domain)
    able = able_engines(op, machine, tensors)
    return min(able, key=lambda e: engine_cycles(op, extents, e, tensors), default=None)


def able_engines(
    op: TensorOp, machine: Machine, tensors: Mapping[str, Tensor]
) -> tuple[Engine, ...]:
    """Every compute engine that has the rates for the operator: MATRIX, then VECTOR, then SCALAR.

    Empty: the machine cannot run it.
    """
    kinds = (EngineKind.MATRIX, EngineKind.VECTOR, EngineKind.SCALAR)
    found = (engine for kind in kinds for engine in machine.engines_of(kind))
    return tuple(engine for engine in found if can_run(op, engine, tensors))


def engines_of(
    ops: Iterable[TensorOp], tensors: Mapping[str, Tensor], machine: Machine
) -> dict[str, Engine] | str:
    """The engine of every operator; else the name of the first that has none."""
    found: dict[str, Engine] = {}
    for op in ops:
        engine = pick_engine(op, machine, tensors)
        if engine is None:
            return op.name
        found[op.name] = engine
    return found

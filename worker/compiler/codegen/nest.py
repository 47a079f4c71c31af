"""Loop nests for any operator: the generic way to run a Compute.

Loop order: SCAN axes first, then by falling stride of the write.  Axes that are contiguous in every
operand merge into one.  Reductions keep their running values in a local array: either over a block
of a parallel axis that is contiguous in the output (`_by_output_block`), or over lanes of a
reduction axis that is contiguous in the operands (`_by_lanes`).  Both vectorise without
reassociation flags, and give the same result on every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod

from worker.compiler.codegen.ctext import VALUE_TYPE, Writer, index_text, literal
from worker.compiler.codegen.expr import combine, convert, emit_scalar, load, store
from worker.compiler.codegen.ports import AxisLoop, Point, Port, emit_read
from worker.compiler.ir.affine import Affine, FloorDiv, Lookup, Mod, var
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce, TensorOp
from worker.compiler.ir.scalar import Index, Scalar, children, slots_read
from worker.compiler.ir.scalar_type import scalar_type
from worker.compiler.isa.sums import Order, OrderKind

OUTPUT_BLOCK = 64
"""Running values kept for a block of outputs."""
LANES = 16
"""Running values kept along a reduction."""
RUN = 1 << 14
"""Elements after which what lanes have summed joins the total.  A running float32 value may drift
by half a unit of its last place with every element, always to one side where all are alike: 2^26
times 0.637 came to 3.9 % too little when a lane summed a sixteenth of it in one go.  By runs it is
at most 2^-24 * (RUN / LANES + number of runs)."""


@dataclass(frozen=True, slots=True)
class Body:
    """How to compute one point."""

    op: TensorOp
    point: Point
    read_types: tuple[DType, ...]
    bad: str
    """Identifier set when a looked-up index is out of range; "" without lookups."""

    def emit(self, writer: Writer) -> str:
        """Loads and the scalar body; gives the value, of `value_dtype`."""
        needed = set(slots_read(self.op.body))
        lookups: dict[int, str] = {}
        names: dict[int, str] = {}
        looked_up = _lookup_slots(self.point.reads)
        for slot, port in enumerate(self.point.reads):
            if slot in needed or slot in looked_up:
                names[slot] = emit_read(writer, port, self.point.ranges, lookups, self.bad)
                lookups[slot] = f"(int64_t){names[slot]}"
        return emit_scalar(
            writer, self.op.body, names.__getitem__, self.read_types, self._index(lookups)
        )

    def _index(self, lookups: Mapping[int, str]) -> Callable[[Affine], str]:
        def text(expr: Affine) -> str:
            there = expr.substitute(self.point.where).within(self.point.ranges)
            return index_text(there, self.point.ranges, lookups)

        return text

    @property
    def value_dtype(self) -> DType:
        return scalar_type(self.op.body, self.read_types)


def emit_nest(writer: Writer, body: Body) -> Order:
    """Write the whole nest of one Compute; give the order of its sums."""
    point = _merge_axes(body.point, body.op)
    body = replace(body, point=point)
    scans = [a for a in point.axes if a.kind is AxisKind.SCAN]
    parallel = sorted(
        (a for a in point.axes if a.kind is AxisKind.PARALLEL),
        key=lambda a: -abs(point.write.moving.coeff(a.name)),
    )
    reduced = [a for a in point.axes if a.kind is AxisKind.REDUCE]
    if body.op.reduce is None:
        with _loops(writer, [*scans, *parallel, *reduced]):
            value = body.emit(writer)
            target = point.write.storage.dtype
            writer.line(f"{_target(point)} = {store(value, body.value_dtype, target)};")
        return Order(OrderKind.SEQUENCE, ())
    block = min(parallel, key=lambda a: _block_cost(a, point), default=None)
    lanes = min(reduced, key=lambda a: _lanes_cost(a, point), default=None)
    if lanes is not None and (
        block is None or _lanes_cost(lanes, point) < _block_cost(block, point)
    ):
        with _loops(writer, [*scans, *parallel]):
            return _by_lanes(writer, body, [a for a in reduced if a is not lanes], lanes)
    if block is not None:
        with _loops(writer, [*scans, *(a for a in parallel if a is not block)]):
            _by_output_block(writer, body, block, reduced)
        return Order(OrderKind.SEQUENCE, tuple(a.parts for a in reduced))
    with _loops(writer, scans):
        return _by_lanes(writer, body, [], None)


def _loops(writer: Writer, axes: Sequence[AxisLoop]) -> ExitStack:
    stack = ExitStack()
    for axis in axes:
        stack.enter_context(writer.loop(axis.name, axis.count))
    return stack


def _target(point: Point) -> str:
    return f"{point.write.pointer}[{index_text(point.write.moving, point.ranges)}]"


def _stride_cost(port: Port, name: str) -> float:
    if port.guarded or port.has_lookup or not port.moving.is_linear:
        return 4.0 if name in port.moving.variables() or port.has_lookup else 0.0
    return {0: 0.0, 1: 1.0}.get(port.moving.coeff(name), 4.0)


def _block_cost(axis: AxisLoop, point: Point) -> float:
    """Rough cost of one point when `axis` is innermost with a block of running values."""
    reads = sum(_stride_cost(p, axis.name) for p in point.reads)
    return (reads + 1.5) * LANES / min(max(axis.extent, 1), LANES) + (
        0.0 if point.write.moving.coeff(axis.name) == 1 else 0.5
    )


def _lanes_cost(axis: AxisLoop, point: Point) -> float:
    """Rough cost of one point when the reduction axis is innermost with lanes."""
    reads = sum(_stride_cost(p, axis.name) for p in point.reads)
    return (reads + 1.0) * LANES / min(max(axis.extent, 1), LANES)


def _accumulator(body: Body) -> DType:
    return body.point.write.dtype.accumulator


def _by_output_block(
    writer: Writer, body: Body, block: AxisLoop, reduced: Sequence[AxisLoop]
) -> None:
    assert body.op.reduce is not None
    total = _accumulator(body)
    point = body.point
    kept = point.write.storage.dtype
    base, lane, acc = writer.fresh("b"), writer.fresh("j"), writer.fresh("acc")
    size = min(OUTPUT_BLOCK, block.extent)
    with writer.block(f"for (int64_t {base} = 0; {base} < {block.count}; {base} += {size})"):
        count = writer.fresh("w")
        writer.line(f"const int64_t {count} = tw_min_index({block.count} - {base}, {size});")
        writer.line(f"{VALUE_TYPE[total]} {acc}[{size}];")
        coordinate = f"const int64_t {block.name} = {base} + {lane};"
        with writer.loop(lane, count):
            writer.line(coordinate)
            old = convert(load(_target(point), kept), kept, total)
            writer.line(f"{acc}[{lane}] = {old};")
        with _loops(writer, reduced), writer.loop(lane, count):
            writer.line(coordinate)
            writer.line(f"(void){block.name};")
            value = convert(body.emit(writer), body.value_dtype, total)
            merged = combine(body.op.reduce, total, f"{acc}[{lane}]", value)
            writer.line(f"{acc}[{lane}] = {merged};")
        with writer.loop(lane, count):
            writer.line(coordinate)
            writer.line(f"{_target(point)} = {store(f'{acc}[{lane}]', total, kept)};")


def _by_lanes(
    writer: Writer, body: Body, outer: Sequence[AxisLoop], inner: AxisLoop | None
) -> Order:
    assert body.op.reduce is not None
    reduce, total = body.op.reduce, _accumulator(body)
    point = body.point
    kept = point.write.storage.dtype
    ctype = VALUE_TYPE[total]
    identity = literal(reduce.identity(total), total)
    acc = writer.fresh("acc")
    writer.line(f"{ctype} {acc} = {convert(load(_target(point), kept), kept, total)};")

    def step(target: str) -> None:
        value = convert(body.emit(writer), body.value_dtype, total)
        writer.line(f"{target} = {combine(reduce, total, target, value)};")

    def sum_by_lanes(within: Sequence[AxisLoop], begin: str, end: str, into: str) -> None:
        assert inner is not None
        lanes, lane, base = writer.fresh("lanes"), writer.fresh("j"), writer.fresh("b")
        writer.line(f"{ctype} {lanes}[{LANES}];")
        writer.line(
            f"for (int {lane} = 0; {lane} < {LANES}; ++{lane}) {lanes}[{lane}] = {identity};"
        )
        with _loops(writer, within):
            writer.line(f"int64_t {base} = {begin};")
            with (
                writer.block(f"for (; {base} + {LANES} <= {end}; {base} += {LANES})"),
                writer.loop(lane, str(LANES)),
            ):
                writer.line(f"const int64_t {inner.name} = {base} + {lane};")
                step(f"{lanes}[{lane}]")
            with writer.block(
                f"for (int64_t {inner.name} = {base}; {inner.name} < {end}; ++{inner.name})"
            ):
                step(into)
        merged = combine(reduce, total, into, f"{lanes}[{lane}]")
        writer.line(f"for (int {lane} = 0; {lane} < {LANES}; ++{lane}) {into} = {merged};")

    groups = tuple(a.parts for a in (*outer, inner) if a is not None)
    order = Order(OrderKind.LANES, groups, LANES)
    if inner is None:
        step(acc)
        order = Order(OrderKind.SEQUENCE, ())
    elif inner.extent < 2 * LANES:
        with _loops(writer, [*outer, inner]):
            step(acc)
        order = Order(OrderKind.SEQUENCE, groups)
    elif total.is_float and reduce is Reduce.ADD and _points(outer, inner) > RUN:
        around = _around_a_run(outer, inner)
        run, start = writer.fresh("run"), writer.fresh("s")
        with (
            _loops(writer, outer[:around]),
            writer.block(f"for (int64_t {start} = 0; {start} < {inner.count}; {start} += {RUN})"),
        ):
            writer.line(f"{ctype} {run} = {identity};")
            stop = f"tw_min_index({inner.count}, {start} + {RUN})"
            sum_by_lanes(outer[around:], start, stop, run)
            writer.line(f"{acc} = {combine(reduce, total, acc, run)};")
        order = Order(OrderKind.LANES, groups, LANES, RUN, around)
    else:
        sum_by_lanes(outer, "0", inner.count, acc)
    writer.line(f"{_target(point)} = {store(acc, total, kept)};")
    return order


def _points(outer: Sequence[AxisLoop], inner: AxisLoop) -> int:
    return inner.extent * prod(axis.extent for axis in outer)


def _around_a_run(outer: Sequence[AxisLoop], inner: AxisLoop) -> int:
    """How many of the outer loops stand around a run of at most RUN elements."""
    return next(
        k for k in range(len(outer) + 1) if k == len(outer) or _points(outer[k:], inner) <= RUN
    )


def _lookup_slots(ports: Sequence[Port]) -> set[int]:
    found: set[int] = set()
    stack = [e for port in ports for e in port.coordinate]
    while stack:
        for atom, _ in stack.pop().terms:
            if isinstance(atom, Lookup):
                found.add(atom.slot)
            elif isinstance(atom, (FloorDiv, Mod)):
                stack.append(atom.arg)
    return found


def uses_coordinates(expr: Scalar) -> bool:
    """True when the body computes with coordinates (`Index`)."""
    return isinstance(expr, Index) or any(uses_coordinates(c) for c in children(expr))


def _merge_axes(point: Point, op: TensorOp) -> Point:
    """Join pairs of axes that are one contiguous axis in every operand."""
    ports = (*point.reads, point.write)
    if uses_coordinates(op.body) or not all(p.is_linear() for p in ports):
        return point
    axes = list(point.axes)
    moving = [p.moving for p in ports]
    pair = _mergeable(axes, moving)
    while pair is not None:
        outer, inner = pair
        assert inner.static_count is not None
        static = None
        if outer.static_count is not None:
            static = outer.static_count * inner.static_count
        count = str(static) if static is not None else f"({outer.count} * {inner.static_count})"
        joined = replace(
            inner, count=count, static_count=static, extent=outer.extent * inner.extent,
            parts=(*outer.parts, *inner.parts),
        )  # fmt: skip
        axes = [joined if a is inner else a for a in axes if a is not outer]
        moving = [m - var(outer.name) * m.coeff(outer.name) for m in moving]
        pair = _mergeable(axes, moving)
    *reads, write = (replace(p, moving=m) for p, m in zip(ports, moving, strict=True))
    return replace(point, axes=tuple(axes), reads=tuple(reads), write=write)


def _mergeable(
    axes: Sequence[AxisLoop], moving: Sequence[Affine]
) -> tuple[AxisLoop, AxisLoop] | None:
    for inner in axes:
        if inner.static_count is None or inner.kind is AxisKind.SCAN:
            continue
        for outer in axes:
            if (
                outer is not inner
                and outer.kind is inner.kind
                and all(m.coeff(outer.name) == inner.static_count * m.coeff(inner.name)
                        for m in moving)
            ):  # fmt: skip
                return outer, inner
    return None

"""The accesses of one Compute: for each operand, where its element is at a point of the box.

A point of the clipped box is given by one C identifier per axis, counting from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from worker.compiler.codegen.clip import check_inside, fault_unless_inside, hull_text
from worker.compiler.codegen.ctext import VALUE_TYPE, Writer, bounds, index_text, literal
from worker.compiler.codegen.expr import convert, load
from worker.compiler.codegen.storage import Clipped, Storage
from worker.compiler.ir.affine import Affine, FloorDiv, Interval, Mod, Var, var
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.ir.scalar_type import promoted


@dataclass(frozen=True, slots=True)
class AxisLoop:
    """One axis of the clipped box that needs a loop."""

    name: str
    """C identifier of the coordinate, 0 .. count-1."""
    count: str
    static_count: int | None
    extent: int
    """Upper bound of the count."""
    kind: AxisKind
    parts: tuple[str, ...]
    """Axes of the domain that it stands for, the outermost first."""


@dataclass(frozen=True, slots=True)
class Port:
    """One operand of a Compute."""

    storage: Storage
    dtype: DType
    """The tensor's (the storage may be wider)."""
    fill: float | int | None
    shape: tuple[int, ...]
    coordinate: tuple[Affine, ...]
    """Tensor coordinates, over C identifiers."""
    guarded: tuple[int, ...]
    """Dimensions in which a read may leave the tensor and must select the fill."""
    pointer: str
    """C identifier of the element pointer, moved to the part of the offset that is fixed."""
    moving: Affine
    """Element offset from `pointer`: the part that depends on the point."""

    @property
    def has_lookup(self) -> bool:
        return any(e.has_lookup for e in self.coordinate)

    def is_linear(self) -> bool:
        """True when the element offset is a plain linear function of the point."""
        return self.moving.is_linear and not self.guarded and not self.has_lookup


@dataclass(frozen=True, slots=True)
class Point:
    """Everything known about the points of one Compute."""

    axes: tuple[AxisLoop, ...]
    """Axes with more than one coordinate, in domain order."""
    where: Mapping[str, Affine]
    """Domain axis -> absolute coordinate, over C identifiers."""
    ranges: dict[str, Interval]
    reads: tuple[Port, ...]
    write: Port


def make_point(
    writer: Writer,
    op: TensorOp,
    spans: Sequence[Clipped],
    storage_of: Callable[[str], Storage],
    tensors: Mapping[str, Tensor],
    ranges: dict[str, Interval],
    path: str,
) -> Point:
    """Name the coordinates, check every operand's hull against its buffer, declare the pointers."""
    axes: list[AxisLoop] = []
    where: dict[str, Affine] = {}
    for axis, span in zip(op.domain, spans, strict=True):
        if span.static_count == 1:
            where[axis.name] = span.low
            continue
        name = writer.fresh("x")
        ranges[name] = (0, min(span.extent, axis.extent) - 1)
        where[axis.name] = span.low + var(name)
        axes.append(
            AxisLoop(
                name, span.count, span.static_count, ranges[name][1] + 1, axis.kind, (axis.name,)
            )
        )
    ports = [
        _make_port(writer, access, storage_of(access.tensor), tensors[access.tensor], axes, where,
                   ranges, path)
        for access in op.reads
    ]  # fmt: skip
    target = op.write.tensor
    write = _make_port(
        writer, op.write, storage_of(target), tensors[target], axes, where, ranges, path, True
    )
    return Point(tuple(axes), where, ranges, tuple(ports), write)


def _make_port(
    writer: Writer,
    access: Access,
    storage: Storage,
    tensor: Tensor,
    axes: Sequence[AxisLoop],
    where: Mapping[str, Affine],
    ranges: dict[str, Interval],
    path: str,
    is_write: bool = False,
) -> Port:
    coordinate = tuple(e.substitute(where).within(ranges) for e in access.index)
    guarded: list[int] = []
    for dim, (expr, extent) in enumerate(zip(coordinate, tensor.shape, strict=True)):
        known = bounds(expr, ranges)
        may_leave = known is None or known[0] < 0 or known[1] >= extent
        if access.fill is not None and may_leave and access.fill not in storage.fills:
            guarded.append(dim)
    _check_hull(writer, storage, tensor, coordinate, guarded, axes, ranges, path)
    offset = Affine()
    for expr, start, stride in zip(coordinate, storage.starts, storage.strides, strict=True):
        offset = offset + (expr - start) * stride
    fixed, moving = _split(offset.within(ranges), {a.name for a in axes})
    pointer = writer.fresh("p")
    kind = storage.element_type if is_write else f"const {storage.element_type}"
    writer.line(
        f"{kind} *restrict const {pointer} = ({kind} *){storage.pointer} +"
        f" {index_text(fixed, ranges)};"
    )
    return Port(
        storage, tensor.dtype, access.fill, tensor.shape, coordinate, tuple(guarded), pointer,
        moving,
    )  # fmt: skip


def _split(offset: Affine, names: set[str]) -> tuple[Affine, Affine]:
    """(part without, part with) the coordinates or looked-up indices."""
    fixed = Affine((), offset.const)
    moving = Affine()
    for atom, coeff in offset.terms:
        part = Affine(((atom, coeff),), 0)
        match atom:
            case Var(name):
                moves = name in names
            case FloorDiv(arg, _) | Mod(arg, _):
                moves = arg.has_lookup or not names.isdisjoint(arg.variables())
            case _:
                moves = True
        if moves:
            moving = moving + part
        else:
            fixed = fixed + part
    return fixed, moving


def _check_hull(
    writer: Writer,
    storage: Storage,
    tensor: Tensor,
    coordinate: Sequence[Affine],
    guarded: Sequence[int],
    axes: Sequence[AxisLoop],
    ranges: Mapping[str, Interval],
    path: str,
) -> None:
    if storage.is_home:
        return
    limits = {a.name: ("0", f"({a.count} - 1)") for a in axes}
    for dim, expr in enumerate(coordinate):
        if expr.has_lookup:
            continue
        at = expr - storage.starts[dim]
        known = bounds(at, ranges)
        if known is not None and known[0] >= 0 and known[1] < storage.extents[dim]:
            continue
        if not any(v in limits for v in expr.variables()):
            check_inside(writer, storage, dim, expr, "1", 1, path, ranges)
            continue
        low, high = hull_text(at, limits, ranges)
        if dim in guarded:  # coordinates outside the tensor are not read at all
            first = index_text(storage.starts[dim] * -1, ranges)
            last = index_text(storage.starts[dim] * -1 + (tensor.shape[dim] - 1), ranges)
            low, high = f"tw_max_index({low}, {first})", f"tw_min_index({high}, {last})"
            with writer.block(f"if ({low} <= {high})"):
                fault_unless_inside(writer, storage, dim, low, high, path)
            continue
        fault_unless_inside(writer, storage, dim, low, high, path)


def emit_read(
    writer: Writer, port: Port, ranges: Mapping[str, Interval], lookups: Mapping[int, str], bad: str
) -> str:
    """Load the operand's value at the current point; give its name.

    A looked-up index outside its range sets `bad` and reads element 0 (or yields the fill).
    """
    name = writer.fresh("r")
    value_type = promoted(port.dtype)
    kind = VALUE_TYPE[value_type]
    offset = index_text(port.moving, ranges, lookups)
    if port.has_lookup:
        offset = _checked_offset(writer, port, ranges, lookups, bad)
    element = load(f"{port.pointer}[{offset}]", port.storage.dtype)
    if port.storage.dtype is not port.dtype:
        # An accumulator holds more than the tensor's type can: read what a drain would store.
        element = f"({convert(element, port.storage.dtype, port.dtype)})"
    if port.guarded:
        inside = []
        for dim in port.guarded:
            at = writer.fresh("g")
            writer.line(
                f"const int64_t {at} = {index_text(port.coordinate[dim], ranges, lookups)};"
            )
            inside.append(f"(uint64_t){at} < {port.shape[dim]}u")
        assert port.fill is not None
        element = f"{' && '.join(inside)} ? {element} : {literal(port.fill, value_type)}"
    writer.line(f"const {kind} {name} = {element};")
    return name


def _checked_offset(
    writer: Writer, port: Port, ranges: Mapping[str, Interval], lookups: Mapping[int, str], bad: str
) -> str:
    """Element offset of an access with looked-up indices, each checked."""
    terms: list[str] = []
    checks = zip(
        port.coordinate, port.storage.starts, port.storage.strides, port.storage.extents,
        strict=True,
    )  # fmt: skip
    for dim, (expr, start, stride, extent) in enumerate(checks):
        at = writer.fresh("i")
        writer.line(f"int64_t {at} = {index_text(expr - start, ranges, lookups)};")
        if expr.has_lookup:
            allowed = "" if dim in port.guarded else f" {bad} = 1;"
            writer.line(f"if ((uint64_t){at} >= {extent}u) {{ {at} = 0;{allowed} }}")
        terms.append(f"{at} * {stride}")
    fixed = Affine()
    for expr, start, stride in zip(
        port.coordinate, port.storage.starts, port.storage.strides, strict=True
    ):
        fixed = fixed + (expr - start) * stride
    rest = fixed.within(dict(ranges)) - port.moving
    # the pointer already carries `rest`
    return f"{' + '.join(terms) or '0'} - {index_text(rest, ranges)}"

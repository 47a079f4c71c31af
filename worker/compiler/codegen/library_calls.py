"""Products that a vendor's kernel library computes: blocks are packed in the types that they are
stored in, and its function is called on as much at a time as the instruction takes.

Kernels have both forms: with TW_LINKED defined they call, without they run code of their own.  So
the text of a kernel, and what the stream says of it, do not depend on the library.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

from worker.compiler.codegen.ctext import STORAGE_TYPE, Writer, literal
from worker.compiler.codegen.expr import store
from worker.compiler.codegen.intrinsics import (
    PACKED_FROM,
    Product,
    ProductWriter,
    inside,
    recognised,
)
from worker.compiler.codegen.nest import Body
from worker.compiler.codegen.ports import AxisLoop, Port
from worker.compiler.cost.calls import covering
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.scalar import Apply, Cast, Fn, Read, Scalar, slots_read
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.machine.intrinsic import Intrinsic

LINKED_MACRO = "TW_LINKED"
_MOST = (192, 256, 256)
"""Rows, columns and depth of a block: the header's tables of offsets have 256 entries."""
_WIDEST = 8
"""Bytes of an element."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A Compute whose instruction is a function of a kernel library."""

    path: str
    """Of the Compute in its schedule."""
    op: str
    """Name of the operator."""
    symbol: str
    """The C function; empty: no call can say what the operator computes, and own code runs it."""
    pointer: str
    """Where the user's document names the function."""


@dataclass(frozen=True, slots=True)
class _Factor:
    """One side of a product as it is passed."""

    dtype: DType
    slot: int | None
    """Read whose stored elements are passed as they are; None: the computed factor."""
    zero: Scalar | None
    """What is taken off every element; None: nothing."""


@dataclass(frozen=True, slots=True)
class CalledProduct:
    """A product, and the function that computes it."""

    product: Product
    symbol: str
    extents: tuple[int, int, int]
    """The most rows, columns and depth of a call."""
    sides: tuple[_Factor, _Factor]


def called_product(body: Body, intrinsic: Intrinsic) -> CalledProduct | None:
    """How calls of an instruction's function compute an operator; None: they cannot.

    Rows and columns are those that the instruction is priced by: of the first and of the second
    factor.
    """
    assert intrinsic.call is not None
    product = recognised(body)
    if product is None:
        return None
    sides = tuple(_factor(side, body, product) for side in (product.left, product.right))
    left, right = sides
    symbol = f"{intrinsic.call.symbol}_{left.dtype}_{right.dtype}_{product.dtype}"
    return CalledProduct(product, symbol, _extents(intrinsic, product), (left, right))


def _extents(intrinsic: Intrinsic, product: Product) -> tuple[int, int, int]:
    """Of the size whose calls cover the product for the fewest cycles."""
    if intrinsic.question is not None:
        return intrinsic.question.extents
    box = (_size(product.rows), _size(product.columns), _size(product.depth))
    return min(intrinsic.sizes, key=lambda size: (covering(size, box), size.extents)).extents


def _size(axes: tuple[AxisLoop, ...]) -> int:
    return prod(axis.extent for axis in axes)


def _factor(side: Scalar, body: Body, product: Product) -> _Factor:
    """Plain elements, or elements and a zero point that is the same for all of them."""
    main, zero = side, None
    if isinstance(side, Apply) and side.fn is Fn.SUB and product.dtype is DType.I32:
        main, zero = side.args
    while isinstance(main, Cast) and main.dtype is product.dtype:
        main = main.arg
    reads = body.point.reads
    moved = {axis.name for axis in (*product.rows, *product.columns, *product.depth)}
    is_one = zero is None or not any(
        reads[slot].guarded or moved.intersection(reads[slot].moving.variables())
        for slot in slots_read(zero)
    )
    if isinstance(main, Read) and is_one:
        dtype = reads[main.slot].storage.dtype
        if dtype in PACKED_FROM[product.dtype]:
            return _Factor(dtype, main.slot, zero)
    return _Factor(product.dtype, None, None)


def emit_call(writer: Writer, body: Body, called: CalledProduct) -> None:
    """Write the product as calls.  `tw_add_tile_*` of its type must be instantiated."""
    _CallWriter(writer, body, called).emit()


class _CallWriter(ProductWriter):
    def __init__(self, writer: Writer, body: Body, called: CalledProduct) -> None:
        self.called = called
        self.blocks = tuple(
            most if extent > most else most // extent * extent
            for extent, most in zip(called.extents, _MOST, strict=True)
        )
        """Whole calls, so that there are as many as the instruction is priced for."""
        super().__init__(writer, body, called.product, tuple(map(str, self.blocks)))

    def emit(self) -> None:
        w = self.w
        m, n, k = self.blocks
        left, right = self.called.sides
        with w.block(""), ExitStack() as stack:
            at = 0
            for name, kind, size in (
                ("pa", STORAGE_TYPE[left.dtype], m * k), ("pb", STORAGE_TYPE[right.dtype], n * k),
                ("pc", self.panel, m * n),
            ):  # fmt: skip
                w.line(f"{kind} *const {name} = ({kind} *)(m->scratch + {at});")
                at += -(-size * _WIDEST // 64) * 64
            w.line(f"int32_t *const tables = (int32_t *)(m->scratch + {at});")
            w.line("(void)tables;")
            self._declare_totals()
            for axis in self.product.batch:
                stack.enter_context(w.loop(axis.name, axis.count))
            for name, side in (("za", left), ("zb", right)):
                value = "0" if side.zero is None else self._value(side.zero, self._rest)
                w.line(f"const int32_t {name} = (int32_t){value};")
            stack.enter_context(self._blocks(self.columns))
            w.line(f"const int64_t ldc = {self.columns.count};")
            self._declare_tables(self.columns, (*self._slots(self.product.right), None))
            stack.enter_context(self._blocks(self.rows))
            self._declare_tables(self.rows, (*self._slots(self.product.left), None))
            w.line(f"memset(pc, 0, (size_t)({self.rows.count} * ldc) * sizeof({self.panel}));")
            with self._blocks(self.depth):
                both = (*self._slots(self.product.left), *self._slots(self.product.right))
                self._declare_tables(self.depth, tuple(dict.fromkeys(both)))
                self._pack_sides()
                self._call()
            self._add()

    def _pack_sides(self) -> None:
        """`pa` by rows and `pb` by depth, both without gaps."""
        w = self.w
        left, right = self.called.sides

        def at(group_position: str, group: str) -> Callable[[Affine], str]:
            outer = self.rows if group == "rows" else self.columns
            return lambda e: (
                self._rest(e)
                + self._part(outer, e, group_position)
                + self._part(self.depth, e, "k")
            )

        with w.loop("i", self.rows.count), w.loop("k", self.depth.count):
            value = self._element(self.product.left, left, at("i", "rows"))
            w.line(f"pa[i * {self.depth.count} + k] = {value};")
        with w.loop("k", self.depth.count), w.loop("j", self.columns.count):
            value = self._element(self.product.right, right, at("j", "columns"))
            w.line(f"pb[k * ldc + j] = {value};")

    def _element(self, side: Scalar, factor: _Factor, offset: Callable[[Affine], str]) -> str:
        if factor.slot is None:
            return self._value(side, offset)
        port = self._port(factor.slot)
        element = f"{port.pointer}[{offset(port.moving)}]"
        if not port.guarded:
            return element
        return f"{inside(port, offset)} ? {element} : {_stored_fill(port)}"

    def _call(self) -> None:
        w = self.w
        rows, columns, depth = self.rows.count, self.columns.count, self.depth.count
        m, n, k = self.called.extents
        with (
            w.block(f"for (int64_t i = 0; i < {rows}; i += {m})"),
            w.block(f"for (int64_t j = 0; j < {columns}; j += {n})"),
            w.block(f"for (int64_t k = 0; k < {depth}; k += {k})"),
        ):
            w.line("const tw_product call = {")
            w.line(
                f"    .rows = tw_min_index({rows} - i, {m}), .columns ="
                f" tw_min_index({columns} - j, {n}), .depth = tw_min_index({depth} - k, {k}),"
            )
            w.line(f"    .a = pa + i * {depth} + k, .a_stride = {depth}, .a_zero = za,")
            w.line("    .b = pb + k * ldc + j, .b_stride = ldc, .b_zero = zb,")
            w.line("    .c = pc + i * ldc + j, .c_stride = ldc};")
            w.line(f"{self.called.symbol}(&call);")

    def _add(self) -> None:
        """Add the block to what is there."""
        moving = self.body.point.write.moving
        if self.body.point.write.storage.dtype is self.product.dtype:
            self._write_back()
            return
        with self.w.loop("i", self.rows.count), self.w.loop("j", self.columns.count):
            row = self._part(self.rows, moving, "i") + self._part(self.columns, moving, "j")
            self._write_one(self._rest(moving) + row)


def _stored_fill(port: Port) -> str:
    """What a read outside of its tensor gives, as it would be stored."""
    assert port.fill is not None
    kind, held = promoted(port.dtype), port.storage.dtype
    return f"({STORAGE_TYPE[held]}){store(literal(port.fill, kind), kind, held)}"

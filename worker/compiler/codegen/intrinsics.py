"""Matrix products: recognising them in an operator and writing them with the header's tw_gemm_*.

An operator is a product when it sums f(A) * g(B) where the operands of f and those of g share only
reduction and batch axes: matmul in any layout, convolution of any rank and stride, grouped or not,
with casts, zero points or scales on either side.  The parallel axes of one side are flattened into
rows, those of the other into columns, the reduction axes into the depth.  Element offsets are sums
of a row (or column) part and a depth part, so each part is tabulated once per block; panels are
packed through the tables while f and g are applied, and one micro-kernel does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

from worker.compiler.codegen.ctext import STORAGE_TYPE, VALUE_TYPE, Writer, index_text, literal
from worker.compiler.codegen.expr import combine, convert, emit_scalar, load, store
from worker.compiler.codegen.nest import Body, uses_coordinates
from worker.compiler.codegen.ports import AxisLoop, Port
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce
from worker.compiler.ir.scalar import Apply, Fn, Read, Scalar, slots_read
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.isa.sums import Order, OrderKind

_PANEL_TYPE = {DType.F32: "float", DType.F64: "double", DType.I32: "uint32_t"}
PACKED_FROM = {
    DType.F32: (DType.F32, DType.F16, DType.BF16),
    DType.F64: (DType.F64,),
    DType.I32: (DType.I32, DType.I16, DType.I8, DType.U16, DType.U8),
}
"""Types of stored elements that become panels of a type without a loss."""
BLOCK = 256
"""`TW_BLOCK_K` of the header."""
_BLOCKS = ("TW_BLOCK_M", "TW_BLOCK_N", "TW_BLOCK_K")
"""Rows, columns and depth that are packed at once."""
_MIN_ROWS, _MIN_COLUMNS, _MIN_DEPTH = 2, 8, 3
"""Below these, packing costs more than it saves and the generic nest wins."""


@dataclass(frozen=True, slots=True)
class Product:
    """How a Compute maps onto a matrix product."""

    dtype: DType
    left: Scalar
    right: Scalar
    rows: tuple[AxisLoop, ...]
    columns: tuple[AxisLoop, ...]
    depth: tuple[AxisLoop, ...]
    batch: tuple[AxisLoop, ...]

    @property
    def order(self) -> Order:
        """In which it sums up."""
        return Order(OrderKind.PRODUCT, tuple(a.parts for a in self.depth), BLOCK)


def instantiations(needs: Iterable[tuple[DType, DType | None]]) -> list[str]:
    """Lines that instantiate the header: (type, None) the product itself, (type, source)
    the packing of plain operands stored as `source`.  Guarded, as kernels may share a unit."""
    lines: list[str] = []
    for panel, source in sorted(needs, key=lambda n: (n[1] is not None, n[0], n[1] or n[0])):
        ctype = _PANEL_TYPE[panel]
        if source is None:
            guard, text = f"TW_HAVE_GEMM_{panel}", f"TW_GEMM_BLOCK({panel}, {ctype})"
        else:
            widen = f"tw_f32_of_{source}" if source in (DType.F16, DType.BF16) else "TW_PLAIN"
            guard = f"TW_HAVE_PACK_{panel}_{source}"
            text = f"TW_PACK({panel}, {ctype}, {source}, {STORAGE_TYPE[source]}, {widen})"
        lines += [f"#ifndef {guard}", f"#define {guard}", text, "#endif"]
    return lines


def product_of(body: Body) -> Product | None:
    """Recognise a product worth packing, or None; its sides may change places."""
    found = recognised(body)
    if found is None or not found.rows or not found.columns or not found.depth:
        return None
    left, right, only_left, only_right = found.left, found.right, found.rows, found.columns
    moving = body.point.write.moving
    near = [abs(moving.coeff(axes[-1].name)) for axes in (only_left, only_right)]
    if near[0] < near[1] and _size(only_left) >= 8:
        left, right, only_left, only_right = right, left, only_right, only_left
    if _size(only_right) < _MIN_COLUMNS and _size(only_left) > _size(only_right):
        left, right, only_left, only_right = right, left, only_right, only_left
    if (
        _size(only_left) < _MIN_ROWS
        or _size(only_right) < _MIN_COLUMNS
        or _size(found.depth) < _MIN_DEPTH
    ):
        return None
    return Product(
        found.dtype, left, right, only_left, only_right, found.depth, found.batch
    )  # fmt: skip


def recognised(body: Body) -> Product | None:
    """Recognise a product of any size, its sides as the operator has them, or None.

    Rows, columns and depth may have no axes: they are one then.
    """
    op, point = body.op, body.point
    if op.reduce is not Reduce.ADD or not isinstance(op.body, Apply):
        return None
    if op.body.fn is not Fn.MUL or len(op.body.args) != 2:
        return None
    dtype = body.value_dtype
    if dtype not in _PANEL_TYPE or dtype is not point.write.dtype.accumulator:
        return None
    if uses_coordinates(op.body) or any(a.kind is AxisKind.SCAN for a in point.axes):
        return None
    for port in (*point.reads, point.write):
        if port.has_lookup or not port.moving.is_linear:
            return None
        if port is not point.write and port.storage.dtype is not port.dtype:
            return None  # an accumulator: reading it converts, which packing does not
        if any(not port.coordinate[d].is_linear for d in port.guarded):
            return None
    left, right = op.body.args
    in_left, in_right = (_axes_of(side, point.reads) for side in (left, right))
    stride = {a.name: abs(point.write.moving.coeff(a.name)) for a in point.axes}
    parallel = sorted(
        (a for a in point.axes if a.kind is AxisKind.PARALLEL), key=lambda a: -stride[a.name]
    )
    depth = tuple(a for a in point.axes if a.kind is AxisKind.REDUCE)
    only_left = tuple(a for a in parallel if a.name in in_left and a.name not in in_right)
    only_right = tuple(a for a in parallel if a.name in in_right and a.name not in in_left)
    batch = tuple(a for a in parallel if a not in only_left and a not in only_right)
    return Product(dtype, left, right, only_left, only_right, depth, batch)


def _size(axes: Sequence[AxisLoop]) -> int:
    return prod(a.extent for a in axes)


def inside(port: Port, offset: Callable[[Affine], str]) -> str:
    """C condition that a guarded read stands in its tensor."""
    return " && ".join(
        f"(uint64_t)({offset(port.coordinate[d])}) < {port.shape[d]}u" for d in port.guarded
    )


def _axes_of(side: Scalar, reads: Sequence[Port]) -> set[str]:
    found: set[str] = set()
    for slot in slots_read(side):
        found.update(reads[slot].moving.variables())
        for dim in reads[slot].guarded:
            found.update(reads[slot].coordinate[dim].variables())
    return found


def emit_product(
    writer: Writer, body: Body, product: Product
) -> tuple[tuple[DType, DType | None], ...]:
    """Write the blocked product; give what `instantiations` must provide for it."""
    made = ProductWriter(writer, body, product)
    made.emit()
    return tuple(made.needs)


@dataclass(frozen=True, slots=True)
class _Group:
    """A flattened group of axes and the names C uses for its current block."""

    letter: str
    axes: tuple[AxisLoop, ...]
    block: str
    total: str
    first: str
    count: str


class ProductWriter:
    """Writes one product: the tables of its offsets, blocks that are packed, what takes them."""

    def __init__(
        self, writer: Writer, body: Body, product: Product, blocks: Sequence[str] = _BLOCKS
    ) -> None:
        self.w = writer
        self.body = body
        self.product = product
        self.ranges = body.point.ranges
        self.panel = _PANEL_TYPE[product.dtype]
        self.tables = 0
        self.rows = self._group("m", product.rows, blocks[0])
        self.columns = self._group("n", product.columns, blocks[1])
        self.depth = self._group("k", product.depth, blocks[2])
        self.table_of: dict[tuple[str, Affine], str] = {}
        self.needs: dict[tuple[DType, DType | None], None] = {(product.dtype, None): None}

    def _group(self, letter: str, axes: tuple[AxisLoop, ...], block: str) -> _Group:
        names = [self.w.fresh(letter) for _ in range(3)]
        return _Group(letter, axes, block, *names)

    def emit(self) -> None:
        w, t = self.w, self.panel
        w.line(f"{t} *const pa = ({t} *)m->scratch;")
        w.line(f"{t} *const pb = pa + TW_BLOCK_M * TW_BLOCK_K;")
        w.line(f"{t} *const pc = pb + TW_BLOCK_N * TW_BLOCK_K;")
        w.line("int32_t *const tables = (int32_t *)(pc + TW_BLOCK_M * TW_BLOCK_N);")
        self._declare_totals()
        with ExitStack() as stack:
            for axis in self.product.batch:
                stack.enter_context(w.loop(axis.name, axis.count))
            stack.enter_context(self._blocks(self.columns))
            w.line(f"const int64_t ldc = ({self.columns.count} + TW_NR - 1) / TW_NR * TW_NR;")
            self._declare_tables(self.columns, (*self._slots(self.product.right), None))
            stack.enter_context(self._blocks(self.rows))
            w.line(f"const int64_t padded = ({self.rows.count} + TW_MR - 1) / TW_MR * TW_MR;")
            self._declare_tables(self.rows, (*self._slots(self.product.left), None))
            w.line(f"memset(pc, 0, (size_t)(padded * ldc) * sizeof({t}));")
            with self._blocks(self.depth):
                both = (*self._slots(self.product.left), *self._slots(self.product.right))
                self._declare_tables(self.depth, tuple(dict.fromkeys(both)))
                self._pack_right()
                self._pack_left()
                w.line(
                    f"tw_gemm_{self.product.dtype}({self.rows.count}, ldc, {self.depth.count},"
                    " pa, pb, pc);"
                )
            self._write_back()

    def _declare_totals(self) -> None:
        for group in (self.rows, self.columns, self.depth):
            counts = ", ".join(a.count for a in group.axes) or "1"
            self.w.line(f"const int64_t {group.total}[] = {{{counts}}};")

    def _blocks(self, group: _Group) -> ExitStack:
        stack = ExitStack()
        total = " * ".join(a.count for a in group.axes) or "1"
        first, block = group.first, group.block
        stack.enter_context(
            self.w.block(f"for (int64_t {first} = 0; {first} < {total}; {first} += {block})")
        )
        self.w.line(f"const int64_t {group.count} = tw_min_index({total} - {first}, {block});")
        return stack

    def _slots(self, side: Scalar) -> tuple[int, ...]:
        return slots_read(side)

    def _port(self, slot: int | None) -> Port:
        point = self.body.point
        return point.write if slot is None else point.reads[slot]

    def _declare_tables(self, group: _Group, slots: Sequence[int | None]) -> None:
        for slot in slots:
            port = self._port(slot)
            for expr in (port.moving, *(port.coordinate[d] for d in port.guarded)):
                self._table(group, expr)

    def _table(self, group: _Group, expr: Affine) -> None:
        """Tabulate the part of `expr` that depends on the group's axes."""
        strides = tuple(expr.coeff(a.name) for a in group.axes)
        if not any(strides) or (group.letter, expr) in self.table_of:
            return
        name = self.w.fresh("d")
        self.table_of[group.letter, expr] = name
        self.w.line(f"int32_t *const {name} = tables + {self.tables} * TW_TABLE;")
        self.tables += 1
        self.w.line(f"const int64_t {name}s[] = {{{', '.join(map(str, strides))}}};")
        self.w.line(
            f"tw_table_i32({name}, {group.first}, {group.count}, {len(strides)},"
            f" {group.total}, {name}s);"
        )

    def _part(self, group: _Group, expr: Affine, position: str) -> str:
        name = self.table_of.get((group.letter, expr))
        return f" + {name}[{position}]" if name else ""

    def _rest(self, expr: Affine) -> str:
        """The part that depends on neither rows, columns nor depth."""
        gone = {a.name: 0 for g in (self.rows, self.columns, self.depth) for a in g.axes}
        return index_text(expr.substitute(gone), self.ranges)

    def _value(self, side: Scalar, offset: Callable[[Affine], str], guards: bool = True) -> str:
        """Load what a side needs at (row or column, depth) and compute its factor."""
        names: dict[int, str] = {}
        for slot in slots_read(side):
            port = self._port(slot)
            kind = promoted(port.dtype)
            element = load(f"{port.pointer}[{offset(port.moving)}]", port.storage.dtype)
            if port.guarded and guards:
                assert port.fill is not None
                element = f"{inside(port, offset)} ? {element} : {literal(port.fill, kind)}"
            names[slot] = self.w.fresh("r")
            self.w.line(f"const {VALUE_TYPE[kind]} {names[slot]} = {element};")
        value = emit_scalar(self.w, side, names.__getitem__, self.body.read_types, self._rest)
        return f"({self.panel}){value}"

    def _plain_port(self, side: Scalar) -> Port | None:
        """The operand of a side that is nothing but one unguarded read; it has header functions."""
        if not isinstance(side, Read):
            return None
        port = self._port(side.slot)
        if port.guarded or promoted(port.dtype) is not self.product.dtype:
            return None
        if port.storage.dtype not in PACKED_FROM[self.product.dtype]:
            return None
        self.needs[self.product.dtype, port.storage.dtype] = None
        return port

    def _whole_table(self, group: _Group, expr: Affine) -> str:
        return self.table_of.get((group.letter, expr), "tw_no_offset")

    def _pack_left(self) -> None:
        w, rows, depth = self.w, self.rows, self.depth
        plain = self._plain_port(self.product.left)
        if plain is not None:
            w.line(
                f"tw_pack_rows_{self.product.dtype}_{plain.storage.dtype}(pa,"
                f" {plain.pointer} + {self._rest(plain.moving)},"
                f" {self._whole_table(rows, plain.moving)},"
                f" {self._whole_table(depth, plain.moving)},"
                f" {rows.count}, padded, {depth.count});"
            )
            return
        with w.loop("i", "padded"):
            w.line(
                f"{self.panel} *restrict const to ="
                f" pa + (i - i % TW_MR) * {depth.count} + i % TW_MR;"
            )
            with w.block(f"if (i >= {rows.count})"):
                w.line(f"for (int64_t k = 0; k < {depth.count}; ++k) to[k * TW_MR] = 0;")
                w.line("continue;")
            with w.loop("k", depth.count):
                value = self._value(
                    self.product.left,
                    lambda e: self._rest(e) + self._part(rows, e, "i") + self._part(depth, e, "k"),
                )
                w.line(f"to[k * TW_MR] = {value};")

    def _pack_right(self) -> None:
        w, columns, depth = self.w, self.columns, self.depth
        side = self.product.right
        plain = self._plain_port(side)
        if plain is not None:
            w.line(
                f"tw_pack_columns_{self.product.dtype}_{plain.storage.dtype}(pb,"
                f" {plain.pointer} + {self._rest(plain.moving)},"
                f" {self._whole_table(columns, plain.moving)},"
                f" {self._whole_table(depth, plain.moving)},"
                f" {columns.count}, ldc, {depth.count},"
                f" {int(self._runs_along_depth((plain,)))});"
            )
            return
        inner = columns.axes[-1].name
        ports = [self._port(slot) for slot in slots_read(side)]
        runs = ["wide == TW_NR"]
        for port in ports:
            table = self.table_of.get((columns.letter, port.moving))
            if table:
                runs.append(f"tw_is_run({table} + j, TW_NR, {port.moving.coeff(inner)})")
        with w.block("for (int64_t j = 0; j < ldc; j += TW_NR)"):
            w.line(f"{self.panel} *restrict const to = pb + j * {depth.count};")
            w.line(f"const int64_t wide = tw_min_index({columns.count} - j, TW_NR);")
            if not any(p.guarded for p in ports):

                def straight(e: Affine) -> str:
                    step = e.coeff(inner)
                    along = f" + {step} * c" if step else ""
                    start = self._part(columns, e, "j")
                    return self._rest(e) + start + self._part(depth, e, "k") + along

                with (
                    w.block(f"if ({' && '.join(runs)})"),
                    w.loop("k", depth.count),
                    w.loop("c", "TW_NR"),
                ):
                    w.line(f"to[k * TW_NR + c] = {self._value(side, straight)};")
                w.line("else")
            with w.block(""):
                w.line(
                    f"if (wide < TW_NR) memset(to, 0, (size_t)({depth.count} * TW_NR) *"
                    f" sizeof({self.panel}));"
                )
                with ExitStack() as stack:
                    for loop in self._order_of_packing(ports):
                        stack.enter_context(w.block(loop))
                    value = self._value(
                        side,
                        lambda e: (
                            self._rest(e)
                            + self._part(columns, e, "j + c")
                            + self._part(depth, e, "k")
                        ),
                    )
                    w.line(f"to[k * TW_NR + c] = {value};")

    def _order_of_packing(self, ports: Sequence[Port]) -> tuple[str, ...]:
        """Loop heads over depth `k` and column `c`.

        Where an operand runs along the depth, short pieces of each column are read in turn: column
        by column for every k would touch one cache line per element.
        """
        count = self.depth.count
        columns = "for (int64_t c = 0; c < wide; ++c)"
        if self._runs_along_depth(ports):
            return (
                f"for (int64_t q = 0; q < {count}; q += 16)",
                columns,
                f"for (int64_t k = q; k < tw_min_index(q + 16, {count}); ++k)",
            )
        return (f"for (int64_t k = 0; k < {count}; ++k)", columns)

    def _runs_along_depth(self, ports: Sequence[Port]) -> bool:
        along = self.depth.axes[-1].name
        across = self.columns.axes[-1].name
        return any(
            abs(p.moving.coeff(along)) == 1 and abs(p.moving.coeff(across)) != 1 for p in ports
        )

    def _write_back(self) -> None:
        w = self.w
        point = self.body.point
        moving = point.write.moving
        if point.write.storage.dtype is self.product.dtype:
            w.line(
                f"tw_add_tile_{self.product.dtype}(({self.panel} *){point.write.pointer} +"
                f" {self._rest(moving)}, pc, {self._whole_table(self.rows, moving)},"
                f" {self._whole_table(self.columns, moving)}, {self.rows.count},"
                f" {self.columns.count}, ldc);"
            )
            return
        step = moving.coeff(self.columns.axes[-1].name)
        table = self.table_of.get((self.columns.letter, moving), "")
        row = self._rest(moving) + self._part(self.rows, moving, "i")
        straight = f"if (tw_is_run({table}, {self.columns.count}, {step}))"
        for head, column in (
            (straight, f"{table}[0] + {step} * j"), ("else", f"{table}[j]")
        ):  # fmt: skip
            with (
                w.block(head),
                w.loop("i", self.rows.count),
                w.loop("j", self.columns.count),
            ):
                self._write_one(f"{row} + {column}")

    def _write_one(self, offset: str) -> None:
        assert self.body.op.reduce is not None
        write = self.body.point.write
        kept, total = write.storage.dtype, self.product.dtype
        target = f"{write.pointer}[{offset}]"
        old = convert(load(target, kept), kept, total)
        value = f"({VALUE_TYPE[total]})pc[i * ldc + j]"
        merged = combine(self.body.op.reduce, total, old, value)
        self.w.line(f"{target} = {store(merged, total, kept)};")

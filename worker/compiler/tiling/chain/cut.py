"""What every operator and operand of a row chain needs for one tile of rows, in closed form.

A chain is anchored at its last operator.  One tile of rows is a box of the anchor's domain; from it
the box of every earlier operator follows against the flow of data: what its readers touch of its
result (the hull, if there are several), taken back through its write index.  Tiles are numbered per
row axis by a row variable, so one propagation serves all tiles: a box has constant extents and
starts that are affine in row variables and in the variables of enclosing loops.

A cut exists when the tiles of every operator together cover its slice exactly, or with a halo (then
it is recomputed).  An operator that does not move with a row variable is computed once for all
tiles along it.
Source: paper sections 4.1 (loop fusion, the last operator as anchor) and 4.2 (stitching).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.schedule.nodes import Box, Span
from worker.compiler.tiling.boxes import reach, start
from worker.compiler.tiling.chain.facts import Chain

ROW_MARK = "%row"


def row_var(number: int) -> str:
    """Name of the variable that counts the tiles along row axis `number`.

    The mark keeps it apart from loop variables, by which the emitter replaces it.
    """
    return f"{ROW_MARK}{number}"


@dataclass(frozen=True, slots=True)
class Rows:
    """One axis of the anchor that is cut into `count` tiles of `tile` rows."""

    axis: str
    tile: int
    count: int


@dataclass(frozen=True, slots=True)
class OpCut:
    """One operator's share of a tile."""

    op: TensorOp
    box: Box
    rows: tuple[int, ...]
    """Row axes that the box moves with."""
    has_halo: bool
    """Neighbouring tiles overlap."""


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor's share of a tile: the box of it that is in the local buffer."""

    tensor: str
    box: Box
    rows: tuple[int, ...]
    fill: float | int | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """A chain cut along rows."""

    rows: tuple[Rows, ...]
    ops: tuple[OpCut, ...]
    fetched: tuple[Held, ...]
    """Tensors from outside, in order of first use."""
    made: tuple[Held, ...]
    """Results, in order of writing."""
    at_home: tuple[str, ...]
    """Tensors read where they are: indexed by a lookup."""
    must_divide: frozenset[int]
    """Row axes of which no tile may overhang: it would store over what others computed."""


def cut_rows(chain: Chain, rows: tuple[Rows, ...]) -> Cut | None:
    """Propagate one tile of `rows`, or None when the chain has no such cut.

    Cost: linear in the accesses of the chain.
    """
    needs: dict[str, list[Box]] = {}
    fills: dict[str, set[float | int]] = {}
    at_home = _looked_up(chain)
    made = chain.made
    if made.intersection(at_home):
        return None
    cuts: list[OpCut] = []
    for op in reversed(chain.ops):
        wanted = needs.get(op.write.tensor)
        if wanted is None:
            box = _seed(chain, op, rows)
        else:
            box = _writer_box(op, hull(wanted, chain.tensors[op.write.tensor].shape))
        found = None if box is None else _settle(chain, op, box, rows)
        if found is None:
            return None
        cuts.append(found)
        for access in op.reads:
            if access.tensor in at_home:
                continue
            spans = touched(op, access, found.box)
            if access.tensor in made and not _stays_inside(op, access, chain.tensors):
                return None
            needs.setdefault(access.tensor, []).append(spans)
            if access.fill is not None and not _stays_inside(op, access, chain.tensors):
                fills.setdefault(access.tensor, set()).add(access.fill)
    cuts.reverse()
    fetched = _fetched(chain, needs, fills)
    if fetched is None:
        return None
    written = _written(cuts)
    results = _made(chain, written)
    if any(
        not _is_sound(chain, held, written[held.tensor], needs.get(held.tensor, []))
        for held in results
    ):
        return None
    return Cut(
        rows, tuple(cuts), fetched, results, at_home, _must_divide(chain, rows, cuts, results)
    )


def _looked_up(chain: Chain) -> tuple[str, ...]:
    """Tensors that some operator indexes by a value."""
    return tuple(
        dict.fromkeys(
            access.tensor
            for op in chain.ops
            for access in op.reads
            if any(expr.has_lookup for expr in access.index)
        )
    )


def _seed(chain: Chain, op: TensorOp, rows: tuple[Rows, ...]) -> Box | None:
    """The box of an operator that nothing inside reads: tiles along the anchor's rows."""
    spans: list[Span] = []
    used: set[int] = set()
    for axis, span in zip(op.domain, chain.slices[op.name], strict=True):
        along = chain.aligned.get((op.name, axis.name))
        number = next((k for k, row in enumerate(rows) if row.axis == along), None)
        if number is None or axis.kind is not AxisKind.PARALLEL:
            spans.append(span)
            continue
        if number in used or span.extent != chain.slice_of(chain.anchor, rows[number].axis).extent:
            return None
        used.add(number)
        tile = rows[number].tile
        spans.append(Span(span.start + var(row_var(number)) * tile, tile))
    return tuple(spans)


def touched(op: TensorOp, access: Access, box: Box) -> Box:
    """The box of a tensor that `op` touches on `box`; it may leave the tensor (padding)."""
    sizes = {a.name: s.extent for a, s in zip(op.domain, box, strict=True)}
    starts = {a.name: s.start for a, s in zip(op.domain, box, strict=True)}
    extents = {a.name: a.extent for a in op.domain}
    spans: list[Span] = []
    for expr in access.index:
        names = expr.variables()
        if not names:
            spans.append(Span(expr, 1))
            continue
        if len(names) == 1 and expr.terms == var(names[0]).terms:  # by far the most frequent
            spans.append(Span(starts[names[0]] + expr.const, sizes[names[0]]))
            continue
        if expr.is_linear or all(_on_grid(starts[n], sizes[n]) for n in names):
            width = reach(expr, sizes, extents).width
            spans.append(Span(start(expr, starts, sizes, extents), width))
        else:
            low, high, _ = expr.bounds({n: (0, extents[n] - 1) for n in names})
            spans.append(Span(Affine((), low), high - low + 1))
    return tuple(spans)


def _on_grid(at: Affine, size: int) -> bool:
    """True when a start is a multiple of the size, as `reach` assumes of // and %."""
    return at.const % size == 0 and all(coeff % size == 0 for _, coeff in at.terms)


def hull(boxes: Sequence[Box], shape: tuple[int, ...]) -> Box:
    """The smallest box around several; a whole dimension where they move differently."""
    spans: list[Span] = []
    for dim, size in enumerate(shape):
        first = boxes[0][dim]
        low, high = 0, first.extent
        for box in boxes[1:]:
            if box[dim] == first:
                continue
            gap = box[dim].start - first.start
            if not gap.is_const:
                spans.append(Span(Affine(), size))
                break
            low, high = min(low, gap.const), max(high, gap.const + box[dim].extent)
        else:
            spans.append(Span(first.start + low, high - low))
    return tuple(spans)


def _covers(span: Span, size: int) -> bool:
    at = span.start
    return at.is_const and at.const <= 0 and at.const + span.extent >= size


def _writer_box(op: TensorOp, need: Box) -> Box | None:
    """The box of the domain that writes all of `need` (REDUCE and SCAN axes whole).

    None when some dimension of the result is not one axis plus a constant, nor a row-major pair
    of axes of which only the outermost is cut.
    """
    cut: dict[str, Span] = {}
    for expr, span in zip(op.write.index, need, strict=True):
        names = sorted(expr.variables(), key=expr.coeff)
        if not names:
            continue
        inner = 1
        for name in names[:-1]:
            if not expr.is_linear or expr.coeff(name) != inner:
                return None
            inner *= op.axis(name).extent
        if not expr.is_linear or expr.coeff(names[-1]) != inner:
            return None
        if _covers(span, expr.const + inner * op.axis(names[-1]).extent):
            continue
        at = span.start - expr.const
        if span.extent % inner or at.floordiv(inner) * inner != at or names[-1] in cut:
            return None
        cut[names[-1]] = Span(at.floordiv(inner), span.extent // inner)
    return tuple(cut.get(a.name, Span(Affine(), a.extent)) for a in op.domain)


def _settle(chain: Chain, op: TensorOp, box: Box, rows: tuple[Rows, ...]) -> OpCut | None:
    """Check (and round up) a box so that its tiles together compute the operator's slice."""
    spans: list[Span] = []
    used: set[int] = set()
    has_halo = False
    for axis, span, own in zip(op.domain, box, chain.slices[op.name], strict=True):
        moving = [k for k in range(len(rows)) if row_var(k) in span.start.variables()]
        if not moving:
            # Along an axis that no row cuts, everything is computed at once.
            spans.append(own)
            if axis.kind is not AxisKind.PARALLEL and own.extent != axis.extent:
                return None
            continue
        if len(moving) > 1 or moving[0] in used or axis.kind is not AxisKind.PARALLEL:
            return None
        used.add(moving[0])
        row = rows[moving[0]]
        settled = _settle_span(span, own, row, row_var(moving[0]))
        if settled is None:
            return None
        has_halo |= settled.extent > abs(span.start.coeff(row_var(moving[0])))
        spans.append(settled)
    return OpCut(op, tuple(spans), tuple(sorted(used)), has_halo)


def _settle_span(span: Span, own: Span, row: Rows, name: str) -> Span | None:
    step = span.start.coeff(name)
    base = span.start.substitute({name: 0})
    gap = base - own.start
    if step == 0 or not gap.is_const or name in gap.variables():
        return None
    width = span.extent if step < 0 else max(span.extent, step)
    if width < abs(step):
        return None
    last = gap.const + step * (row.count - 1)
    if min(gap.const, last) > 0 or max(gap.const, last) + width < own.extent:
        return None
    return Span(span.start, width)


def _stays_inside(op: TensorOp, access: Access, tensors: Mapping[str, Tensor]) -> bool:
    """True when no point of the whole domain reads outside the tensor."""
    if access.fill is None:
        return True
    extents = {a.name: (0, a.extent - 1) for a in op.domain}
    for expr, size in zip(access.index, tensors[access.tensor].shape, strict=True):
        low, high, _ = expr.bounds(extents)
        if low < 0 or high >= size:
            return False
    return True


def _fetched(
    chain: Chain, needs: Mapping[str, list[Box]], fills: Mapping[str, set[float | int]]
) -> tuple[Held, ...] | None:
    found: list[Held] = []
    order = dict.fromkeys(name for op in chain.ops for name in op.input_names())
    for name in order:
        if name in chain.made or name not in needs:
            continue
        shape = chain.tensors[name].shape
        around = hull(needs[name], shape)
        padding = fills.get(name, set())
        if len(padding) > 1:
            return None
        fill = next(iter(padding), None)
        if fill is None:
            around = tuple(
                Span(Affine(), size) if _covers(span, size) else span
                for span, size in zip(around, shape, strict=True)
            )
        elif any(not _within(box, around) for box in needs[name]):
            return None
        found.append(Held(name, around, rows_of(around), fill))
    return tuple(found)


def _within(inner: Box, outer: Box) -> bool:
    """True when constant distances show that `inner` lies inside `outer`."""
    for a, b in zip(inner, outer, strict=True):
        gap = a.start - b.start
        if not gap.is_const or gap.const < 0 or gap.const + a.extent > b.extent:
            return False
    return True


def rows_of(box: Box) -> tuple[int, ...]:
    """Row axes that a box moves with, ascending."""
    names = {name for span in box for name in span.start.variables()}
    return tuple(sorted(int(n[len(ROW_MARK) :]) for n in names if n.startswith(ROW_MARK)))


def _written(cuts: Sequence[OpCut]) -> dict[str, list[tuple[OpCut, Box]]]:
    """The pieces of every result, in order of writing."""
    found: dict[str, list[tuple[OpCut, Box]]] = {}
    for cut in cuts:
        box = touched(cut.op, cut.op.write, cut.box)
        found.setdefault(cut.op.write.tensor, []).append((cut, box))
    return found


def _made(chain: Chain, written: Mapping[str, list[tuple[OpCut, Box]]]) -> tuple[Held, ...]:
    found: list[Held] = []
    for name, parts in written.items():
        box = hull([part for _, part in parts], chain.tensors[name].shape)
        found.append(Held(name, box, rows_of(box)))
    return tuple(found)


def _is_sound(
    chain: Chain, held: Held, pieces: Sequence[tuple[OpCut, Box]], needs: Sequence[Box]
) -> bool:
    """Its pieces are written together, hold what is read, and leave no hole where it is stored."""
    along = [k for k, span in enumerate(held.box) if any(box[k] != span for _, box in pieces)]
    if len(along) > 1 or any(part.rows != held.rows for part, _ in pieces):
        return False  # the checker joins pieces along one dimension only
    shape = chain.tensors[held.tensor].shape
    for need in needs:
        for wanted, span, size in zip(need, held.box, shape, strict=True):
            if not _covers(span, size) and not _within((wanted,), (span,)):
                return False
    if held.tensor not in chain.leaving:
        return True
    written = sum(
        prod(
            span.extent
            for axis, span in zip(part.op.domain, part.box, strict=True)
            if axis.kind is AxisKind.PARALLEL
        )
        for part, _ in pieces
    )
    return written == prod(span.extent for span in held.box)


def _must_divide(
    chain: Chain, rows: tuple[Rows, ...], cuts: Sequence[OpCut], results: tuple[Held, ...]
) -> frozenset[int]:
    """Rows that have to be cut into equal parts.

    A slice that ends inside its axis is followed by another instance's.  A result whose index does
    not leave the tensor when its row leaves the axis would be stored over its neighbour.
    """
    found: set[int] = set()
    for part in cuts:
        for axis, span in zip(part.op.domain, part.box, strict=True):
            if not chain.is_whole(part.op, axis.name):
                found.update(rows_of((span,)))
    for held in results:
        if held.tensor not in chain.leaving:
            continue
        for span, size in zip(held.box, chain.tensors[held.tensor].shape, strict=True):
            for k in rows_of((span,)):
                row, name = rows[k], row_var(k)
                step, base = span.start.coeff(name), span.start.substitute({name: 0})
                extent = chain.slice_of(chain.anchor, row.axis).extent
                end = base.const + step * extent // row.tile if base.is_const else 0
                if step % row.tile or step < 0 or end < size:
                    found.add(k)
    return frozenset(found)


def divides(chain: Chain) -> bool:
    """True when some access divides its axes, so that tiles may have to hold whole groups."""
    return any(
        not expr.is_linear
        for op in chain.ops
        for access in (op.write, *op.reads)
        for expr in access.index
    )


def dense(op: TensorOp) -> bool:
    """True when a box of the domain writes a box of the result without holes."""
    return _writer_box(op, tuple(Span(Affine(), 1 << 40) for _ in op.write.index)) is not None


def chainable(op: TensorOp) -> bool:
    """True when an operator can take part in a chain at all, alone or with others."""
    if any(a.kind is AxisKind.SCAN for a in op.domain):
        return False
    return op.write.tensor not in op.input_names() and dense(op)

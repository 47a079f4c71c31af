"""What one instance of a group computes and needs when its outputs are cut along one dimension.

The group's outputs are cut into `factor` equal slices and the operators are walked backwards: the
slice of a tensor gives the box of its producer's domain, the reads of that box give the slices of
the operands, several readers are joined by their hull.  Slices of inner tensors may overlap (halo):
what they share is computed by each instance that needs it.

Source: GraphTurbo, section 3.1 (the output determines how everything before it is cut) and 3.6
(several outputs).  Deviation: instead of giving up where a slice is not affine in the instance's
number (a reshape that does not divide) or not a slice at all (a reduction, a lookup) it is widened,
at worst to the whole dimension; the points that are then computed repeatedly are counted, and the
caller's guard decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from math import prod
from typing import TypeAlias

from worker.compiler.ir.affine import Affine, FloorDiv, Mod, Var
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, TensorOp
from worker.compiler.schedule.nodes import Box, Span
from worker.compiler.tiling.slices.lines import Line, covering, fit, hull, image, whole

Lines: TypeAlias = "tuple[Line, ...]"
"""One line per dimension of a tensor or per axis of a domain."""

Images: TypeAlias = "tuple[Line | None, ...]"
"""Where the indices of an access go, one per dimension of its tensor; None: not known."""

MAX_EXTRA = 0.35
"""Points computed again, at most, as a part of the operators' own."""
_MAX_ROUNDS = 4
"""Widenings of one tensor before its producer takes all of it."""
_REMEMBERED = 1 << 14
"""Steps of walks: many walks pass the same operator with the same slice of its result."""


@dataclass(frozen=True, slots=True)
class Slices:
    """One instance of a group, as boxes whose starts are affine in the instance's number.

    Boxes have the same extents for all instances; they may leave the tensor or the domain (halo,
    last instance) and are to be clipped.
    """

    boxes: Mapping[str, Box]
    """By tensor, for every tensor written or read: what the instance holds of it."""
    domains: Mapping[str, Box]
    """By operator: what the instance computes, one span per axis.  The instances together cover
    the whole domain, and what they write lies in `boxes`."""
    recompute: frozenset[str]
    """Operators some of whose points are computed by several instances."""
    extra_points: Mapping[str, int]
    """By operator: points computed by all instances together beyond the size of the domain."""
    shares: Mapping[str, Box]
    """By exit: the disjoint slice the instance answers for; `boxes` adds what it reads itself."""


def propagate(
    graph: Graph, ops: Sequence[TensorOp], exits: Sequence[str], dim: int, factor: int,
    var_name: str,
) -> Slices | None:  # fmt: skip
    """Cut `exits` into `factor` slices of ceil(extent / factor) along `dim` of the first one.

    `ops` are a piece of `graph` in execution order, `exits` tensors they write; `dim` counts from
    0.  Other exits are cut along the dimension that corresponds to it through shared axes.
    Where the extent is no multiple, the last instances have less work or none.
    Returns None when that is impossible: `factor` exceeds an extent, an exit has no corresponding
    dimension or cannot be written slice by slice (its producer's write mixes slices, or steps
    through the cut axis in order), or some operator is needed by no exit.  Only the last of these
    stops a factor of 1.
    Cost: linear in the piece, times `factor` where slopes differ and to count points.

    Raises:
        ValueError: no exit, `dim` out of range, or factor < 1.
    """
    if not exits or factor < 1 or not 0 <= dim < len(graph.tensors[exits[0]].shape):
        raise ValueError(f"cannot cut dimension {dim} of {list(exits)} into {factor}")
    shares = _shares(graph, ops, exits, dim, factor)
    if shares is None:
        return None
    walk = _Walk(graph, factor, {}, frozenset(op.write.tensor for op in ops))
    for name, lines in shares.items():
        walk.need(name, lines)
    for op in reversed(ops):
        if not walk.visit(op, is_exit=op.write.tensor in shares):
            return None
    extra = {op.name: _extra_points(op, walk.domains[op.name], factor) for op in ops}
    return Slices(
        boxes={name: _box(lines, var_name) for name, lines in walk.lines.items()},
        domains={op.name: _box(walk.domains[op.name], var_name) for op in ops},
        recompute=frozenset(name for name, points in extra.items() if points),
        extra_points=extra,
        shares={name: _box(lines, var_name) for name, lines in shares.items()},
    )


def repeats_little(ops: Sequence[TensorOp], slices: Slices) -> bool:
    """Whether instances of `ops` compute few enough points again to be worth it."""
    own = sum(op.num_points for op in ops)
    return sum(slices.extra_points.values()) <= MAX_EXTRA * own


def _box(lines: Lines, var_name: str) -> Box:
    return tuple(_span(line, var_name) for line in lines)


@lru_cache(maxsize=4096)
def _span(line: Line, var_name: str) -> Span:
    terms = ((Var(var_name), line.slope),) if line.slope else ()
    return Span(Affine(terms, line.base), line.width)


def _shares(
    graph: Graph, ops: Sequence[TensorOp], exits: Sequence[str], dim: int, factor: int
) -> dict[str, Lines] | None:
    """The slice of every exit, or None when one cannot be cut."""
    if factor == 1:
        return {name: tuple(map(whole, graph.tensors[name].shape)) for name in exits}
    linked = corresponding_dims(ops, (exits[0], dim)) if len(exits) > 1 else {}
    shares: dict[str, Lines] = {}
    for name in exits:
        shape = graph.tensors[name].shape
        own = dim if name == exits[0] else linked.get(name)
        if own is None or factor > shape[own]:
            return None
        size = -(-shape[own] // factor)
        lines = [whole(extent) for extent in shape]
        lines[own] = Line(size, 0, size)
        shares[name] = tuple(lines)
    return shares


def corresponding_dims(ops: Sequence[TensorOp], origin: tuple[str, int]) -> dict[str, int]:
    """By tensor: the dimension reached from `origin` through axes that index both.

    Breadth first, so the nearest dimension wins; ties go to the first operator and dimension.
    """
    touched = [_dims_of_axes(op) for op in ops]
    where: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for k, axes in enumerate(touched):
        for name, places in axes.items():
            for place in places:
                where.setdefault(place, []).append((k, name))
    seen = {origin: None}
    queue = [origin]
    for place in queue:
        for k, name in where.get(place, ()):
            for other in touched[k][name]:
                if other not in seen:
                    seen[other] = None
                    queue.append(other)
    found: dict[str, int] = {}
    for tensor, dim in queue:
        found.setdefault(tensor, dim)
    return found


@lru_cache(maxsize=4096)  # asked once per operator, cut and number of instances
def _dims_of_axes(op: TensorOp) -> Mapping[str, Sequence[tuple[str, int]]]:
    """Per PARALLEL axis, the (tensor, dimension) pairs it is the leading term of."""
    found: dict[str, list[tuple[str, int]]] = {a.name: [] for a in op.parallel_axes}
    for access in (op.write, *op.reads):
        for dim, expr in enumerate(access.index):
            names = [v for v in expr.variables() if expr.coeff(v)]
            if names:
                leading = max(names, key=lambda v: abs(expr.coeff(v)))
                if leading in found:
                    found[leading].append((access.tensor, dim))
    return found


@dataclass(slots=True)
class _Walk:
    """The backward walk: what is known so far of each tensor and operator."""

    graph: Graph
    factor: int
    lines: dict[str, Lines]
    written: frozenset[str]
    domains: dict[str, Lines] = field(default_factory=dict)

    def need(self, tensor: str, lines: Lines) -> None:
        """Add a reader's slice of `tensor` to what is needed of it."""
        shape = self.graph.tensors[tensor].shape
        old = self.lines.get(tensor)
        if old is not None:
            lines = tuple(hull(a, b, self.factor) for a, b in zip(old, lines, strict=True))
        if tensor in self.written:
            lines = self._covered(lines, shape)
        self.lines[tensor] = tuple(
            self._tidy(line, extent) for line, extent in zip(lines, shape, strict=True)
        )

    def _covered(self, lines: Lines, shape: tuple[int, ...]) -> Lines:
        """Widened so that the instances together compute every element: at most one dimension
        moves (a product of two moving intervals leaves corners out)."""
        wide = [covering(a, extent, self.factor) for a, extent in zip(lines, shape, strict=True)]
        moving = [k for k, line in enumerate(wide) if line.slope]
        if len(moving) > 1:
            kept = min(moving, key=lambda k: (wide[k].width / shape[k], k))
            wide = [a if k == kept else whole(shape[k]) for k, a in enumerate(wide)]
        return tuple(wide)

    def _tidy(self, line: Line, extent: int) -> Line:
        """Fixed lines clipped; moving lines that hold everything anyway made fixed."""
        if not line.slope:
            low = min(max(line.base, 0), extent - 1)
            return Line(0, low, max(1, min(line.base + line.width, extent) - low))
        starts = (line.base, line.start(self.factor - 1))
        everything = max(starts) <= 0 and min(starts) + line.width >= extent
        return whole(extent) if everything else line

    def visit(self, op: TensorOp, *, is_exit: bool) -> bool:
        """Find the operator's domain and what it reads; False where propagation gives up."""
        target = op.write.tensor
        if target not in self.lines:
            return False
        shape = self.graph.tensors[target].shape
        for _ in range(_MAX_ROUNDS):
            held = self.lines[target]
            domain = _domain(op, held, self.factor)
            written = self._clear(op.write, _images(op, domain, self.factor)[-1])
            if self._inside(written, held, shape):
                self._read(op, domain)
                if self.lines[target] == held:
                    self.domains[op.name] = domain
                    return True  # else it reads what it writes, and needs more of that
            elif is_exit:
                return False
            else:
                self.need(target, written)
        self.lines[target] = tuple(map(whole, shape))
        self.domains[op.name] = tuple(whole(a.extent) for a in op.domain)
        self._read(op, self.domains[op.name])
        return not is_exit

    def _read(self, op: TensorOp, domain: Lines) -> None:
        for access, images in zip(op.reads, _images(op, domain, self.factor), strict=False):
            self.need(access.tensor, self._clear(access, images))

    def _clear(self, access: Access, images: Images) -> Lines:
        """The slice of a tensor that is touched: all of a dimension where that is not known."""
        shape = self.graph.tensors[access.tensor].shape
        return tuple(whole(e) if a is None else a for a, e in zip(images, shape, strict=True))

    def _inside(self, inner: Lines, outer: Lines, shape: tuple[int, ...]) -> bool:
        """True when `inner`, clipped to the tensor, lies in `outer` for every instance."""
        for a, b, extent in zip(inner, outer, shape, strict=True):
            together = a.slope == b.slope
            if together and b.base <= a.base and a.base + a.width <= b.base + b.width:
                continue
            for g in range(self.factor):
                low, high = max(a.start(g), 0), min(a.start(g) + a.width, extent)
                if low < high and not b.start(g) <= low < high <= b.start(g) + b.width:
                    return False
        return True


@lru_cache(maxsize=_REMEMBERED)
def _domain(op: TensorOp, held: Lines, factor: int) -> Lines:
    """The box of `op`'s domain that writes `held`; axes that cannot be cut are whole."""
    found: dict[str, Line] = {}
    extents = {a.name: a.extent for a in op.domain}
    parallel = {a.name for a in op.parallel_axes}
    for expr, line in zip(op.write.index, held, strict=True):
        if not line.slope or not expr.is_linear:
            continue
        names = [v for v in expr.variables() if extents[v] > 1]
        names.sort(key=expr.coeff, reverse=True)
        if not names or expr.coeff(names[-1]) < 1 or names[0] not in parallel:
            continue
        if names[0] not in found:
            rest = sum(expr.coeff(v) * (extents[v] - 1) for v in names[1:])
            found[names[0]] = _steps(line, expr.coeff(names[0]), expr.const, rest, factor)
    return tuple(found[a.name] if a.name in found else whole(a.extent) for a in op.domain)


@lru_cache(maxsize=_REMEMBERED)
def _images(op: TensorOp, domain: Lines, factor: int) -> tuple[Images, ...]:
    """Per read, and for the write last: where its indices go while the axes move along `domain`."""
    lines = {axis.name: line for axis, line in zip(op.domain, domain, strict=True)}
    return tuple(
        tuple(image(expr, lines, factor) for expr in access.index)
        for access in (*op.reads, op.write)
    )


def _steps(line: Line, coeff: int, const: int, rest: int, factor: int) -> Line:
    """Values v for which coeff * v + const + [0, rest] meets `line`; at least one per instance."""
    if line.slope % coeff == 0:
        first = -((const + rest - line.base) // coeff)
        last = (line.base + line.width - 1 - const) // coeff
        return Line(line.slope // coeff, first, max(1, last - first + 1))
    starts = [-((const + rest - line.start(g)) // coeff) for g in range(factor)]
    lasts = [(line.start(g) + line.width - 1 - const) // coeff for g in range(factor)]
    return fit(starts, [max(s, e) + 1 for s, e in zip(starts, lasts, strict=True)])


@lru_cache(maxsize=_REMEMBERED)
def _extra_points(op: TensorOp, domain: Lines, factor: int) -> int:
    """Points of all instances, clipped, less the size of the domain."""
    fixed, moving = 1, []
    for axis, line in zip(op.domain, domain, strict=True):
        if line.slope and not line.stays_inside(axis.extent, factor):
            moving.append((axis.extent, line))
        else:
            fixed *= line.clipped(0, axis.extent)
    if not moving:  # all instances have as many
        return fixed * factor - op.num_points
    first, last = 0, factor - 1
    for extent, line in moving:
        begin, end = line.inside(extent)
        first, last = max(first, begin), min(last, end)
    unclipped = range(first, last + 1)
    cut = chain(range(first), range(max(first, last + 1), factor)) if unclipped else range(factor)
    total = len(unclipped) * prod(line.width for _, line in moving)
    total += sum(prod(line.clipped(g, extent) for extent, line in moving) for g in cut)
    return fixed * total - op.num_points


def is_sliced_badly(op: TensorOp, domain: Box) -> bool:
    """Whether an instance's slice, halo included, is wider than the axis it is cut from, or starts
    where tiles of an up-sampling cannot."""
    is_wide = any(span.extent > a.extent for span, a in zip(domain, op.domain, strict=True))
    return is_wide or is_off_grid(op, domain)


def is_off_grid(op: TensorOp, domain: Box) -> bool:
    """Whether a part of a domain moves a // or % of a read off its grid.

    Up-sampling reads x // 2: from an odd row on, as many rows reach one row of the source more than
    from an even one.  Tiles are laid from the domain's start on and know even starts only.
    """
    starts = {axis.name: span.start for axis, span in zip(op.domain, domain, strict=True)}
    return any(_is_off(expr, starts) for access in op.reads for expr in access.index)


def _is_off(expr: Affine, starts: Mapping[str, Affine]) -> bool:
    for atom, _ in expr.terms:
        if not isinstance(atom, FloorDiv | Mod):
            continue
        moved = sum(
            (
                starts[inner.name] * coeff
                for inner, coeff in atom.arg.terms
                if isinstance(inner, Var)
            ),
            Affine(),
        )
        steps = (moved.const, *(coeff for _, coeff in moved.terms))
        if any(step % atom.divisor for step in steps) or _is_off(atom.arg, starts):
            return True
    return False

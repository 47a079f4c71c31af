"""What tiling needs to know of one operator: which operands are placed, how, and what may be cut.

Rule for reads.  A Place is found by tensor name, so all slots of one tensor share one Place: the
hull of their boxes, possible when their indices differ by constants only and they agree on the
fill.  Otherwise, and for tables indexed by a lookup, every slot reads the tensor at home.

Rule for the write.  The result is placed when tiles of it are boxes without holes, so that storing
a tile touches nothing else.  An axis that is not the outermost of its dimension, or whose end is
not the tensor's end (concat), must be cut into equal parts; an axis that leaves holes (stride) is
cut into single steps if the operator reduces, else the operator writes at home directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import gcd

from worker.compiler.cost.compute import contraction
from worker.compiler.cost.folds import granule
from worker.compiler.cost.streams import HeldAs
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.machine.machine import Engine, Machine, MemoryLevel
from worker.compiler.schedule.nodes import Span
from worker.compiler.tiling.boxes import reach, start
from worker.compiler.tiling.factors import largest_divisor


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that is placed: the result, or a tensor read through a box."""

    tensor: str
    index: tuple[Affine, ...]
    """The smallest index per dimension over its slots."""
    extra: tuple[int, ...]
    """How far the other slots' indices lie above, per dimension."""
    shape: tuple[int, ...]
    dtype: DType
    fill: float | int | None
    axes: frozenset[str]
    """Axes its box depends on."""
    limits: tuple[tuple[int, int], ...]
    """Per dimension: lowest index and number of positions over the whole domain."""

    linear: tuple[tuple[tuple[str, int], ...] | None, ...]
    """Per dimension (axis, |coefficient|) when the index is linear: the common, fast case."""

    @property
    def is_padded(self) -> bool:
        """Whether it is read outside of its tensor: a whole tensor in a buffer has no such rim."""
        return any(
            low < 0 or low + number > size
            for (low, number), size in zip(self.limits, self.shape, strict=True)
        )

    def widths(self, tile: Mapping[str, int], extents: Mapping[str, int]) -> tuple[int, ...]:
        """Extents of its box for tiles of size `tile`."""
        found: list[int] = []
        for k, terms in enumerate(self.linear):
            if terms is None:
                width = reach(self.index[k], tile, extents).width
            else:
                width = 1
                for name, coeff in terms:
                    width += coeff * (tile[name] - 1)
            found.append(min(width + self.extra[k], self.limits[k][1]))
        return tuple(found)

    def pitches(self, tile: Mapping[str, int], extents: Mapping[str, int]) -> tuple[int, ...]:
        """The most that the index where a tile begins is known to be a multiple of, per dimension;
        0: all begin at the first."""
        found = (reach(expr, tile, extents) for expr in self.index)
        return tuple(gcd(known.step, known.phase) for known in found)

    def box(
        self,
        starts: Mapping[str, Affine],
        tile: Mapping[str, int],
        extents: Mapping[str, int],
    ) -> tuple[Span, ...]:
        """Its box for the tile standing at `starts`."""
        spans: list[Span] = []
        for expr, extra, (low, whole) in zip(self.index, self.extra, self.limits, strict=True):
            width = reach(expr, tile, extents).width + extra
            if width >= whole:
                stands = self.fill is not None and any(
                    starts[v] != Affine() for v in expr.variables()
                )
                first = start(expr, starts, tile, extents) if stands else Affine((), low)
                spans.append(Span(first, whole))
            else:
                spans.append(Span(start(expr, starts, tile, extents), width))
        return tuple(spans)


@dataclass(frozen=True, slots=True)
class Pointwise:
    """An operator of the epilogue: it works on the tile of the result while that is on the chip."""

    op: TensorOp
    engine: Engine
    out: Operand
    """Its result, over the axes of the first operator."""
    dim_of_axis: tuple[int | None, ...]
    """Per axis of its domain the dimension of the result that it runs along; None: one step."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One operator, and the pointwise operators fused behind it, as tiling sees them."""

    op: TensorOp
    tensors: Mapping[str, Tensor]
    extents: Mapping[str, int]
    reads: tuple[Operand, ...]
    at_home: tuple[int, ...]
    """Read slots served from the home level."""
    out: Operand | None
    """None: written at home directly."""
    accumulates: bool
    """The result needs an accumulator started at the identity."""
    exact: frozenset[str]
    """Axes cut into equal parts only."""
    single: frozenset[str]
    """Axes cut into single steps only."""
    whole: frozenset[str]
    """Axes not cut at all (their order matters)."""
    below: Mapping[str, tuple[str, ...]]
    """axis -> axes that must be whole in a tile before it may exceed 1."""
    epilogue: tuple[Pointwise, ...] = ()
    late: tuple[Operand, ...] = ()
    """What the epilogue reads from outside the group; it depends on output axes only."""
    max_strips: int = 1
    """Into how many strips a tile may be cut for the epilogue, between whose operators only one
    strip is held; the last result is whole, so that one transfer stores it."""
    is_overlapped: bool = False
    """Accumulators and the last result have a second copy: the epilogue of one tile runs beside
    the sums of the next.  Without, its store still does."""
    is_alone: bool = False
    """Of a layer without an epilogue: its result never has a second copy in the innermost memory.
    Tiles have more room then, and the sums of the next one wait for its store."""
    base: Mapping[str, str] = field(default_factory=dict)
    """Memory that holds an operand around this nest, where it is not the home level."""
    early: frozenset[str] = frozenset()
    """Operands whose first tiles are brought in while what ran before still computes."""
    registers: MemoryLevel | None = None
    """Where the sums of the first operator stand; None: in the innermost memory, as all else."""
    padded_locals: frozenset[str] = frozenset()
    """Operands that live in the innermost memory already but are read beyond their ends: tiles of
    them are copied within it, where the transfer writes what stands around them."""

    @property
    def fetched(self) -> tuple[Operand, ...]:
        """Everything that is filled from outside."""
        return (*self.reads, *self.late)

    @property
    def stored(self) -> Operand | None:
        """What leaves the chip: the result of the last operator."""
        return self.epilogue[-1].out if self.epilogue else self.out

    def strips(self, tile: Mapping[str, int]) -> tuple[int, int]:
        """(dimension, number) of the equal strips in which the epilogue walks over a tile."""
        best = (0, 1)
        if self.out is not None and self.max_strips > 1:
            for dim, width in enumerate(self.out.widths(tile, self.extents)):
                number = largest_divisor(width, self.max_strips)
                if number > best[1]:
                    best = (dim, number)
        return best

    def placed_widths(
        self, operand: Operand, tile: Mapping[str, int], *, is_last: bool = True
    ) -> tuple[int, ...]:
        """Extents of an operand's Place: a strip between the epilogue's operators, or its box."""
        widths = operand.widths(tile, self.extents)
        if not is_last or all(operand is not step.out for step in self.epilogue[:-1]):
            return widths
        dim, number = self.strips(tile)
        return tuple(w // number if d == dim else w for d, w in enumerate(widths))

    def made(self, *, is_last: bool) -> tuple[Operand, ...]:
        """Results placed at a level: all at the innermost, outside of it only what is stored."""
        if self.epilogue and is_last:
            assert self.out is not None
            return (self.out, *(p.out for p in self.epilogue))
        return () if self.stored is None else (self.stored,)

    @property
    def held(self) -> HeldAs:
        """In what types its operands stand in the innermost memory."""
        placed = (*self.fetched, *self.made(is_last=True))
        return {o.tensor: o.dtype for o in placed if o is not self.in_registers}

    @property
    def in_registers(self) -> Operand | None:
        """The operand that stands in registers."""
        return None if self.registers is None else self.out

    @property
    def out_axes(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.op.domain if a.kind is not AxisKind.REDUCE)

    @property
    def reduce_axes(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.op.reduce_axes)


def facts_of(op: TensorOp, tensors: Mapping[str, Tensor]) -> Facts:
    """Derive the facts.  Cost: linear in the operator."""
    extents = {a.name: a.extent for a in op.domain}
    reads, at_home = _placed_reads(op, tensors, extents)
    accumulates = op.reduce is not None
    exact, single, below = _write_rules(op, tensors[op.write.tensor].shape, extents)
    in_place = op.write.tensor in op.input_names() or (
        not accumulates and any(extents[a] > 1 for a in single)
    )
    out = None if in_place else operand_of(op.write, (op.write,), tensors, extents)
    if out is None:
        exact, single, below = set(), set(), {}
        reads = tuple(r for r in reads if r.tensor != op.write.tensor)
        at_home = tuple(
            k for k, a in enumerate(op.reads)
            if k in at_home or a.tensor == op.write.tensor
        )  # fmt: skip
    elif accumulates:
        width = tensors[op.write.tensor].dtype.accumulator
        out = Operand(
            out.tensor, out.index, out.extra, out.shape, width, None, out.axes, out.limits,
            out.linear,
        )  # fmt: skip
    return Facts(
        op, tensors, extents, reads, at_home, out, accumulates, frozenset(exact),
        frozenset(single),
        frozenset(a.name for a in op.domain if a.kind is AxisKind.SCAN), below,
    )  # fmt: skip


def homes_of_sums(facts: Facts, engine: Engine, machine: Machine) -> tuple[Facts, ...]:
    """Where its sums may stand: in registers of the engine, if all that read them have these, and
    in its memory.  A result that stays in the memory is summed up there."""
    registers = engine.accumulators
    readers = {step.engine.accumulators for step in facts.epilogue}
    if not registers or not facts.accumulates or facts.out is None or readers - {registers}:
        return (facts,)
    if facts.base.get(facts.out.tensor) == engine.memory:
        return (facts,)
    return replace(facts, registers=machine.level(registers)), facts


def sliced(facts: Facts, extents: Mapping[str, int]) -> Facts:
    """The same nest over a part of its domain: `extents` per axis of the first operator.

    Where the part stands is said when the tree is written (`emit`).  A cut axis must not share a
    dimension's index with // or %, and what it writes must stay inside the part, so it is cut into
    equal pieces only.  Cost: linear in the operator.
    """
    if extents == facts.extents:
        return facts
    op = replace(
        facts.op, domain=tuple(replace(a, extent=extents[a.name]) for a in facts.op.domain)
    )
    tensors = facts.tensors
    exact, single, below = _write_rules(op, tensors[op.write.tensor].shape, extents)
    if facts.out is None:
        exact, single, below = set(), set(), {}

    exact = {*exact, *_beside_cut(facts, extents)}

    def cut(operand: Operand) -> Operand:
        return _cut(operand, tensors[operand.tensor].shape, extents)

    return replace(
        facts,
        op=op,
        extents=extents,
        reads=tuple(cut(r) for r in facts.reads),
        late=tuple(cut(r) for r in facts.late),
        out=None if facts.out is None else cut(facts.out),
        epilogue=tuple(replace(p, out=cut(p.out)) for p in facts.epilogue),
        exact=frozenset(exact),
        single=frozenset(single),
        below=below,
    )


def _beside_cut(facts: Facts, extents: Mapping[str, int]) -> set[str]:
    """Axes that share a padded dimension with a cut axis, such as the kernel's rows.

    A place around the nest holds just what the part reads, and a last tile that hangs over its axis
    would ask for more.
    """
    cut = {name for name, extent in extents.items() if extent < facts.extents[name]}
    found: set[str] = set()
    for operand in facts.fetched:
        for expr in operand.index:
            names = set(expr.variables())
            if len(names) > 1 and names & cut:
                found |= names
    return found


def _cut(operand: Operand, shape: tuple[int, ...], extents: Mapping[str, int]) -> Operand:
    limits: list[tuple[int, int]] = []
    for expr, extra, size in zip(operand.index, operand.extra, shape, strict=True):
        if operand.fill is None:
            limits.append((0, size))
        else:
            low, high = _domain_bounds(expr, extents)
            limits.append((low, high - low + 1 + extra))
    axes = frozenset(v for e in operand.index for v in e.variables() if extents[v] > 1)
    return replace(operand, limits=tuple(limits), axes=axes)


def _placed_reads(
    op: TensorOp, tensors: Mapping[str, Tensor], extents: Mapping[str, int]
) -> tuple[tuple[Operand, ...], tuple[int, ...]]:
    slots: dict[str, list[int]] = {}
    for k, access in enumerate(op.reads):
        slots.setdefault(access.tensor, []).append(k)
    placed: list[Operand] = []
    at_home: list[int] = []
    for numbers in slots.values():
        accesses = tuple(op.reads[k] for k in numbers)
        operand = operand_of(accesses[0], accesses, tensors, extents)
        if operand is None:
            at_home.extend(numbers)
        else:
            placed.append(operand)
    return tuple(placed), tuple(sorted(at_home))


def operand_of(
    first: Access,
    accesses: tuple[Access, ...],
    tensors: Mapping[str, Tensor],
    extents: Mapping[str, int],
) -> Operand | None:
    """The hull of several slots of one tensor, or None when one Place cannot serve them."""
    fills = {a.fill for a in accesses} - {None}
    if len(fills) > 1 or any(e.has_lookup for a in accesses for e in a.index):
        return None
    tensor = tensors[first.tensor]
    index: list[Affine] = []
    extra: list[int] = []
    limits: list[tuple[int, int]] = []
    fill = next(iter(fills), None)
    for dim, expr in enumerate(first.index):
        others = [a.index[dim] for a in accesses]
        if any(o.terms != expr.terms for o in others):
            return None
        low = min(o.const for o in others)
        index.append(Affine(expr.terms, low))
        extra.append(max(o.const for o in others) - low)
        bounds = _domain_bounds(index[-1], extents)
        if fill is None:
            limits.append((0, tensor.shape[dim]))
        else:
            limits.append((bounds[0], bounds[1] - bounds[0] + 1 + extra[-1]))
    axes = frozenset(v for e in index for v in e.variables() if extents[v] > 1)
    return Operand(
        tensor.name, tuple(index), tuple(extra), tensor.shape, tensor.dtype, fill, axes,
        tuple(limits), tuple(_linear_terms(e) for e in index),
    )  # fmt: skip


def _linear_terms(expr: Affine) -> tuple[tuple[str, int], ...] | None:
    if not expr.is_linear:
        return None
    return tuple((name, abs(expr.coeff(name))) for name in expr.variables())


def _domain_bounds(expr: Affine, extents: Mapping[str, int]) -> tuple[int, int]:
    low, high, _ = expr.bounds({name: (0, extents[name] - 1) for name in expr.variables()})
    return low, high


def _write_rules(
    op: TensorOp, shape: tuple[int, ...], extents: Mapping[str, int]
) -> tuple[set[str], set[str], dict[str, tuple[str, ...]]]:
    exact: set[str] = set()
    single: set[str] = set()
    below: dict[str, tuple[str, ...]] = {}
    seen: set[str] = set()
    for expr, size in zip(op.write.index, shape, strict=True):
        names = expr.variables()
        single.update(n for n in names if n in seen)
        seen.update(names)
        if not expr.is_linear:
            single.update(names)
            continue
        chain: list[str] = []
        expected = 1
        is_regular = True
        for name in sorted(names, key=lambda n: (abs(expr.coeff(n)), n)):
            if is_regular and expr.coeff(name) == expected and name not in single:
                below[name] = tuple(chain)
                chain.append(name)
                expected *= extents[name]
            elif extents[name] > 1:
                is_regular = False
                single.add(name)
        exact.update(chain[:-1])
        reaches_end = is_regular and expr.const + expected == size
        if chain and not reaches_end:
            exact.add(chain[-1])
    return exact, single, below


def granules(facts: Facts, engine: Engine) -> dict[str, int]:
    """Smallest sensible tile per axis for an engine: fill its array, then grow.

    Axes of a matrix-like operator fill columns (n) and rows (k) of the array from the innermost
    axis outwards, or whatever its dataflow lays along them, of a line of MACs columns only; other
    operators start with a row of the innermost axis.
    """
    sizes = dict.fromkeys(facts.extents, 1)
    roles = contraction(facts.op)
    names = [a.name for a in facts.op.domain]
    if roles is None or not engine.array:
        for name in reversed(facts.out_axes):
            if facts.extents[name] > 1:
                sizes[name] = min(facts.extents[name], 16)
                break
        return sizes
    targets = granule(engine.array, engine.dataflow)
    groups = (roles.rows, roles.columns, roles.depth)
    for group, target in zip(groups, targets, strict=True):
        left = target
        for k in reversed(group) if group is not roles.depth else group:
            if left > 1:
                sizes[names[k]] = min(facts.extents[names[k]], left)
                left = -(-left // sizes[names[k]])
    for name in sizes:
        if name in facts.exact:
            sizes[name] = gcd(sizes[name], facts.extents[name])
    return sizes

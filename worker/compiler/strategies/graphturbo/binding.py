"""Which cores compute which slice of an instance's output, and where the output is declared.

A *binding* is a tuple of factors, one per dimension, outermost first: dimension k of the output is
cut into `binding[k]` equal slices and each slice goes to its own core (cores numbered row-major
over the factors).  Trailing ones are dropped, so () is a tensor that one core computes.

Source: GraphTurbo, section 3.4 and Algorithm 4.  Deviates, each with a switch on `bind`:

- An inferred binding is passed on to the instance's own producers.  As printed, the else branch
  (lines 15-16) does not, so that inference stops after one hop.
- An inferred binding survives a tie with the plain one.  As printed (line 16) it must use strictly
  more cores; but where the number of cores is a power of two no binding uses more than the plain
  one, so that every inference would be thrown away and neighbours would differ for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from worker.compiler.ir.affine import Affine, FloorDiv, Interval, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.footprint import SplitKind, full_box, split_kind
from worker.compiler.ir.op import Tensor, TensorOp
from worker.compiler.strategies.graphturbo.values import BufferScope

_DRIFT = 16
"""Slices may be shifted by a 16th of a dimension: cut over eight cores, half a slice still fits."""


@dataclass(frozen=True, slots=True)
class Bindable:
    """The output tensor of an instance, as far as binding is concerned."""

    shape: tuple[int, ...]
    forbidden: frozenset[int] = frozenset()
    """Dimensions that may not be cut over cores (the paper's annotated requirements)."""


@dataclass(frozen=True, slots=True)
class Edge:
    """`consumer` reads the output of `producer` (positions in the list of instances)."""

    producer: int
    consumer: int
    dim_of: tuple[int | None, ...]
    """Per dimension of the producer's output, the dimension of the consumer's output that runs
    over the same iteration variable; None: a reduction, a broadcast, or nothing matches."""
    part: tuple[Interval, ...] | None = None
    """Box of the producer's output that is read, inclusive; None: all of it."""

    def __post_init__(self) -> None:
        matched = [dim for dim in self.dim_of if dim is not None]
        if len(set(matched)) != len(matched):
            raise ValueError(f"two dimensions of the producer match one of the consumer: {self}")


@dataclass(frozen=True, slots=True)
class Bindings:
    """The result of Algorithm 4, by position in the list of instances."""

    bind: tuple[tuple[int, ...], ...]
    scope: tuple[BufferScope, ...]
    """Where the output is declared: LB, or the shared scope where its consumers disagree."""
    inferred: tuple[bool, ...]
    """True where the binding is the one that a consumer asked for."""


def num_cores_used(binding: tuple[int, ...]) -> int:
    """Cores that a binding keeps busy."""
    return prod(binding)


def trimmed(factors: Sequence[int]) -> tuple[int, ...]:
    """`factors` without trailing ones: equal bindings are then equal tuples."""
    end = len(factors)
    while end and factors[end - 1] == 1:
        end -= 1
    return tuple(factors[:end])


def plain(
    shape: tuple[int, ...], num_cores: int = 8, forbidden: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """Give cores greedily to the dimensions of `shape`, from the outermost inwards.

    Each dimension takes the largest factor that divides its extent and does not exceed the cores
    left.  Factors are the powers of two and the divisors of `num_cores`: the paper's 8, 4, 2, 1 for
    eight cores; for 9 or 108 cores the divisors use what powers of two would leave idle.

    Raises:
        ValueError: fewer than one core.
    Cost: rank times the number of factors.
    Source: section 3.4, plain binding.
    """
    if num_cores < 1:
        raise ValueError(f"a binding needs at least one core, got {num_cores}")
    factors = _factors(num_cores)
    left = num_cores
    binding: list[int] = []
    for dim, extent in enumerate(shape):
        factor = 1
        if dim not in forbidden:
            factor = next(f for f in factors if f <= left and extent % f == 0)
        binding.append(factor)
        left //= factor
    return trimmed(binding)


def _factors(num_cores: int) -> tuple[int, ...]:
    """Factors that `plain` tries, largest first; 1 is always the last."""
    return tuple(f for f in range(num_cores, 0, -1) if f & (f - 1) == 0 or num_cores % f == 0)


def required(binding: tuple[int, ...], edge: Edge) -> tuple[int, ...]:
    """The binding that cuts the producer's output as the consumer's `binding` cuts its operand.

    The consumer's factors at the matched dimensions, one elsewhere.  Whether the producer's shape
    allows it is another matter (`infer`).
    """
    return trimmed([1 if d is None or d >= len(binding) else binding[d] for d in edge.dim_of])


def is_local(binding: tuple[int, ...], edge: Edge, held: tuple[int, ...]) -> bool:
    """True when every core of the consumer finds what it reads (halos aside) on itself.

    `binding` is the consumer's, `held` the producer's.  Equal cuts are not enough: a factor of the
    consumer without a match makes several cores read one slice, and a transposition of two bound
    dimensions numbers the cores differently.
    """
    bound = [d for d, factor in enumerate(binding) if factor > 1]
    return held == required(binding, edge) and bound == [d for d in edge.dim_of if d in bound]


def infer(
    binding: tuple[int, ...],
    edge: Edge,
    producer_shape: tuple[int, ...],
    forbidden: frozenset[int] = frozenset(),
) -> tuple[int, ...] | None:
    """The producer's binding that follows from the consumer's `binding`, or None.

    None when it is empty (no bound dimension has a match) or invalid (a factor lies on a forbidden
    dimension or does not divide the extent).  Never uses more cores than `binding`.
    Source: section 3.4, infer_binding.
    """
    wanted = required(binding, edge)
    for dim, factor in enumerate(wanted):
        if factor > 1 and (dim in forbidden or producer_shape[dim] % factor != 0):
            return None
    return wanted or None


def bind(
    instances: Sequence[Bindable],
    edges: Sequence[Edge],
    order: Sequence[int],
    num_cores: int,
    *,
    propagate_inferred: bool = True,
    keep_on_tie: bool = True,
    shared: BufferScope = BufferScope.GB,
) -> Bindings:
    """Bind every instance to cores and choose the scope of its output (Algorithm 4).

    Instances are visited against the order of execution, so that every consumer has decided before
    its producers.  `shared` is the scope of outputs whose consumers disagree: home on machines
    without a global buffer.  Both deviations off is the algorithm as printed, where line 6 is
    read per producer: an operand without an inferred binding does not stop the others.

    Raises:
        ValueError: `order` is no permutation of the instances or runs against an edge; an edge
            whose `dim_of` has not the rank of the producer's output.
    Cost: linear in instances and edges, times the rank.
    """
    incoming = _incoming(instances, edges, order)
    bound: list[tuple[int, ...] | None] = [None] * len(instances)
    scope = [BufferScope.LB] * len(instances)
    kept = [False] * len(instances)
    for i in reversed(order):
        default = plain(instances[i].shape, num_cores, instances[i].forbidden)
        inferred = bound[i] if scope[i] is BufferScope.LB else None
        # `infer` has honoured the producer's requirements: update_binding is the identity
        chosen = default if inferred is None else _larger(inferred, default, keep_on_tie)
        bound[i] = chosen
        kept[i] = chosen == inferred
        if inferred is not None and not propagate_inferred:
            continue
        for edge in incoming[i]:
            j = edge.producer
            wanted = infer(chosen, edge, instances[j].shape, instances[j].forbidden)
            if wanted is None:
                continue
            if bound[j] is None:
                bound[j] = wanted
            elif bound[j] != wanted:
                scope[j] = shared
    return Bindings(tuple(b or () for b in bound), tuple(scope), tuple(kept))


def _larger(
    inferred: tuple[int, ...], default: tuple[int, ...], keep_on_tie: bool
) -> tuple[int, ...]:
    """The binding that uses more cores (line 16)."""
    gain = num_cores_used(inferred) - num_cores_used(default)
    return inferred if gain > 0 or (gain == 0 and keep_on_tie) else default


def _incoming(
    instances: Sequence[Bindable], edges: Sequence[Edge], order: Sequence[int]
) -> tuple[tuple[Edge, ...], ...]:
    """Checked edges by consumer, producers ascending."""
    if sorted(order) != list(range(len(instances))):
        raise ValueError(f"the order is no permutation of {len(instances)} instances: {order}")
    position = {instance: place for place, instance in enumerate(order)}
    result: list[list[Edge]] = [[] for _ in instances]
    for edge in sorted(edges, key=lambda e: e.producer):
        if position[edge.producer] >= position[edge.consumer]:
            raise ValueError(f"the order runs against {edge}")
        if len(edge.dim_of) != len(instances[edge.producer].shape):
            raise ValueError(f"{edge}: output has shape {instances[edge.producer].shape}")
        result[edge.consumer].append(edge)
    return tuple(tuple(into) for into in result)


def dims_between(
    ops: Sequence[TensorOp], source: str, exit_tensor: str, tensors: Mapping[str, Tensor]
) -> tuple[int | None, ...]:
    """Per dimension of `source`, the dimension of `exit_tensor` with the same iteration variable.

    `ops` is one instance in order of execution.  Two dimensions match when cutting the exit's into
    equal consecutive pieces cuts the source's the same way, up to a halo: operators read and write
    them ALIGNED or HALO along one PARALLEL axis that runs forwards over (nearly) all of both.
    Where several paths lead from the source to the exit they must agree: in attention the rows of
    the input match through the queries but not through the keys, hence do not match.
    A dimension of extent one matches nothing, as it is never cut.

    Raises:
        ValueError: no path from `source` to `exit_tensor`.
        KeyError: a tensor that `tensors` does not have.
    Cost: linear in operators times axes times the size of the index expressions.
    Source: GraphTurbo, Algorithm 1, line 10, the matching of loop dimensions.
    """
    maps: dict[str, tuple[int | None, ...]] = {
        exit_tensor: tuple(range(len(tensors[exit_tensor].shape)))
    }
    for op in reversed(ops):
        to_exit = maps.get(op.write.tensor)
        if to_exit is None:
            continue
        for slot, access in enumerate(op.reads):
            dims = tuple(None if d is None else to_exit[d] for d in _step(op, slot, tensors))
            old = maps.get(access.tensor, dims)
            maps[access.tensor] = tuple(
                d if d == other else None for d, other in zip(dims, old, strict=True)
            )
    if source not in maps:
        raise ValueError(f"{source!r} does not lead to {exit_tensor!r}")
    return maps[source]


@dataclass(frozen=True, slots=True)
class _Touch:
    """How an axis walks through one dimension of a tensor."""

    dim: int
    step: Fraction
    """Elements per step of the axis; less than one where neighbours share an element."""
    first: int
    """Lowest element that the first point of the axis touches."""
    window: int
    """Elements between the first and the last that REDUCE axes reach from one point."""

    def runs_over(self, axis: Axis, extent: int) -> bool:
        """True when equal pieces of the axis are equal pieces of a dimension of `extent`."""
        shift = max(Fraction(abs(self.first)), abs(self.first + axis.extent * self.step - extent))
        drift = Fraction(-(-extent // _DRIFT))
        return self.step > 0 and shift <= max(Fraction(self.window), self.step - 1, drift)


def _step(op: TensorOp, slot: int, tensors: Mapping[str, Tensor]) -> tuple[int | None, ...]:
    """Per dimension of read `slot`, the matching dimension of the tensor that `op` writes."""
    shape, out_shape = tensors[op.reads[slot].tensor].shape, tensors[op.write.tensor].shape
    found: list[list[int]] = [[] for _ in shape]
    for axis in op.domain:
        if axis.kind is not AxisKind.PARALLEL or axis.extent == 1:
            continue  # one point is never cut
        out = _touch(op, len(op.reads), axis)
        read = _touch(op, slot, axis)
        if out is None or read is None:
            continue
        if out.runs_over(axis, out_shape[out.dim]) and read.runs_over(axis, shape[read.dim]):
            found[read.dim].append(out.dim)
    return tuple(dims[0] if len(dims) == 1 else None for dims in found)


def _touch(op: TensorOp, slot: int, axis: Axis) -> _Touch | None:
    """How `axis` walks through read `slot` (the write for slot == len(reads)); None if it does not.

    Beside the linear walks of `split_kind` it knows axis // k, the outer digit of a reshape.
    """
    access = op.write if slot == len(op.reads) else op.reads[slot]
    split = split_kind(op, slot, axis.name)
    if split.dim is not None:
        expr = access.index[split.dim]
        box = full_box(op)
        first, _, _ = expr.bounds({**box, axis.name: (0, 0)})
        low, high, _ = expr.bounds({**box, **{a.name: (0, 0) for a in op.parallel_axes}})
        return _Touch(split.dim, Fraction(expr.coeff(axis.name)), first, high - low)
    if split.kind is not SplitKind.OPAQUE:
        return None
    for dim, expr in enumerate(access.index):
        divisor = _outer_digit(expr, axis)
        if divisor:
            return _Touch(dim, Fraction(1, divisor), 0, 0)
    return None


def _outer_digit(expr: Affine, axis: Axis) -> int | None:
    """k when `expr` is axis // k and k divides the axis."""
    match expr.terms:
        case ((FloorDiv(arg, divisor), 1),) if expr.const == 0 and arg == var(axis.name):
            return divisor if axis.extent % divisor == 0 else None
        case _:
            return None

"""From groups to instances: which piece of a consumer reads which piece of a producer.

A group of factor f is f equal instances; piece i owns the elements [i*E/f, (i+1)*E/f) of the
dimension of extent E that it is split on, rounded down at both ends.  An edge between two pieces
stays when the elements the consumer's piece reads overlap those the producer's piece owns.

Source: GraphTurbo section 3.3 and figure 6.  Deviates: the paper's sentence calls an edge redundant
when the output *is* used; the figure and the rest of the section say the opposite, which is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from worker.compiler.errors import InternalError
from worker.compiler.strategies.graphturbo.values import Instance, InstanceGraph

_ONE = Fraction(1)


@dataclass(frozen=True, slots=True)
class GroupShape:
    """What ordering needs to know of one group."""

    factor: int
    """Number of instances, >= 1."""
    output_bytes: int
    """Bytes of the whole group's output."""
    cycles: int
    """Estimated cycles of the whole group."""


@dataclass(frozen=True, slots=True)
class SliceRead:
    """Which producer elements the consumer elements [lo, hi) of the split dimensions read.

    They are [floor(lo * scale) - before, ceil(hi * scale) + after), clipped to the producer.  Such
    windows compose, so one value describes a whole group:

    - the same batch or row dimension: the defaults;
    - a convolution of kernel k, stride s, padding p along the split dimension:
      `scale=s, before=p, after=k-s-p` (negative where a stride skips the last elements);
    - up-sampling by 2: `scale=1/2`; rows merged as batch * S read by batch: `scale=1/S`.
    """

    producer_extent: int
    consumer_extent: int
    scale: Fraction = _ONE
    before: int = 0
    after: int = 0

    def elements(self, lo: int, hi: int) -> tuple[int, int]:
        """Half-open producer interval read by the consumer elements [lo, hi); may be empty."""
        first = lo * self.scale.numerator // self.scale.denominator - self.before
        last = -(-hi * self.scale.numerator // self.scale.denominator) + self.after
        return max(0, first), min(self.producer_extent, last)


@dataclass(frozen=True, slots=True)
class GroupEdge:
    """Group `consumer` reads the output of group `producer`."""

    producer: int
    consumer: int
    read: SliceRead | None = None
    """None: the two are split on dimensions that do not match; every piece reads every piece."""


def piece(number: int, factor: int, extent: int) -> tuple[int, int]:
    """Half-open interval of the elements that piece `number` of `factor` owns."""
    return number * extent // factor, (number + 1) * extent // factor


def instance_graph(groups: Sequence[GroupShape], edges: Sequence[GroupEdge]) -> InstanceGraph:
    """Split every group into its instances and inherit the edges that carry data.

    `groups` must be in topological order.  Bytes and cycles of a group are shared out equally,
    rounded up, so that instances of a group are homogeneous.  A consumer that reads part of a
    producer's piece depends on, and keeps alive, the whole piece.

    Raises:
        InternalError: a factor below 1 or above the extent it splits, an edge against the order of
            the groups or between unknown groups, a scale that is not positive.
    Cost: linear in instances and kept edges.
    """
    first: list[int] = []
    instances: list[Instance] = []
    for number, group in enumerate(groups):
        if group.factor < 1:
            raise _bug(f"group {number} has factor {group.factor}")
        first.append(len(instances))
        instances += (Instance(number, i) for i in range(group.factor))
    producers: list[set[int]] = [set() for _ in instances]
    for edge in edges:
        _check(edge, groups)
        for j in range(groups[edge.consumer].factor):
            begin, end = _producers_of(edge, groups, j)
            start = first[edge.producer]
            producers[first[edge.consumer] + j].update(range(start + begin, start + end))
    return InstanceGraph(
        instances=tuple(instances),
        producers=tuple(tuple(sorted(some)) for some in producers),
        output_bytes=tuple(-(-groups[i.group].output_bytes // groups[i.group].factor)
                           for i in instances),
        cycles=tuple(-(-groups[i.group].cycles // groups[i.group].factor) for i in instances),
    )  # fmt: skip


def _producers_of(edge: GroupEdge, groups: Sequence[GroupShape], j: int) -> tuple[int, int]:
    """Half-open range of the producer's pieces that the consumer's piece `j` reads."""
    factor = groups[edge.producer].factor
    read = edge.read
    if read is None:
        return 0, factor
    lo, hi = read.elements(*piece(j, groups[edge.consumer].factor, read.consumer_extent))
    if lo >= hi:
        return 0, 0
    # element x lies in the last piece i with floor(i * E / f) <= x, that is i < (x + 1) * f / E
    extent = read.producer_extent
    return ((lo + 1) * factor - 1) // extent, (hi * factor - 1) // extent + 1


def _check(edge: GroupEdge, groups: Sequence[GroupShape]) -> None:
    if not 0 <= edge.producer < edge.consumer < len(groups):
        raise _bug(f"edge {edge.producer} to {edge.consumer} is not between groups in order")
    read = edge.read
    if read is None:
        return
    if read.scale <= 0:
        raise _bug(f"edge {edge.producer} to {edge.consumer} has scale {read.scale}")
    for group, extent in (
        (edge.producer, read.producer_extent),
        (edge.consumer, read.consumer_extent),
    ):
        if groups[group].factor > extent:
            raise _bug(f"group {group} has more instances than elements ({extent}) to split")


def _bug(message: str) -> InternalError:
    return InternalError("TW-INT-001", message, stage="graphturbo")

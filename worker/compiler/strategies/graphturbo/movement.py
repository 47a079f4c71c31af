"""What must move between instances: concat, split, copy and redistribute.

A consumer that reads several instances of one group sees them as one tensor, hence a concat stands
in front of it.  An output declared in another scope than its reader's operands is copied; one whose
slices lie on other cores is redistributed.  None of these need cost anything: pieces that lie next
to each other in one buffer are joined by reading the buffer, and what a copy or a redistribution
writes anew it writes at its final place.

Source: GraphTurbo, section 3.5 (figures 8 and 9); split is from section 3.6.  Deviates: the smaller
factor per dimension is the greatest common divisor, which is the minimum wherever one factor
divides the other (always, for powers of two) and otherwise the coarsest cut that both refine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from math import gcd, prod

from worker.compiler.strategies.graphturbo.binding import (
    Bindable,
    Bindings,
    Edge,
    is_local,
    required,
    trimmed,
)
from worker.compiler.strategies.graphturbo.values import BufferScope, InstanceGraph


class MovementKind(StrEnum):
    """The order is that of execution in front of one consumer."""

    SPLIT = "split"
    """Parts of one output for several consumers (up-sampling)."""
    COPY = "copy"
    """Between memory scopes."""
    REDISTRIBUTE = "redistribute"
    """Between the local buffers of the cores."""
    CONCAT = "concat"
    """Outputs of several instances of a group for one consumer."""


class CopyReason(StrEnum):
    """Why pieces cannot be used where they lie."""

    SCOPE = "a piece lies in another memory"
    BINDING = "a piece is spread over the cores differently"
    CUT_BOUND = "the dimension they are cut along is spread over the cores as well"
    STRIDED = "they interleave: a dimension outside the cut has more than one element"


@dataclass(frozen=True, slots=True)
class Movement:
    """One auxiliary operator between instances (a grey ellipse of figure 9)."""

    kind: MovementKind
    producers: tuple[int, ...]
    """Positions of the instances whose outputs it reads, ascending."""
    consumers: tuple[int, ...]
    """Positions of the instances that read its result; one, but for a split."""
    payload_bytes: int
    """Bytes that pass through it, each counted once however many cores receive it."""
    moved_bytes: int
    """Those of them that it copies; 0 when it only renames."""
    src: BufferScope
    dst: BufferScope
    binding: tuple[int, ...]
    """Of the result.  A factor of one: every core that needs the dimension holds all of it."""
    reason: CopyReason | None = None
    """Why a concat or split copies; None for those that do not and for the other kinds."""


@dataclass(frozen=True, slots=True)
class MovementTotal:
    """Sums over the movements of one kind between two scopes."""

    kind: MovementKind
    src: BufferScope
    dst: BufferScope
    count: int
    num_free: int
    payload_bytes: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor or a piece of it as it lies in memory."""

    scope: BufferScope
    binding: tuple[int, ...]


def common_binding(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The binding to meet at when two differ: the smaller factor of each dimension.

    Source: section 3.5, redistribute.  See the module for factors that do not divide each other.
    """
    return trimmed([gcd(a, b) for a, b in zip_longest(first, second, fillvalue=1)])


def why_copied(
    shape: tuple[int, ...], cut: int, whole: Held, pieces: Sequence[Held]
) -> CopyReason | None:
    """Why consecutive pieces along dimension `cut` do not make up `whole` where they lie.

    `shape` is that of the whole; its extent along the cut does not matter.  In LB each core sees
    its own slice: the slices of the pieces are the slice of the whole only if the cut dimension is
    not bound (else core k holds the k-th part of every piece, not the k-th part of the whole), and
    they are contiguous (row-major) only if every dimension outside the cut has one element per
    core.
    Cost: rank plus pieces.
    """
    if any(piece.scope is not whole.scope for piece in pieces):
        return CopyReason.SCOPE
    outer = list(shape[:cut])
    if whole.scope is BufferScope.LB:
        if any(piece.binding != whole.binding for piece in pieces):
            return CopyReason.BINDING
        factors = (*whole.binding, *[1] * (len(shape) - len(whole.binding)))
        if factors[cut] > 1:
            return CopyReason.CUT_BOUND
        outer = [extent // factor for extent, factor in zip(outer, factors, strict=False)]
    return CopyReason.STRIDED if any(extent > 1 for extent in outer) else None


def is_zero_copy(shape: tuple[int, ...], cut: int, whole: Held, pieces: Sequence[Held]) -> bool:
    """True when joining `pieces` along `cut`, or cutting them out, copies nothing."""
    return why_copied(shape, cut, whole, pieces) is None


@dataclass(frozen=True, slots=True)
class _Given:
    """The arguments of `insert_movements`."""

    graph: InstanceGraph
    outputs: Sequence[Bindable]
    bindings: Bindings
    cut_dims: Sequence[int | None]
    operands: BufferScope


@dataclass(frozen=True, slots=True)
class _Read:
    """What one consumer reads from one producer."""

    edge: Edge
    extents: tuple[int, ...]
    """Of the part that is read."""
    proper_dims: tuple[int, ...]
    """Dimensions of which only a part is read."""
    num_bytes: int
    wanted: tuple[int, ...]
    """The binding under which the consumer's cores find it on themselves."""
    held: Held
    """How it lies after `move`."""
    move: Movement | None
    """The COPY or REDISTRIBUTE it needs."""


def insert_movements(
    graph: InstanceGraph,
    order: Sequence[int],
    outputs: Sequence[Bindable],
    edges: Sequence[Edge],
    bindings: Bindings,
    cut_dims: Sequence[int | None],
    *,
    operands: BufferScope = BufferScope.LB,
) -> tuple[Movement, ...]:
    """Auxiliary operators, in order of execution: each stands in front of its first consumer.

    `cut_dims` has per group the dimension (from 0) of its output that its instances are cut along,
    None for one instance.  `operands` is the scope that instances read from; the scope of an
    instance is about its output only (section 3.4).  What a consumer reads from one group with one
    matching of dimensions is one tensor.

    Raises:
        ValueError: edges that are not exactly the dependences of `graph`, or repeat; a group of
            several instances without a cut dimension.
    Cost: linear in the edges, times the rank.
    """
    _check(graph, edges, cut_dims)
    given = _Given(graph, outputs, bindings, cut_dims, operands)
    reads_of: dict[int, list[_Read]] = {i: [] for i in order}
    for edge in sorted(edges, key=lambda e: e.producer):
        reads_of[edge.consumer].append(_read(given, edge))
    splits = _splits(given, [read for i in order for read in reads_of[i]])
    landed = frozenset(edge for split, parts in splits if split.moved_bytes for edge in parts)
    result: list[Movement] = []
    for i in order:
        result.extend(split for split, _ in splits if split.consumers[0] == i)
        result.extend(read.move for read in reads_of[i] if read.move is not None)
        result.extend(_concats(given, reads_of[i], landed))
    return tuple(result)


def totals(movements: Sequence[Movement]) -> tuple[MovementTotal, ...]:
    """Counts and bytes per kind and pair of scopes, in the order of the enumerations."""
    kinds, scopes = tuple(MovementKind), tuple(BufferScope)
    sums: dict[tuple[int, int, int], list[Movement]] = {}
    for move in movements:
        key = (kinds.index(move.kind), scopes.index(move.src), scopes.index(move.dst))
        sums.setdefault(key, []).append(move)
    return tuple(
        MovementTotal(
            same[0].kind,
            same[0].src,
            same[0].dst,
            len(same),
            sum(move.moved_bytes == 0 for move in same),
            sum(move.payload_bytes for move in same),
            sum(move.moved_bytes for move in same),
        )
        for _, same in sorted(sums.items())
    )


def _check(graph: InstanceGraph, edges: Sequence[Edge], cut_dims: Sequence[int | None]) -> None:
    pairs = sorted({(edge.consumer, edge.producer) for edge in edges})
    expected = sorted((i, j) for i, into in enumerate(graph.producers) for j in into)
    if pairs != expected:
        raise ValueError(f"edges {pairs} are not the dependences {expected}")
    if len({(edge.consumer, edge.producer, edge.dim_of) for edge in edges}) != len(edges):
        raise ValueError("an edge with the same matching of dimensions repeats")
    for instance in graph.instances:
        if instance.number > 0 and cut_dims[instance.group] is None:
            raise ValueError(f"group {instance.group} has instances but no cut dimension")


def _read(given: _Given, edge: Edge) -> _Read:
    """The read with the movement that brings it to the consumer's scope and cores."""
    j, shape = edge.producer, given.outputs[edge.producer].shape
    extents = shape if edge.part is None else tuple(high - low + 1 for low, high in edge.part)
    num_bytes = -(-given.graph.output_bytes[j] * prod(extents) // prod(shape))
    src, dst = given.bindings.scope[j], given.operands
    reader = given.bindings.bind[edge.consumer]
    wanted, binding = required(reader, edge), given.bindings.bind[j]
    kind: MovementKind | None = None
    if src is not dst:
        # between shared and local memory the slices are cut as they are wanted, without a detour
        kind, binding = MovementKind.COPY, common_binding(wanted, extents)
    elif dst is BufferScope.LB and not is_local(reader, edge, binding):
        kind, binding = MovementKind.REDISTRIBUTE, common_binding(wanted, binding)
    move = None
    if kind is not None:
        move = Movement(kind, (j,), (edge.consumer,), num_bytes, num_bytes, src, dst, binding)
    proper = tuple(d for d, extent in enumerate(extents) if extent != shape[d])
    return _Read(edge, extents, proper, num_bytes, wanted, Held(dst, binding), move)


def _splits(given: _Given, reads: Sequence[_Read]) -> tuple[tuple[Movement, tuple[Edge, ...]], ...]:
    """A split, with its edges, for each output of which several consumers of a group read parts.

    `reads` in order of execution.  Where one of them reads the whole output, the parts that the
    others read are halos, and no split is needed.
    """
    readers: dict[tuple[int, int, tuple[int | None, ...]], list[_Read]] = {}
    for read in reads:
        group = given.graph.instances[read.edge.consumer].group
        key = (read.edge.producer, group, read.edge.dim_of)
        readers.setdefault(key, []).append(read)
    return tuple(
        (_split(given, parts), tuple(read.edge for read in parts))
        for parts in readers.values()
        if len(parts) > 1 and all(read.proper_dims for read in parts)
    )


def _split(given: _Given, parts: Sequence[_Read]) -> Movement:
    """One output, cut into what each of its consumers reads.

    A part that is copied to another scope or to other cores is cut out by that movement.
    """
    j = parts[0].edge.producer
    whole = Held(given.bindings.scope[j], given.bindings.bind[j])
    moved_bytes, first_reason = 0, None
    for part in parts:
        if part.move is not None:
            continue
        reasons = [why_copied(part.extents, d, whole, (part.held,)) for d in part.proper_dims]
        reason = next((r for r in reasons if r is not None), None)
        moved_bytes += part.num_bytes if reason is not None else 0
        first_reason = first_reason or reason
    payload = sum(part.num_bytes for part in parts)
    consumers = tuple(part.edge.consumer for part in parts)
    return Movement(
        MovementKind.SPLIT,
        (j,),
        consumers,
        payload,
        moved_bytes,
        whole.scope,
        whole.scope,
        whole.binding,
        first_reason,
    )


def _concats(
    given: _Given, reads: Sequence[_Read], landed: frozenset[Edge]
) -> tuple[Movement, ...]:
    """A concat for each operand of one consumer that comes in several pieces."""
    operands: dict[tuple[int, tuple[int | None, ...]], list[_Read]] = {}
    for read in reads:
        group = given.graph.instances[read.edge.producer].group
        operands.setdefault((group, read.edge.dim_of), []).append(read)
    return tuple(_concat(given, pieces, landed) for pieces in operands.values() if len(pieces) > 1)


def _concat(given: _Given, pieces: Sequence[_Read], landed: frozenset[Edge]) -> Movement:
    """The pieces as one tensor; those just copied, redistributed or split are in place already."""
    first = pieces[0].edge.producer
    cut = given.cut_dims[given.graph.instances[first].group]
    assert cut is not None  # by `_check`, as there are several pieces
    binding = pieces[0].wanted
    for piece in pieces:
        binding = common_binding(binding, piece.held.binding)
    resident = [p for p in pieces if p.move is None and p.edge not in landed]
    whole = Held(given.operands, binding)
    shape = given.outputs[first].shape  # that of the whole, but along the cut
    reason = why_copied(shape, cut, whole, [p.held for p in resident]) if resident else None
    return Movement(
        MovementKind.CONCAT,
        tuple(piece.edge.producer for piece in pieces),
        (pieces[0].edge.consumer,),
        sum(piece.num_bytes for piece in pieces),
        sum(piece.num_bytes for piece in resident) if reason else 0,
        given.operands,
        given.operands,
        binding,
        reason,
    )

"""KAPLA's greedy search inside one layer (its Algorithm 1) in the space of `blocking`.

From the innermost memory outwards: for every order of the loops outside, pieces grow from what the
memory inside holds.  First they are stacked (copies of a unit pass on the array are given to input
or output channels), then cached (what the memory holds grows).  In each step the datum that is
brought most often is looked at; the loop is taken that lowers this the most, of equals the one that
lowers the second most the most, and grows to the next exact factor.  Of registers the order is kept
by which the fewest words are brought, and what they hold is the unit of the buffer; of the buffer
the order of least energy.
Source: KAPLA, section IV-C and Algorithm 1, whose listing is lost: rebuilt from the prose.  Where
that leaves a choice: a datum that nothing helps is passed over for the next one; channels whose
sums would have to meet in the array come last of equals; copies are stacked until the array is
full, whether or not it helps, as long as there are channels left; words count the same whichever
datum they are of.  What passes the buffer by, as in `blocking`, takes no room there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import inf, prod
from typing import TypeAlias

from benchmarks.rivals.row_stationary import OUTPUT, Layer, Nest, Node, copies, nest_of, nests

Trips: TypeAlias = tuple[int, int, int]
"""Of the loops I, O, B."""
ONCE: Trips = (1, 1, 1)
BY_NAME = (1, OUTPUT, 0)
"""Data in the order of their letters: input, output, weights."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """One blocking of a nest."""

    nest: Nest
    trips: tuple[Trips, Trips, Trips]
    """Outside of the buffer, between it and registers, inside."""
    orders: tuple[tuple[int, ...], tuple[int, ...]]
    """Of the loops of the first two, outermost first."""


def repeats(has: Sequence[int], levels: Sequence[tuple[Trips, Sequence[int]]]) -> int:
    """How often a datum with some of the loops is brought through nested levels, outermost first:
    once for each iteration of others, but for those inside the last of its own."""
    times = found = 1
    for trips, order in levels:
        inside = [n for n, x in enumerate(order) if has[x] and trips[x] > 1]
        if inside:
            found = times * prod(trips[x] for x in order[: inside[-1]] if not has[x])
        times *= prod(trips[x] for x in range(3) if not has[x])
    return found


def read_back(datum: int, times: int) -> int:
    """Results come back for every time that they are stored but the last."""
    return 2 * times - 1 if datum == OUTPUT else times


def energy_of(blocking: Blocking, node: Node) -> float:
    """As the tool counts it; inf: a memory does not hold it."""
    nest, (outer, middle, inner) = blocking.nest, blocking.trips
    levels = [(outer, blocking.orders[0]), (middle, blocking.orders[1])]
    passes, stored, words = prod(nest.loops), 0.0, 0.0
    held = sum(
        room * _own(inner, has) for room, has in zip(nest.register_room, nest.has, strict=True)
    )
    if held > node.register_words:
        return inf
    kinds = sum(any(has) * (2 if d == OUTPUT else 1) for d, has in enumerate(nest.has))
    energy = passes * nest.ops * (node.op + kinds * node.register)
    for d, has in enumerate(nest.has):
        far = read_back(d, repeats(has, levels[:1]))
        near = read_back(d, repeats(has, levels))
        count = _own(nest.loops, has)
        energy += nest.bus[d] * count * node.bus * near
        if far < near:
            stored += nest.buffer_room[d] * _own(middle, has) * _own(inner, has)
            energy += nest.buffer[d] * count * node.buffer * near
            words += nest.dram[d] * count * far
        else:
            words += nest.buffer[d] * count * far
    return inf if stored > node.buffer_words else energy + words * node.dram


def greedy(layer: Layer, batch: int, node: Node) -> Blocking:
    """What Algorithm 1 ends at.  Cost: orders x steps, a step some factors."""
    registers = [_into_registers(layer, batch, node, order) for order in permutations(range(3))]
    _, nest, inner, order = min(registers, key=lambda found: found[0])
    left = _over(nest.loops, inner)

    def room(grown: Trips, outside: tuple[int, ...]) -> float:
        levels = [(_over(left, grown), outside), (grown, order)]
        return sum(
            nest.buffer_room[d] * _own(grown, has) * _own(inner, has)
            for d, has in enumerate(nest.has)
            if repeats(has, levels[:1]) < repeats(has, levels)
        )

    found = [
        Blocking(nest, (_over(left, grown), grown, inner), (outside, order))
        for outside in permutations(range(3))
        for grown, _ in cached(
            nest.has, nest.dram, nest.loops, left, outside,
            lambda trips, at=outside: room(trips, at) <= node.buffer_words,  # type: ignore[misc]
        )[-1:]
    ]  # fmt: skip
    return min(found, key=lambda blocking: energy_of(blocking, node))


def _into_registers(
    layer: Layer, batch: int, node: Node, order: tuple[int, ...]
) -> tuple[float, Nest, Trips, tuple[int, ...]]:
    """Stacked and cached under one order: words that the buffer serves, the nest, what stays in
    registers, and the order."""
    nest = stacked(layer, batch, node, order)
    inner, words = cached(
        nest.has, nest.buffer, nest.loops, nest.loops, order,
        lambda trips: sum(
            room * _own(trips, has) for room, has in zip(nest.register_room, nest.has, strict=True)
        ) <= node.register_words,
    )[-1]  # fmt: skip
    return sum(words), nest, inner, order


def stacked(layer: Layer, batch: int, node: Node, order: tuple[int, ...]) -> Nest:
    """The array filled with copies of the unit pass, factor by factor.

    Of what the tool knows: where the copies that the steps end at need more iterations than others,
    it has no such nest, and the one with the nearest number of input channels is taken.
    """
    pairs = copies(layer, node)
    (first, widest), tall = pairs[0], pairs[-1][0]
    across = widest // tall if not layer.is_region else widest
    together, above = first, 1
    while not layer.is_region and together * above < tall:
        rest = tall // (together * above)
        factor = next(f for f in range(2, rest + 1) if rest % f == 0)
        ways = [(together, above * factor), (together * factor, above)]  # sums meet in the second
        fewer = [
            (a, b)
            for a, b in ways
            if _passes(layer, batch, node, a, b * across)
            < _passes(layer, batch, node, together, above * across)
        ] or ways[:1]
        now = _words_of(layer, batch, node, order, (together, above * across))
        then = [_words_of(layer, batch, node, order, (a, b * across)) for a, b in fewer]
        chosen = _lowers(now, then)
        together, above = fewer[0 if chosen is None else chosen]
    known = nests(layer, batch, node)
    nest = nest_of(layer, batch, node, together, above * across)
    if nest in known:
        return nest
    return min(known, key=lambda other: abs(other.loops[0] - nest.loops[0]))


def _passes(layer: Layer, batch: int, node: Node, together: int, beside: int) -> int:
    """That run one after the other."""
    return prod(nest_of(layer, batch, node, together, beside).loops)


def _words_of(
    layer: Layer, batch: int, node: Node, order: tuple[int, ...], pair: tuple[int, int]
) -> tuple[float, ...]:
    """By datum, words that the buffer serves before anything is cached."""
    nest = nest_of(layer, batch, node, *pair)
    return _words(nest.has, nest.buffer, nest.loops, nest.loops, order)


def cached(
    has: Sequence[Sequence[int]], unit: Sequence[float], loops: Trips, left: Trips,
    order: tuple[int, ...], fits: Callable[[Trips], bool]
) -> list[tuple[Trips, tuple[float, ...]]]:  # fmt: skip
    """Steps in which what a memory holds grows: factors of what is `left` of the loops, and words
    of each datum that are brought into it then.

    `unit`: words of one pass.
    """
    grown = ONCE
    steps = [(grown, _words(has, unit, loops, left, order))]
    while True:
        ways = [way for x in range(3) if (way := _next(grown, left, x)) is not None and fits(way)]
        then = [_words(has, unit, loops, _over(left, way), order) for way in ways]
        chosen = _lowers(steps[-1][1], then)
        if chosen is None:
            return steps
        grown = ways[chosen]
        steps.append((grown, then[chosen]))


def _lowers(now: Sequence[float], then: Sequence[Sequence[float]]) -> int | None:
    """Which of some ways lowers the datum with the most words the most, of equals the second most;
    where none does, the second, then the third; None: none does."""
    ranked = sorted(range(3), key=lambda d: (-now[d], BY_NAME.index(d)))
    for d in ranked:
        helpful = [n for n, words in enumerate(then) if words[d] < now[d]]
        if helpful:
            rest = [d, *(other for other in ranked if other != d)]
            return min(helpful, key=lambda n: ([then[n][other] for other in rest], n))
    return None


def _next(grown: Trips, left: Trips, x: int) -> Trips | None:
    """With the next factor of one loop; None: all of it is held."""
    found = next((f for f in range(grown[x] + 1, left[x] + 1) if left[x] % f == 0), None)
    if found is None:
        return None
    a, b, c = (found if k == x else own for k, own in enumerate(grown))
    return a, b, c


def _words(
    has: Sequence[Sequence[int]], unit: Sequence[float], loops: Trips, outside: Trips,
    order: tuple[int, ...],
) -> tuple[float, ...]:  # fmt: skip
    return tuple(
        unit[d] * _own(loops, own) * read_back(d, repeats(own, [(outside, order)]))
        for d, own in enumerate(has)
    )


def _own(trips: Trips, has: Sequence[int]) -> int:
    return prod(n for n, own in zip(trips, has, strict=True) if own)


def _over(whole: Trips, part: Trips) -> Trips:
    a, b, c = (n // m for n, m in zip(whole, part, strict=True))
    return a, b, c

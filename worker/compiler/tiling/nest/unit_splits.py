"""Splits of a layer over units.

A split says into how many parts each output axis is cut; what matters is the largest part, so of
the numbers that leave the same part the smallest stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod

from worker.compiler.tiling.factors import divisors
from worker.compiler.tiling.nest.facts import Facts
from worker.compiler.tiling.nest.levels import MAX_SPLIT_AXES

FEW = 256
"""Numbers of parts up to this are all looked at; of more one in ten."""


def splits(facts: Facts, extents: Mapping[str, int], units: int) -> tuple[dict[str, int], ...]:
    """Ways to split output axes over at most `units` units, none of which could be split further
    along an axis that it splits."""
    axes = [n for n in facts.out_axes if extents[n] > 1 and n not in facts.whole]
    parts = {n: _parts(facts, n, extents[n], units) for n in axes}
    larger = {n: dict(pairwise(numbers)) for n, numbers in parts.items()}
    return tuple(
        ways
        for ways in _products(list(parts.items()), units)
        if len(ways) <= MAX_SPLIT_AXES and _is_full(larger, ways, units)
        if ways or units == 1 or not axes
    )


def _products(choices: Sequence[tuple[str, Sequence[int]]], units: int) -> Iterator[dict[str, int]]:
    if not choices:
        yield {}
        return
    (name, numbers), *others = choices
    for number in numbers:
        if number > units:
            break
        for rest in _products(others, units // number):
            yield {name: number, **rest} if number > 1 else rest


def _parts(facts: Facts, name: str, extent: int, units: int) -> tuple[int, ...]:
    """Numbers of parts with different largest parts, ascending."""
    most = min(extent, units)
    if name in facts.exact:
        return tuple(d for d in divisors(extent) if d <= most)
    tried, number = [1], 1
    while number < most:
        number = number + 1 if number < FEW else min(most, int(number * 1.1))
        tried.append(number)
    return tuple(dict.fromkeys(-(-extent // -(-extent // n)) for n in tried))


def _is_full(larger: Mapping[str, Mapping[int, int]], ways: Mapping[str, int], units: int) -> bool:
    """Whether no axis that is split has units for its next larger number of parts."""
    used = prod(ways.values())
    return all(
        used // number * larger[name].get(number, units + 1) > units
        for name, number in ways.items()
    )

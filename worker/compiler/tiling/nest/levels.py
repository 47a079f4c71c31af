"""Tile sizes written out per stage: counts, splits over units, trips, copies, bytes.

The climber asks for tens of thousands of tilings of one layer on the same stages, so what sizes do
not change is worked out once (`StageFrame`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import lcm, prod

from worker.compiler.tiling.factors import largest_divisor
from worker.compiler.tiling.nest.facts import Facts, Operand
from worker.compiler.tiling.nest.plan import LevelPlan, Stage, placed_at

MAX_SPLIT_AXES = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """A point of the search: tile sizes per stage, and whether operands are double-buffered."""

    tiles: tuple[Mapping[str, int], ...]
    double: bool
    ways: tuple[Mapping[str, int], ...] | None = None
    """Ways each output axis is split over the units of each stage, where that is given; else it
    follows from the tiles."""


@dataclass(frozen=True, slots=True)
class _Held:
    """An operand placed at a stage."""

    operand: Operand
    like: int
    """Position of the first operand of the stage whose place has the same extents."""
    item_bytes: int
    unit_bytes: int
    """Copies start at multiples of it."""
    is_lone: bool
    """It never has a second copy."""
    is_strip: bool
    """Only one strip of it is placed at a time."""
    room: int | None
    """Bytes of registers that it has for itself; None: it shares the stage's memory."""
    known: dict[tuple[int, ...], int] = field(default_factory=dict, compare=False)
    """Elements of boxes of tiles that came before, by their sizes along the operand's own axes."""

    def elems(self, tile: Mapping[str, int], facts: Facts) -> int:
        """Of one copy.  Most of a layer's tilings share each operand's box with others."""
        operand = self.operand
        if self.is_strip:
            return prod(facts.placed_widths(operand, tile))
        key = tuple([tile[name] for name in operand.axes])
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = prod(operand.widths(tile, facts.extents))
        return found


@dataclass(frozen=True, slots=True)
class _Stand:
    """What a stage asks of every tiling."""

    stage: Stage
    held: tuple[_Held, ...]
    absent: tuple[str, ...]
    """Tensors with one copy that are not placed here."""
    out_axes: tuple[str, ...]
    """Output axes that may be split."""
    exact: frozenset[str]
    """Axes split into equal parts only."""


class StageFrame:
    """One layer on given stages, whatever its tiles.  Cost: linear in its operands and stages."""

    def __init__(self, facts: Facts, stages: tuple[Stage, ...]) -> None:
        self.facts = facts
        self.stages = stages
        self.out_axes = facts.out_axes
        self.reduce_axes = facts.reduce_axes
        self.stands = tuple(self._stand(k) for k in range(len(stages)))

    def _stand(self, k: int) -> _Stand:
        facts, stage = self.facts, self.stages[k]
        is_last = k == len(self.stages) - 1
        # What the epilogue makes and uses up on one engine gains nothing from a second copy.
        lone = {step.out.tensor for step in facts.epilogue[:-1]}
        if facts.epilogue and facts.out is not None and is_last and not facts.is_overlapped:
            lone.update((facts.out.tensor, facts.epilogue[-1].out.tensor))
        if facts.is_alone and facts.out is not None and is_last:
            lone.add(facts.out.tensor)
        strips = [step.out for step in facts.epilogue[:-1]] if is_last else []
        first: dict[object, int] = {}
        held: list[_Held] = []
        for number, operand in enumerate(placed_at(facts, stage, is_last=is_last)):
            is_strip = any(operand is out for out in strips)
            shape = (operand.index, operand.extra, operand.limits, is_strip)
            size = operand.dtype.size_bytes
            level, room = stage.level, None
            if is_last and operand is facts.in_registers and facts.registers is not None:
                level, room = facts.registers, facts.registers.usable_bytes
            held.append(
                _Held(
                    operand, first.setdefault(shape, number), size,
                    lcm(level.align_bytes, size), operand.tensor in lone, is_strip, room,
                )
            )  # fmt: skip
        free = tuple(a for a in self.out_axes if a not in facts.whole)
        exact = frozenset(self.out_axes) if k else facts.exact
        absent = tuple(sorted(lone - {each.operand.tensor for each in held}))
        return _Stand(stage, tuple(held), absent, free, exact)


def levels_of(frame: StageFrame, sizes: Sizes) -> list[LevelPlan] | None:
    """Sizes written out per stage, or None when a buffer does not fit."""
    levels: list[LevelPlan] = []
    outer: Mapping[str, int] = frame.facts.extents
    for k, stand in enumerate(frame.stands):
        ways = None if sizes.ways is None else sizes.ways[k]
        level = _level(frame, stand, sizes.tiles[k], outer, ways, double=sizes.double)
        if level is None:
            return None
        levels.append(level)
        outer = level.tile
    return levels


def _level(
    frame: StageFrame,
    stand: _Stand,
    tile: Mapping[str, int],
    outer: Mapping[str, int],
    ways: Mapping[str, int] | None,
    *,
    double: bool,
) -> LevelPlan | None:
    """One stage; None when its buffers do not fit."""
    facts, stage = frame.facts, stand.stage
    counts = {a: -(-outer[a] // tile[a]) for a in facts.extents}
    splittable = [a for a in stand.out_axes if counts[a] > 1]
    splits: Mapping[str, int] = {}
    trips: Mapping[str, int] = counts
    if splittable:
        if ways is not None:
            splits = _given(ways, splittable, counts, stand.exact)
        else:
            splits = _split(splittable, counts, stage.units, stand.exact)
        trips = {a: -(-count // splits.get(a, 1)) for a, count in counts.items()}
    units = prod(splits.values())
    budget = stage.capacity_bytes // min(stage.sharers, max(1, units))
    out_loops = [a for a in frame.out_axes if trips[a] > 1]
    order = (*out_loops, *(a for a in frame.reduce_axes if trips[a] > 1))
    copies = dict.fromkeys(stand.absent, 1)
    elems: dict[str, int] = {}
    total = 0
    numbers: list[int] = []
    for k, held in enumerate(stand.held):
        operand = held.operand
        number = numbers[held.like] if held.like < k else held.elems(tile, facts)
        numbers.append(number)
        twice = double and not held.is_lone and not operand.axes.isdisjoint(order)
        name = operand.tensor
        copies[name], elems[name] = 1 + twice, number
        unit = held.unit_bytes
        size = -(-number * held.item_bytes // unit) * unit * (1 + twice)
        if held.room is None:
            total += size
        if total > budget or (held.room is not None and size > held.room):
            return None
    return LevelPlan(stage, tile, splits, trips, order, len(out_loops), copies, elems)


def _given(
    ways: Mapping[str, int], axes: list[str], counts: Mapping[str, int], exact: frozenset[str]
) -> dict[str, int]:
    """The split that was asked for, as far as there are tiles for all units."""
    found: dict[str, int] = {}
    for name in axes:
        number = min(ways.get(name, 1), counts[name])
        if name in exact:
            number = largest_divisor(counts[name], number)
        else:
            number = -(-counts[name] // -(-counts[name] // number))
        if number > 1:
            found[name] = number
    return found


def _split(
    axes: list[str], counts: Mapping[str, int], units: int, exact: frozenset[str]
) -> dict[str, int]:
    """Split tiles over units along up to three axes, outer axes first, evening out the remainders.

    Tries each axis as the first to be split and keeps the way that leaves the fewest tiles to the
    busiest unit.
    """
    best: dict[str, int] = {}
    best_trips = prod(counts[a] for a in axes)
    for first in axes[:4]:
        left = units
        chosen: dict[str, int] = {}
        for name in (first, *(a for a in axes if a != first)):
            if left < 2 or len(chosen) == MAX_SPLIT_AXES:
                break
            ways = min(counts[name], left)
            if name in exact:
                ways = largest_divisor(counts[name], ways)
            else:
                ways = -(-counts[name] // -(-counts[name] // ways))
            if ways > 1:
                chosen[name] = ways
                left //= ways
        trips = prod(-(-counts[a] // chosen.get(a, 1)) for a in axes)
        if trips < best_trips:
            best, best_trips = chosen, trips
    return {a: best[a] for a in axes if a in best}

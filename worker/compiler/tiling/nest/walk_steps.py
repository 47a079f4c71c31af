"""The loops of walks and of single tilings, in plain numbers, compiled where that pays."""

from __future__ import annotations

from typing import Any

from worker.compiler.tiling.nest.arrays import TRIPS, WAYS

ANEW = 1
"""Kind of a step that draws one axis anew, of `KINDS`."""
KINDS = 16


def sized(
    numbers: Any, units: Any, extents: Any, whole: Any, single: Any, exact: Any, tiles: Any,
    may: Any,
) -> None:  # fmt: skip
    """Fill `tiles` [tilings, axes] with the innermost ones of `numbers` of ways and trips
    [tilings, 2, stages, axes], and `may` [tilings] with whether there are just as many of both.

    Tiles are as small as that allows, or multiples of `units` [tilings, axes] along the axes where
    these leave as many.  `whole`, `single`, `exact` [axes]: axes that are not cut, are cut into
    single steps or into equal parts.
    Cost: linear.
    """
    num_stages, num_axes = numbers.shape[2], numbers.shape[3]
    for n in range(len(numbers)):
        may[n] = True
        for a in range(num_axes):
            extent = extents[a]
            if whole[a]:
                tiles[n, a] = extent
                may[n] = may[n] and not (single[a] and extent > 1)
                continue
            inside, beyond = 1, extent + 1  # more parts than that are as many
            for k in range(1, num_stages):
                for w in range(2):
                    inside = min(inside * min(max(1, numbers[n, w, k, a]), beyond), beyond)
            ways, trips = max(1, numbers[n, WAYS, 0, a]), max(1, numbers[n, TRIPS, 0, a])
            outside = min(min(ways, beyond) * min(trips, beyond), beyond)
            least = -(-extent // min(inside * outside, beyond))
            tiles[n, a] = least
            for up in range(2):
                size = least
                if up:
                    size = min(-(-least // units[n, a]) * units[n, a], extent)
                count = -(-extent // (size * inside))
                is_real = -(-count // ways) == trips and -(-count // trips) == ways
                if exact[a]:
                    is_real = is_real and size * inside * outside == extent
                if not up:
                    may[n] = may[n] and is_real and not (single[a] and size > 1)
                elif is_real and not single[a]:
                    tiles[n, a] = size


def draw(axes: Any, chances: Any, most: Any, extents: Any, single: Any, found: Any) -> None:
    """Fill `found` [tilings, 2, stages] with numbers of ways and trips of one of `axes` [tilings]
    each, as likely as their halves; `most` [2, stages, axes], `chances` [tilings, 4 x stages].

    Cost: linear.
    """
    num_stages = most.shape[1]
    for n in range(len(axes)):
        a = axes[n]
        left = extents[a]
        for k in range(num_stages):
            for w in range(2):
                top = min(left, most[w, k, a])
                bits = 0
                while (1 << bits) <= top:
                    bits += 1
                low = 1 << int(chances[n, 4 * k + 2 * w] * bits)
                high = min(top, 2 * low - 1)
                found[n, w, k] = low + int(chances[n, 4 * k + 2 * w + 1] * (high - low + 1))
                if single[a] and w == TRIPS and k == num_stages - 1:
                    found[n, w, k] = top
                left = -(-left // found[n, w, k])


def step(chances: Any, anew: Any, roundings: int, moved: Any, rounding: Any) -> None:
    """Move walks to a neighbour, which need not be a tiling: `moved` [walks, 2, stages, axes] and
    `rounding` [walks] in place.

    `anew` [walks that draw an axis, 2, stages]: what they drew, in order.
    Cost: linear.
    """
    num_stages, num_axes = moved.shape[2], moved.shape[3]
    drawn = 0
    for n in range(len(moved)):
        kind, w = int(chances[n, 0] * KINDS), int(chances[n, 1] * 2)
        k, a = int(chances[n, 2] * num_stages), int(chances[n, 3] * num_axes)
        old = moved[n, w, k, a]
        if kind == 0:
            rounding[n] = int(chances[n, 1] * roundings)
        elif kind == ANEW:
            for v in range(2):
                for j in range(num_stages):
                    moved[n, v, j, a] = anew[drawn, v, j]
            drawn += 1
        elif kind < KINDS // 2:
            way = int(chances[n, 4] * 4)
            if way == 0:
                moved[n, w, k, a] = 2 * old
            elif way == 1:
                moved[n, w, k, a] = old // 2
            else:
                moved[n, w, k, a] = old + 1 if way == 2 else old - 1
        else:  # a factor goes to another number, of the same axis or of another
            which = int(chances[n, 4] * 3)
            factor = old if which == 2 else 2 + which
            to_w, to_k, to_a = w, k, a
            if kind < 3 * KINDS // 4:
                to_k, to_w = int(chances[n, 5] * num_stages), int(chances[n, 6] * 2)
            else:
                to_a = int(chances[n, 5] * num_axes)
                if to_a == a:
                    to_k, to_w = int(chances[n, 5] * num_stages), int(chances[n, 6] * 2)
            moved[n, w, k, a] = -(-old // factor)
            moved[n, to_w, to_k, to_a] *= factor


def within(numbers: Any, most: Any, units: Any, extents: Any, may: Any) -> None:
    """Fill `may` [tilings] with whether there are parts left for all ways and trips of `numbers`
    [tilings, 2, stages, axes], at most `most` [2, stages, axes], and `units` [stages] for all ways.

    Cost: linear.
    """
    num_stages, num_axes = numbers.shape[2], numbers.shape[3]
    for n in range(len(numbers)):
        may[n] = True
        for j in range(num_stages):
            used = 1
            for i in range(num_axes):
                for v in range(2):
                    number = numbers[n, v, j, i]
                    may[n] = may[n] and number >= 1 and number <= most[v, j, i]
                used *= min(max(1, numbers[n, WAYS, j, i]), units[j] + 1)
                used = min(used, units[j] + 1)
            may[n] = may[n] and used <= units[j]
        for i in range(num_axes):
            left = extents[i]
            for j in range(num_stages):
                for v in range(2):
                    part = max(1, numbers[n, v, j, i])
                    may[n] = may[n] and part <= left
                    left = -(-left // part)

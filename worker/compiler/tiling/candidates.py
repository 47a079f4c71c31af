"""Sizes worth trying for one axis, from small to large."""

from __future__ import annotations

from worker.compiler.tiling.factors import next_divisor


def grown(size: int, extent: int, *, exact: bool) -> int:
    """The next size to try above `size`: about twice as large, at most `extent`.

    `exact` sizes divide the extent.  Otherwise, near the end, sizes are evened out so that the last
    tile is not a sliver: 2 tiles of 56 rather than 64 + 48.
    """
    if size >= extent:
        return extent
    if exact:
        target = next_divisor(extent, size)
        while target < 2 * size and target < extent:
            following = next_divisor(extent, target)
            if following > 2 * size:
                break
            target = following
        return target
    doubled = 2 * size
    if doubled >= extent:
        return extent
    return doubled

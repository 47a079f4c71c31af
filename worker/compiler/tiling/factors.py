"""Divisors of an extent, the natural sizes for tiles that must not overhang."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)
def divisors(value: int) -> tuple[int, ...]:
    """All divisors, ascending.  Cost: square root of `value`."""
    small = [d for d in range(1, int(value**0.5) + 1) if value % d == 0]
    large = [value // d for d in reversed(small) if d * d != value]
    return (*small, *large)


def largest_divisor(value: int, limit: int) -> int:
    """The largest divisor of `value` not above `limit` (>= 1)."""
    return max(d for d in divisors(value) if d <= limit)


def next_divisor(value: int, above: int) -> int:
    """The smallest divisor of `value` above `above`; `value` itself when there is none."""
    return next((d for d in divisors(value) if d > above), value)

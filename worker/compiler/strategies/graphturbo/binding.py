"""Which cores compute which slice of a tensor: the plain rule.

A *binding* is a tuple of factors, one per dimension, outermost first: dimension k is cut into
`binding[k]` equal slices and each slice goes to its own core (cores numbered row-major over the
factors).  Trailing ones are dropped, so () is a tensor that one core computes.
Source: GraphTurbo, section 3.4.
"""

from __future__ import annotations


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
    while binding and binding[-1] == 1:
        binding.pop()
    return tuple(binding)


def _factors(num_cores: int) -> tuple[int, ...]:
    """Factors that `plain` tries, largest first; 1 is always the last."""
    return tuple(f for f in range(num_cores, 0, -1) if f & (f - 1) == 0 or num_cores % f == 0)

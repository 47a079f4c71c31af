"""In which order an instruction reduces: sums of floats depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class OrderKind(IntEnum):
    """How the values that meet in one element are brought together."""

    SEQUENCE = 0
    """One after another, into the element."""
    LANES = 1
    """Along the last group `width` running values, each of every `width`-th; what is left of a
    pass goes into the element at once, the running values follow in turn at the end."""
    PRODUCT = 2
    """A sum of fused products (where the CPU has them) for `width` of them, flattened; these sums
    one after another, and their sum into the element."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order in which a Compute reduces: floats depend on it."""

    kind: OrderKind
    groups: tuple[tuple[str, ...], ...]
    """Axes of the domain that are reduced, outermost first; those of a group count as one."""
    width: int = 0
    run: int = 0
    """Of lanes: elements of the last group after which a sum of its own begins; 0: none does."""
    around: int = 0
    """Groups around such a run; those behind are inside it."""

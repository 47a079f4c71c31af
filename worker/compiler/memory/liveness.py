"""When tensors are live, in computation tasks.

A tensor occupies its buffer during every task of its live range, both ends included, and for the
whole of it: one that is spilled is declared in the slower memory and never visits the buffer as a
whole.  Source: GraphTurbo section 4.3 and figure 12.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from worker.compiler.errors import InternalError


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """A tensor and the tasks during which it is live."""

    name: str
    size_bytes: int
    """Bytes in the buffer; 0 never spills."""
    first: int
    """Task that writes it (0 for an input held from the start)."""
    last: int
    """Last task that reads it, >= first."""


def live_bytes_by_task(lives: Sequence[LiveTensor]) -> tuple[int, ...]:
    """Bytes live during task 0, 1, .. up to the last one that any tensor reaches.

    Cost: linear in tensors and tasks.
    """
    change = [0] * (max((t.last for t in lives), default=-1) + 2)
    for tensor in lives:
        change[tensor.first] += tensor.size_bytes
        change[tensor.last + 1] -= tensor.size_bytes
    sums: list[int] = []
    for delta in change[:-1]:
        sums.append(delta + (sums[-1] if sums else 0))
    return tuple(sums)


def births(lives: Sequence[LiveTensor]) -> Iterator[tuple[int, list[int]]]:
    """Tasks at which tensors of more than 0 bytes become live, with their positions.

    Ascending.  Bytes in use grow at these tasks only, so a fit there is a fit everywhere.

    Cost: O(n log n) in tensors.
    """
    order = sorted(
        (k for k, t in enumerate(lives) if t.size_bytes), key=lambda k: (lives[k].first, k)
    )
    for task, born in groupby(order, key=lambda k: lives[k].first):
        yield task, list(born)


def check_lives(lives: Sequence[LiveTensor]) -> None:
    """Refuse tensors that make no sense.

    Raises:
        InternalError: a negative size, or a range that starts before task 0 or after its end.
    """
    for tensor in lives:
        if tensor.size_bytes < 0 or not 0 <= tensor.first <= tensor.last:
            raise InternalError(
                "TW-INT-001",
                f"tensor {tensor.name} has no size or no live range",
            )

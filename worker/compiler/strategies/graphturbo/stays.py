"""How long tensors stay in a cluster's global buffer (GB) when instances run in a given order.

A tensor that several groups use is held in slices of its last user's instances (the factor of every
group is a multiple of the next one's, so that each instance uses one slice or lies in one).  A
slice stays from the first instance that uses it to the last.  Slices of one tensor that are there
at the same time are one buffer, in which they lie next to each other as samples do: what the paper
concatenates (its section 3.5) needs no copy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from worker.compiler.strategies.graphturbo.site import Site
from worker.compiler.strategies.graphturbo.values import Instance


@dataclass(frozen=True, slots=True)
class Stay:
    """Consecutive slices of a tensor, together in GB."""

    first: int
    """Number of the first slice."""
    count: int
    opened: int
    """Position in the order of the first instance that uses them."""
    closed: int
    """Position of the last one."""


def stays_of(
    order: Sequence[Instance], factors: Sequence[int], users: Collection[int]
) -> tuple[Stay, ...]:
    """The stays of a tensor that groups `users` read or write, by time; no two of them meet.

    `factors`: instances of every group, each a multiple of the next.  Cost: linear in `order`, and
    sorting.
    """
    home = factors[max(users)]
    seen: dict[int, tuple[int, int]] = {}
    for position, instance in enumerate(order):
        if instance.group in users:
            number = instance.number * home // factors[instance.group]
            seen[number] = seen.get(number, (position, 0))[0], position
    found: list[Stay] = []
    for number, (opened, closed) in sorted(seen.items(), key=lambda item: item[1]):
        if found and opened <= found[-1].closed:
            last = found.pop()
            low, high = min(last.first, number), max(last.first + last.count, number + 1)
            found.append(Stay(low, high - low, last.opened, max(last.closed, closed)))
        else:
            found.append(Stay(number, 1, opened, closed))
    return tuple(found)


def steps_of(site: Site) -> dict[int, tuple[int, ...]]:
    """When each layer runs, layers counted one by one: once per instance where there is an order.

    In a nest of loops once in all: one instance of every part stands for the others.
    """
    found: dict[int, list[int]] = {}
    groups = [i.group for i in site.order] or range(len(site.parts))
    for step, layer in enumerate(k for group in groups for k in site.parts[group].layers):
        found.setdefault(layer, []).append(step)
    return {layer: tuple(steps) for layer, steps in found.items()}

"""The iterations of a leaf in parts of bounded size, as grids of loop variables.

The order of iterations is that of the loops, but for those over cores, which count as innermost:
cores go through a program side by side.  A part is one iteration of the outer loops, a stretch of
one loop, and all of the loops inside it, so that what depends on few loops stays small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from worker.compiler.schedule.grid import Ints
from worker.compiler.schedule.nodes import LoopKind
from worker.compiler.schedule.walk import Frame, Leaf


@dataclass(frozen=True, slots=True)
class Part:
    """Some iterations of one leaf.  Arrays broadcast to `shape`, with lanes to `shape + lanes`."""

    leaf: Leaf
    shape: tuple[int, ...]
    lanes: tuple[int, ...]
    """Trips of the loops over lanes whose iterations are one instruction."""
    coords: Mapping[str, Ints]
    """Values of every loop's variable."""
    step: Ints
    """Number of the iteration within its core."""
    first: int
    """Number of the first iteration among all of the leaf."""
    total: int
    """Iterations of the leaf."""
    num_cores: int
    """Iterations, one after another, that differ in their core only."""


def parts_of(
    leaf: Leaf, lanes: tuple[Frame, ...], most: int, chosen: Mapping[str, Ints] | None = None
) -> Iterator[Part]:
    """All iterations of a leaf, in order; `most`: of a part, where one of its loops can be cut.

    `lanes`: loops whose iterations are one instruction.  `chosen`: the values of some loops over
    cores that are looked at, ascending; of others all are.
    """
    chosen = chosen or {}
    steps = [f for f in leaf.frames if f not in lanes and f.kind is not LoopKind.CORES]
    cores = [f for f in leaf.frames if f not in lanes and f.kind is LoopKind.CORES]
    frames = [*steps, *cores, *lanes]
    values = [chosen.get(f.var, np.arange(f.trip, dtype=np.int64)) for f in frames]
    trips = [len(each) for each in values]
    listed = len(frames) - len(lanes)
    cut, inside = len(frames), 1
    while cut > 0 and inside * trips[cut - 1] <= most:
        cut -= 1
        inside *= trips[cut]
    # Loops in front of `cut` take one value each, but for the last, which takes some.
    cut = min(cut, listed)
    inside = prod(trips[cut:])
    outer = trips[: max(cut - 1, 0)]
    stretch = max(most // inside, 1) if cut else 1
    total = prod(trips[:listed])
    for number in range(prod(outer)):
        fixed = [int(k) for k in np.unravel_index(number, outer)] if outer else []
        for begin in range(0, trips[cut - 1] if cut else 1, stretch):
            spans = [(k, k + 1) for k in fixed]
            if cut:
                spans.append((begin, min(begin + stretch, trips[cut - 1])))
            spans += [(0, trip) for trip in trips[cut:]]
            coords: dict[str, Ints] = {}
            for axis, (frame, (low, high)) in enumerate(zip(frames, spans, strict=True)):
                shape = [high - low if k == axis else 1 for k in range(len(frames))]
                coords[frame.var] = values[axis][low:high].reshape(shape)
            step: Ints = np.zeros((), dtype=np.int64)
            for frame in steps:
                step = step * frame.trip + coords[frame.var]
            first = 0
            for (low, _), trip in zip(spans[:listed], trips[:listed], strict=True):
                first = first * trip + low
            sizes = tuple(high - low for low, high in spans)
            yield Part(
                leaf, sizes[:listed], sizes[listed:], coords, _without(step, len(lanes)), first,
                total, prod(trips[len(steps) : len(steps) + len(cores)]),
            )  # fmt: skip


def _without(values: Ints, lanes: int) -> Ints:
    """The same without the axes of lanes, in which it does not vary."""
    return values.reshape(values.shape[: values.ndim - lanes]) if values.ndim else values

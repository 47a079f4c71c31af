"""Cutting a region into units: pieces of its execution order that become one kernel each.

A unit is cached and solved by its canonical graph, so a network that repeats a block is cut at the
repetitions first (twelve equal layers of a transformer are one unit solved once); what is longer
than a unit may be is then cut where the fewest bytes are alive.  Any run of consecutive operators
is convex; a tensor that several operators write together (concat) is the only thing a cut can
break: a unit that writes a part of it must not read it, or it would read what it does not have.
Source: our own; GraphTurbo compiles the whole network at once (paper section 3.2 ends where the
rules refuse), which would solve equal blocks again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp

MAX_OPS = 128
"""Operators of a unit: compile time and the size of a kernel grow with it."""
MIN_PERIOD = 4
"""Shorter repetitions are not worth a unit of their own."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Joined:
    """Positions of the operators that write and read a tensor of several writers, ascending."""

    writers: tuple[int, ...]
    readers: tuple[int, ...]

    def broken_at(self, low: int, high: int) -> int | None:
        """Where to cut [low, high) when it has a reader and only some of the writers."""
        inside = [p for p in self.writers if low <= p < high]
        reading = [p for p in self.readers if low <= p < high]
        if not inside or not reading or len(inside) == len(self.writers):
            return None
        # What comes first stays; the first operator of the other kind opens a new unit.
        first, other = sorted((inside, reading))
        return next((p for p in other if p > first[0]), None)


def cut_units(graph: Graph, max_ops: int = MAX_OPS) -> tuple[tuple[str, ...], ...]:
    """Names of the operators of each unit, in execution order.

    A unit that reads a tensor holds all of its writers or none.
    Cost: O(n * longest period) array operations.
    """
    shapes = _shapes(graph)
    alive = _alive(graph)
    cuts = {0, *_cuts(shapes, alive, 0, len(graph.ops), max_ops), len(graph.ops)}
    edges = _repaired(_joined(graph), sorted(cuts))
    names = [op.name for op in graph.ops]
    return tuple(tuple(names[a:b]) for a, b in pairwise(edges))


def _joined(graph: Graph) -> tuple[_Joined, ...]:
    """Tensors of several writers."""
    writers: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    for k, op in enumerate(graph.ops):
        writers.setdefault(op.write.tensor, []).append(k)
        for name in dict.fromkeys(op.input_names()):
            readers.setdefault(name, []).append(k)
    return tuple(
        _Joined(tuple(made), tuple(readers.get(name, ())))
        for name, made in writers.items()
        if len(made) > 1
    )


def _repaired(joined: Sequence[_Joined], edges: Sequence[int]) -> list[int]:
    """`edges` and the cuts it takes besides to leave no unit with a part of what it reads."""
    found = [edges[0]]
    waiting = list(reversed(edges[1:]))
    while waiting:
        low, high = found[-1], waiting[-1]
        broken = [p for tensor in joined if (p := tensor.broken_at(low, high)) is not None]
        if broken:
            waiting.append(min(broken))
        else:
            found.append(waiting.pop())
    return found


def _cuts(shapes: Ints, alive: Ints, low: int, high: int, max_ops: int) -> list[int]:
    """Positions in (low, high) at which to cut."""
    if high - low <= max_ops:
        return []
    run = _repetition(shapes[low:high], alive[low:high], max_ops)
    if run is None:
        return _narrow(alive, low, high, max_ops)
    first, period, count = run
    first += low
    together = _together(period, count, max_ops)
    found = [first + k * period for k in (*range(0, count, together), count)]
    inner = _narrow(alive, found[0], found[1], max_ops) if period > max_ops else []
    found.extend(p + k * period for p in inner for k in range(count))
    before = _cuts(shapes, alive, low, first, max_ops)
    after = _cuts(shapes, alive, first + count * period, high, max_ops)
    return [p for p in (*before, *sorted(found), *after) if low < p < high]


def _together(period: int, count: int, max_ops: int) -> int:
    """Repetitions per unit: as few units as may be, all of one size or the last one smaller."""
    most = max(1, max_ops // period)
    return -(-count // -(-count // most))


def _repetition(shapes: Ints, alive: Ints, max_ops: int) -> tuple[int, int, int] | None:
    """(start, period, repetitions) of the run that saves most, or None."""
    best: tuple[int, int, int, int] | None = None
    total = len(shapes)
    for period in range(MIN_PERIOD, total // 2 + 1):
        same = np.concatenate(([False], shapes[:-period] == shapes[period:], [False]))
        edges = np.flatnonzero(same[1:] != same[:-1])
        for a, b in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            length = b - a + period
            count = length // period
            saved = (count - 1) * period
            if count >= 2 and (best is None or saved > best[0]):
                best = (saved, a, period, length)
    if best is None or best[0] < total // 4:
        return None
    _, a, period, length = best
    # The first repetition may start anywhere in the first period: where least is alive.
    start = min(range(a, a + period), key=lambda p: (int(alive[p]), p))
    count = (a + length - start) // period
    return (start, period, count) if count >= 2 else (a, period, length // period)


def _narrow(alive: Ints, low: int, high: int, max_ops: int) -> list[int]:
    """Fewest pieces of at most `max_ops`, cut where the fewest bytes are alive (exact DP)."""
    pieces = -(-(high - low) // max_ops)
    cost: list[dict[int, tuple[int, int]]] = [{low: (0, -1)}]
    for _ in range(pieces):
        now: dict[int, tuple[int, int]] = {}
        for p in range(low + 1, high + 1):
            options = [
                (cost[-1][q][0] + (int(alive[p]) if p < high else 0), q)
                for q in range(max(low, p - max_ops), p)
                if q in cost[-1]
            ]
            if options:
                now[p] = min(options)
        cost.append(now)
    found: list[int] = []
    p = high
    for step in reversed(range(1, pieces + 1)):
        p = cost[step][p][1]
        if p > low:
            found.append(p)
    return sorted(found)


def _alive(graph: Graph) -> Ints:
    """Bytes of activations that cross the point before each operator [n + 1]."""
    change: Ints = np.zeros(len(graph.ops) + 2, dtype=np.int64)
    made: dict[str, int] = dict.fromkeys(graph.inputs, -1)
    last: dict[str, int] = {}
    for k, op in enumerate(graph.ops):
        name = op.write.tensor
        made.setdefault(name, k)
        for name in op.input_names():
            last[name] = k
    for name in graph.outputs:
        last[name] = len(graph.ops)
    for name, first in made.items():
        size = graph.tensors[name].size_bytes
        change[first + 1] += size
        change[last.get(name, first) + 1] -= size
    return np.cumsum(change)[: len(graph.ops) + 1]


def _shapes(graph: Graph) -> Ints:
    """A number per operator, equal for operators of equal structure (names aside)."""
    number: dict[str, int] = {}
    return np.array([number.setdefault(_shape(graph, op), len(number)) for op in graph.ops])


def _shape(graph: Graph, op: TensorOp) -> str:
    tensors = graph.tensors
    parts = [str([(a.extent, str(a.kind)) for a in op.domain]), repr(op.body), str(op.reduce)]
    order = {a.name: f"#{k}" for k, a in enumerate(op.domain)}
    constants = frozenset(graph.constants)
    for access in (*op.reads, op.write):
        tensor = tensors[access.tensor]
        index = [_renamed(str(e), order) for e in access.index]
        parts.append(f"{tensor.shape}{tensor.dtype}{index}{access.fill}{tensor.name in constants}")
    return sha256("|".join(parts).encode()).hexdigest()


def _renamed(text: str, order: dict[str, str]) -> str:
    for name in sorted(order, key=lambda n: (-len(n), n)):
        text = text.replace(name, order[name])
    return text

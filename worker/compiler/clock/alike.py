"""Loops that hold the same, as far as the clock is concerned."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from worker.compiler.isa.loops import nesting
from worker.compiler.isa.program import UnitProgram

Ints = npt.NDArray[np.int64]

_TIMED = [
    "opcode", "stream", "node", "op", "bytes", "drawn", "returned", "inside", "macs", "cycles",
    "starved", "latency", "resource",
]  # fmt: skip
"""Fields of an instruction that a run depends on, or what is said of it."""


def alike(unit: UnitProgram, wanted: npt.NDArray[np.bool_]) -> Ints:
    """[loops] The first loop whose iterations run as this one's do: equal rows with equal tokens
    and loops in them, at the same depth; how often it repeats does not matter.

    `wanted` [loops]; the others are like themselves.  Cost: bytes of the rows in the loops wanted.
    """
    loops = unit.loops
    found = np.arange(len(loops.table))
    lists = (
        (unit.wait_ptr, unit.wait_token, loops.wait_stride),
        (unit.signal_ptr, unit.signal_token, loops.signal_stride),
    )
    seen: dict[tuple[object, ...], int] = {}
    depths = nesting(loops.table)
    for number in np.flatnonzero(wanted).tolist():
        first, end, _ = loops.table[number].tolist()
        stride = loops.stride[first:end]
        content: list[object] = [
            depths[number], *(unit.instructions[name][first:end].tobytes() for name in _TIMED),
            stride["stream"].tobytes(), stride["resource"].tobytes(),
        ]  # fmt: skip
        for pointer, token, step in lists:
            low, high = int(pointer[first]), int(pointer[end])
            content += [
                (pointer[first : end + 1] - low).tobytes(), token[low:high].tobytes(),
                step[low:high].tobytes(),
            ]  # fmt: skip
        inside = loops.table[number + 1 :]
        inside = inside[inside["first"] < end]
        content += [(f - first, e - first, trip) for f, e, trip in inside.tolist()]
        found[number] = seen.setdefault(tuple(content), number)
    return found

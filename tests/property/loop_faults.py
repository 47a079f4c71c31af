"""Faults that folding could make, put into programs with loops by a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from worker.compiler.isa.loops import LOOP, Loops, last_counters
from worker.compiler.isa.program import Opcode, UnitProgram

Fault = Callable[[UnitProgram, np.random.Generator], UnitProgram]
Table = list[tuple[int, int, int]]


def relisted(unit: UnitProgram, order: Sequence[int], table: Table) -> UnitProgram:
    """The rows numbered `order`, with all that belongs to each, in other loops."""
    rows = np.array(order, dtype=np.int64)
    lists = []
    for pointer, token, stride in (
        (unit.wait_ptr, unit.wait_token, unit.loops.wait_stride),
        (unit.signal_ptr, unit.signal_token, unit.loops.signal_stride),
    ):
        which = np.array(
            [k for row in order for k in range(pointer[row], pointer[row + 1])], dtype=np.int64
        )
        counts = np.diff(pointer)[rows]
        lists.append((np.concatenate([[0], np.cumsum(counts)]), token[which], stride[which]))
    (wait_ptr, wait, wait_stride), (signal_ptr, signal, signal_stride) = lists
    loops = Loops(
        np.array(sorted(table, key=lambda loop: (loop[0], -loop[1])), dtype=LOOP),
        unit.loops.stride[rows], wait_stride, signal_stride,
    )  # fmt: skip
    return replace(
        unit, instructions=unit.instructions[rows], wait_ptr=wait_ptr.astype(np.int32),
        wait_token=wait, signal_ptr=signal_ptr.astype(np.int32), signal_token=signal, loops=loops,
    )  # fmt: skip


def _all(unit: UnitProgram) -> tuple[list[int], Table]:
    return list(range(unit.num_rows)), [tuple(loop) for loop in unit.loops.table.tolist()]


def _trip(step: int) -> Fault:
    def fault(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
        rows, table = _all(unit)
        at = int(rng.integers(len(table)))
        first, end, trip = table[at]
        table[at] = first, end, max(trip + step, 1)
        return relisted(unit, rows, table)

    return fault


def _long(unit: UnitProgram, rng: np.random.Generator) -> int:
    """A loop of several rows."""
    first, end = unit.loops.table["first"], unit.loops.table["end"]
    return int(rng.choice(np.flatnonzero(end - first > 1)))


def begins_late(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """The first row of a loop runs once, in front of it."""
    rows, table = _all(unit)
    first, end, trip = table.pop(at := _long(unit, rng))
    inside = [loop for loop in table if loop[0] == first and loop[1] > first + 1]
    return unit if inside else relisted(
        unit, rows, [*table[:at], (first + 1, end, trip), *table[at:]])  # fmt: skip


def ends_early(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """The last row of a loop runs once, behind it."""
    rows, table = _all(unit)
    first, end, trip = table.pop(at := _long(unit, rng))
    inside = [loop for loop in table if loop[1] == end and loop[0] < end - 1]
    return unit if inside else relisted(
        unit, rows, [*table[:at], (first, end - 1, trip), *table[at:]])  # fmt: skip


def _stepping(unit: UnitProgram, rng: np.random.Generator, rows: np.ndarray) -> tuple[int, int]:
    """(row, depth) of some loop around one of these rows."""
    last = last_counters(unit.loops)
    around = np.argwhere((last > 0) & np.isin(np.arange(unit.num_rows), rows)[:, None])
    row, depth = around[int(rng.integers(len(around)))].tolist()
    return row, depth


def _strided(unit: UnitProgram, stride: np.ndarray) -> UnitProgram:
    return replace(unit, loops=replace(unit.loops, stride=stride))


def stream_step(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """The stream of a row steps one more or less, or as little as that of a row without."""
    row, depth = _stepping(unit, rng, np.arange(unit.num_rows))
    stride = unit.loops.stride.copy()
    stride["stream"][row, depth] = int(rng.choice([0, stride["stream"][row, depth] - 1,
                                                   stride["stream"][row, depth] + 1]))  # fmt: skip
    return _strided(unit, stride)


def port_steps(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """All ports of a row step one more or less."""
    row, depth = _stepping(unit, rng, _transfers(unit))
    stride = unit.loops.stride.copy()
    stride["resource"][row, depth] += (
        np.where(unit.instructions["resource"][row] >= 0, 1, 0) * int(rng.choice([-1, 1]))
    ).astype(np.int32)
    return _strided(unit, stride)


def _transfers(unit: UnitProgram) -> np.ndarray:
    return np.flatnonzero(unit.instructions["opcode"] != int(Opcode.COMPUTE))


def _address_step(side: str) -> Fault:
    def fault(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
        row, depth = _stepping(unit, rng, np.arange(unit.num_rows))
        stride = unit.loops.stride.copy()
        stride[f"{side}_offset"][row, depth] += int(rng.choice([-16, -4, 4, 16]))
        return _strided(unit, stride)

    return fault


def _token_step(name: str) -> Fault:
    def fault(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
        stride = getattr(unit.loops, f"{name}_stride").copy()
        owner = np.repeat(np.arange(unit.num_rows), np.diff(getattr(unit, f"{name}_ptr")))
        places = np.argwhere(last_counters(unit.loops)[owner] > 0)
        if len(places):
            at, depth = places[int(rng.integers(len(places)))].tolist()
            stride[at, depth] += int(rng.choice([-1, 1]))
        return replace(unit, loops=replace(unit.loops, **{f"{name}_stride": stride}))

    return fault


def _token_other(name: str) -> Fault:
    def fault(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
        tokens = getattr(unit, f"{name}_token").copy()
        at = int(rng.integers(len(tokens)))
        tokens[at] = (tokens[at] + int(rng.integers(1, unit.num_tokens))) % unit.num_tokens
        return replace(unit, **{f"{name}_token": tokens})

    return fault


def row_dropped(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """One row less, with the loops that hold nothing else."""
    rows, table = _all(unit)
    at = int(rng.integers(len(rows)))
    rows.remove(at)
    moved = [(first - (first > at), end - (end > at), trip) for first, end, trip in table]
    return relisted(unit, rows, [loop for loop in moved if loop[0] < loop[1]])


def row_doubled(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """One row once more, right behind it in the same loops of several rows."""
    rows, table = _all(unit)
    at = int(rng.integers(len(rows)))
    moved = []
    for first, end, trip in table:
        if (first, end) == (at, at + 1):
            moved += [(first, end, trip), (first + 1, end + 1, trip)]
        else:
            moved.append((first + (first > at), end + (end > at), trip))
    return relisted(unit, [*rows[: at + 1], *rows[at:]], moved)


def rows_swapped(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """Two neighbours in the same loops of several rows, the other way round."""
    rows, table = _all(unit)
    at = int(rng.integers(len(rows) - 1))
    long = [loop for loop in table if loop[1] - loop[0] > 1]
    if any((first <= at < end) != (first <= at + 1 < end) for first, end, _ in long):
        return unit
    rows[at], rows[at + 1] = at + 1, at
    new = {at: at + 1, at + 1: at}
    short = [(new.get(first, first), new.get(first, first) + 1, trip)
             for first, end, trip in table if end - first == 1]  # fmt: skip
    return relisted(unit, rows, [*long, *short])


def _address(side: str) -> Fault:
    def fault(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
        rows = unit.instructions.copy()
        at = int(rng.choice(_transfers(unit)))
        rows[f"{side}_offset"][at] += int(rng.choice([-16, -4, 4, 16]))
        return replace(unit, instructions=rows)

    return fault


def bytes_halved(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """A row of transfers carries half as much."""
    rows = unit.instructions.copy()
    at = int(rng.choice(_transfers(unit)))
    rows["bytes"][at] //= 2
    return replace(unit, instructions=rows)


def _list_cut(name: str) -> Fault:
    def fault(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
        pointer = getattr(unit, f"{name}_ptr")
        owner = np.repeat(np.arange(unit.num_rows), np.diff(pointer))
        at = int(rng.integers(len(owner)))
        shorter = pointer - (np.arange(len(pointer)) > owner[at])
        stride = np.delete(getattr(unit.loops, f"{name}_stride"), at, axis=0)
        return replace(
            unit, loops=replace(unit.loops, **{f"{name}_stride": stride}),
            **{f"{name}_ptr": shorter.astype(np.int32),
               f"{name}_token": np.delete(getattr(unit, f"{name}_token"), at)},
        )  # fmt: skip

    return fault


LOOP_FAULTS: dict[str, Fault] = {
    "a trip more": _trip(1),
    "a trip less": _trip(-1),
    "begins late": begins_late,
    "ends early": ends_early,
    "step of the stream": stream_step,
    "steps of the ports": port_steps,
    "step of the source": _address_step("src"),
    "step of the destination": _address_step("dst"),
    "step of a wait": _token_step("wait"),
    "step of a signal": _token_step("signal"),
    "another wait": _token_other("wait"),
    "another signal": _token_other("signal"),
    "no wait": _list_cut("wait"),
    "no signal": _list_cut("signal"),
    "source": _address("src"),
    "destination": _address("dst"),
    "bytes": bytes_halved,
    "row dropped": row_dropped,
    "row doubled": row_doubled,
    "rows swapped": rows_swapped,
}
"""One change each, of one row or one loop; some change nothing, or nothing that matters."""

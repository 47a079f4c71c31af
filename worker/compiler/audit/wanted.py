"""What iterations ask for, listed: the fields of their instructions and the accesses of each.

One entry per instruction that is asked for, in iteration order, in arrays: the side of the schedule
on which instructions are matched (`match`), and from which the walk gets its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from worker.compiler.audit.accesses import Row
from worker.compiler.audit.expected import Batch
from worker.compiler.audit.parts import Part
from worker.compiler.audit.tables import Tables
from worker.compiler.audit.walk import (
    ADDS,
    AMOUNT,
    COPIES,
    ENTRY,
    FLAGS,
    IS_OWN,
    NEED,
    SETS,
    SLOT,
    WRITES,
)
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.grid import Ints

FIELDS = ("core", "opcode", "src", "dst", "src_offset", "dst_offset", "bytes")
"""What an instruction and an iteration agree in."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Accesses of n instructions, in their order."""

    pointer: Ints
    """[n + 1]"""
    table: Ints
    """[rows, SETS + 2 * rank] Columns: `walk`."""

    @staticmethod
    def empty(counts: Ints, rank: int) -> Rows:
        """Room for `counts` rows of each instruction."""
        pointer = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        return Rows(pointer, np.full((int(pointer[-1]), SETS + 2 * rank), -1, dtype=np.int64))

    def put(self, at: Ints, other: Rows, which: Ints) -> None:
        """Fill in, for the instructions `at`, the rows that another has for `which`."""
        counts = np.diff(other.pointer)[which]
        turn = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        to, of = (np.repeat(p, counts) + turn for p in (self.pointer[at], other.pointer[which]))
        self.table[to] = other.table[of]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Instructions that are asked for, in iteration order."""

    fields: Ints
    """[FIELDS, n]"""
    ports: Ints
    """[2, n] Which instance is read and written: level * instances + instance, -1 of a compute."""
    rows: Rows

    def __len__(self) -> int:
        return int(self.fields.shape[1])

    def some(self, which: Ints) -> Wanted:
        """Those numbered `which`, in that order."""
        rank = (self.rows.table.shape[1] - SETS) // 2
        rows = Rows.empty(np.diff(self.rows.pointer)[which], rank)
        rows.put(np.arange(len(which)), self.rows, which)
        return Wanted(self.fields[:, which], self.ports[:, which], rows)

    def then(self, other: Wanted) -> Wanted:
        """These, and others behind them."""
        pointer = self.rows.pointer[-1] + other.rows.pointer[1:]
        return Wanted(
            np.concatenate([self.fields, other.fields], axis=1),
            np.concatenate([self.ports, other.ports], axis=1),
            Rows(
                np.concatenate([self.rows.pointer, pointer]),
                np.concatenate([self.rows.table, other.rows.table]),
            ),
        )


def nothing(rank: int) -> Wanted:
    """No instruction at all."""
    rows = Rows.empty(np.zeros(0, dtype=np.int64), rank)
    return Wanted(np.zeros((len(FIELDS), 0), np.int64), np.zeros((2, 0), np.int64), rows)


def wanted(part: Part, batches: Sequence[Batch], tables: Tables, machine: Machine) -> Wanted:
    """What the iterations of a part ask for; `batches`: all of the part.

    Side by side on the cores, and on each in the order of the batches.
    """
    kept = [np.flatnonzero(_flat(b.keep, b.shape)) for b in batches]
    fields = [_fields(batch, keep) for batch, keep in zip(batches, kept, strict=True)]
    ports = [_ports(batch, keep, machine) for batch, keep in zip(batches, kept, strict=True)]
    turn = np.concatenate([np.zeros(0, np.int64), *(keep // part.num_cores for keep in kept)])
    place = np.empty(len(turn), dtype=np.int64)
    order = np.argsort(turn, kind="stable")
    place[order] = np.arange(len(turn))
    ends = np.cumsum([len(keep) for keep in kept]).tolist()
    accesses = []
    for batch, keep, end in zip(batches, kept, ends, strict=True):
        mine = place[end - len(keep) : end]
        accesses += [(row, *_some(batch, row, points, keep, mine)) for row, points in batch.rows]
    accesses.sort(key=lambda access: 2 * access[0].is_own + access[0].is_write)
    counts = np.zeros(len(turn), dtype=np.int64)
    for _, _, at, _ in accesses:
        counts += np.bincount(at, minlength=len(turn))
    rows = Rows.empty(counts, tables.rank)
    filled = rows.pointer[:-1].copy()
    for row, shape, at, which in accesses:
        own = np.bincount(at, minlength=len(turn))
        to = filled[at] + np.arange(len(at)) - (np.cumsum(own) - own)[at]
        filled += own
        _put(rows, to, row, shape, which, tables)
    return Wanted(
        np.concatenate(fields, axis=1)[:, order], np.concatenate(ports, axis=1)[:, order], rows
    )


def _some(
    batch: Batch, row: Row, points: Ints, keep: Ints, mine: Ints
) -> tuple[tuple[int, ...], Ints, Ints]:
    """(shape of an access, instruction of each of its rows, place of each in that shape).

    Lanes without points touch nothing.
    """
    if row.touched is None:
        return batch.shape, mine, keep
    lanes = prod(batch.lanes)
    whole = (*batch.shape, *batch.lanes)
    which, at = keep, mine
    if lanes > 1:
        which = (keep[:, None] * lanes + np.arange(lanes)).ravel()
        at = np.repeat(mine, lanes)
    if points.size == 1:
        return (whole, at, which) if int(points.ravel()[0]) > 0 else (whole, at[:0], which[:0])
    some = np.broadcast_to(points > 0, whole).ravel()[which]
    return whole, at[some], which[some]


def _put(
    rows: Rows, to: Ints, row: Row, shape: tuple[int, ...], which: Ints, tables: Tables
) -> None:
    room = np.empty(shape, dtype=np.int64)

    def listed(values: Ints) -> Ints:
        if values.size == 1:
            return values.ravel()
        room[...] = values  # broadcasts; `np.broadcast_to` takes ten times as long to say so
        found: Ints = room.reshape(-1)[which]
        return found

    flags = WRITES * row.is_write + ADDS * (row.is_write and row.need > 0)
    flags += IS_OWN * row.is_own + COPIES * row.is_copy
    columns: list[tuple[int, Ints | int]] = [
        (ENTRY, listed(row.entry)), (SLOT, listed(row.slot)), (FLAGS, flags),
        (AMOUNT, listed(row.amount)), (NEED, row.need),
    ]  # fmt: skip
    for of, first in ((row.touched, SETS), (row.tile, SETS + tables.rank)):
        if of is not None:
            numbers = tables.numbers(row.store, of)
            columns += [(first + d, listed(each)) for d, each in enumerate(numbers)]
    for column, values in columns:
        rows.table[to, column] = values


def _fields(batch: Batch, keep: Ints) -> Ints:
    """[FIELDS, n] What the iterations that are kept ask for."""
    values = (
        batch.core, np.array(int(batch.opcode)), np.array(batch.src), np.array(batch.dst),
        batch.src_offset, batch.dst_offset, batch.num_bytes,
    )  # fmt: skip
    found = np.empty((len(values), *batch.shape), dtype=np.int64)
    for k, each in enumerate(values):
        found[k] = _without_lanes(each, batch.shape)
    return found.reshape(len(values), prod(batch.shape))[:, keep]


def _ports(batch: Batch, keep: Ints, machine: Machine) -> Ints:
    found = np.full((2, len(keep)), -1, dtype=np.int64)
    for side, port in enumerate((batch.src_port, batch.dst_port)):
        if port is not None:
            level, instance = port
            found[side] = machine.level_index(level) * machine.num_cores
            found[side] += _flat(np.asarray(instance), batch.shape)[keep]
    return found


def _flat(values: Ints, shape: tuple[int, ...]) -> Ints:
    flat = np.empty(shape, dtype=values.dtype)
    flat[...] = _without_lanes(values, shape)
    return flat.reshape(prod(shape))


def _without_lanes(values: Ints, shape: tuple[int, ...]) -> Ints:
    while values.ndim > len(shape):
        values = values[..., 0]
    return values

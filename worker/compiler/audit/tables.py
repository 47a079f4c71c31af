"""Everything that is touched, as arrays for the walk.

Each dimension of a tensor is cut where some access, or the tile of some buffer, begins or ends; the
pieces between cuts are its *atoms*.  Nothing splits an atom, so a buffer's contents are told by one
cell per combination of atoms: their number grows with tiles, not with bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from worker.compiler.audit.accesses import Row, Touched
from worker.compiler.audit.expected import Batch
from worker.compiler.audit.sets import Pattern, Patterns
from worker.compiler.audit.storage import Stores
from worker.compiler.schedule.grid import Ints, coordinates, span_range

WRITES, ADDS, IS_OWN, COPIES = 1, 2, 4, 8
"""Flags of a row."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Accesses in program order.  Shapes: pointer [instructions + 1], others [rows, ...]."""

    pointer: Ints
    entry: npt.NDArray[np.int32]
    flags: npt.NDArray[np.int8]
    amount: Ints
    need: Ints
    sets: npt.NDArray[np.int32]
    """[rows, rank] Sets per dimension, -1 behind the last."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Where the cells of every entry are."""

    set_pointer: Ints
    set_low: Ints
    """Set k holds the atoms low : high of its dimension, of each of its intervals."""
    set_high: Ints
    origin: npt.NDArray[np.int32]
    """[entries, rank] First atom of the entry's tile, per dimension."""
    size: npt.NDArray[np.int32]
    """[entries, rank] Atoms of its tile."""
    slot: Ints
    """[entries]"""
    first_cell: Ints
    """[slots]"""
    stride: npt.NDArray[np.int64]
    """[slots, rank] Cells between neighbouring atoms."""
    num_cells: int

    def of(self, entry: int, sets: Sequence[int]) -> Ints:
        """Cells of the product of some sets in an entry."""
        slot = self.slot[entry]
        cells: Ints = self.first_cell[slot : slot + 1]
        for d, number in enumerate(sets):
            spans = range(self.set_pointer[number], self.set_pointer[number + 1])
            atoms = [np.arange(self.set_low[k], self.set_high[k]) for k in spans]
            inside = np.concatenate(atoms) - self.origin[entry, d]
            cells = (cells[:, None] + inside * self.stride[slot, d]).ravel()
        return cells


class Tables:
    """Collects the rows of one program."""

    def __init__(
        self, stores: Stores, patterns: Patterns, shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.stores = stores
        self.patterns = patterns
        self.shapes = shapes
        self.rank = max((len(shape) for shape in shapes.values()), default=0)
        self._number: dict[tuple[str, int, Pattern], int] = {}
        self._sets: list[tuple[str, int, Pattern]] = []
        self._parts: list[tuple[Ints, Ints, int, Row, Ints, Ints]] = []

    def add(self, batch: Batch, instructions: Ints) -> None:
        """The rows of a batch whose kept iterations are `instructions`."""
        whole = (*batch.shape, *batch.lanes)
        lanes = prod(batch.lanes)
        keep = np.repeat(np.broadcast_to(batch.keep, batch.shape).ravel(), lanes)
        place = np.zeros(len(keep), dtype=np.int64)
        place[keep] = np.repeat(instructions, lanes)
        for number, (row, points) in enumerate(batch.rows):
            shape = whole if row.touched is not None else batch.shape
            step = 1 if row.touched is not None else lanes
            some = keep[::step]
            if row.touched is not None:
                some = some & (np.broadcast_to(points, whole).ravel() > 0)
            sets = np.full((int(some.sum()), self.rank), -1, dtype=np.int32)
            if row.touched is not None:
                tensor = self.stores.all[row.store].tensor
                for d, (found, clip) in enumerate(
                    zip(row.touched.sets, row.touched.clip, strict=True)
                ):
                    numbers = self._numbers(tensor, d, found, clip)
                    sets[:, d] = np.broadcast_to(numbers, shape).ravel()[some]
            entry = np.broadcast_to(row.entry, shape).ravel()[some]
            amount = np.broadcast_to(row.amount, shape).ravel()[some]
            self._parts.append((place[::step][some], entry, number, row, amount, sets))

    def demand(self, store: int, touched: Touched) -> tuple[int, ...]:
        """Numbers of the sets of something that is touched once, as `Cells.of` wants them."""
        tensor = self.stores.all[store].tensor
        return tuple(
            int(self._numbers(tensor, d, found, clip).ravel()[0])
            for d, (found, clip) in enumerate(zip(touched.sets, touched.clip, strict=True))
        )

    def _numbers(
        self, tensor: str, dim: int, found: tuple[Ints, Ints], clip: tuple[int, int]
    ) -> Ints:
        """Number of the set in each iteration."""
        start, kind = np.broadcast_arrays(*found)
        code = (start.astype(np.int64) << 32) + (kind.astype(np.int64) + (1 << 31))
        values, where = np.unique(code, return_inverse=True)
        numbers = np.empty(len(values), dtype=np.int64)
        for k, value in enumerate(values.tolist()):
            first = value >> 32
            pattern = []
            for low, high in self.patterns.intervals((value & 0xFFFFFFFF) - (1 << 31)):
                low, high = max(first + low, clip[0]), min(first + high, clip[1])
                if low < high:
                    pattern.append((low, high))
            key = tensor, dim, tuple(pattern)
            if key not in self._number:
                self._number[key] = len(self._sets)
                self._sets.append(key)
            numbers[k] = self._number[key]
        found_numbers: Ints = numbers[where.reshape(start.shape)]
        return found_numbers

    def rows(self, count: int) -> Rows:
        """All rows of `count` instructions: reads, then writes, then a recurrence's own reads."""
        place = np.concatenate([np.zeros(0, dtype=np.int64), *(p[0] for p in self._parts)])
        turn = np.concatenate(
            [np.zeros(0, dtype=np.int64),
             *(np.full(len(p[0]), 2 * p[3].is_own + p[3].is_write) for p in self._parts)]
        )  # fmt: skip
        order = np.lexsort((turn, place))
        flags, need = [np.zeros(0, dtype=np.int8)], [np.zeros(0, dtype=np.int64)]
        for at, _, _, row, _, _ in self._parts:
            adds = row.is_write and row.need > 0
            flag = WRITES * row.is_write + ADDS * adds + IS_OWN * row.is_own
            flag += COPIES * row.is_copy
            flags.append(np.full(len(at), flag, dtype=np.int8))
            need.append(np.full(len(at), row.need, dtype=np.int64))
        entry = np.concatenate([np.zeros(0, dtype=np.int64), *(p[1] for p in self._parts)])
        amount = np.concatenate([np.zeros(0, dtype=np.int64), *(p[4] for p in self._parts)])
        sets = np.concatenate(
            [np.zeros((0, self.rank), dtype=np.int32), *(p[5] for p in self._parts)]
        )
        pointer = np.concatenate([[0], np.cumsum(np.bincount(place, minlength=count))])
        return Rows(
            pointer.astype(np.int64), entry[order].astype(np.int32), np.concatenate(flags)[order],
            amount[order], np.concatenate(need)[order], sets[order],
        )  # fmt: skip

    def cells(self) -> Cells:
        """Cut every dimension; lay out the cells of every slot.  After the last `add`."""
        tiles = [self._tiles(k) for k in range(len(self.stores.all))]
        edges: dict[tuple[str, int], list[Ints]] = {}
        for tensor, dim, pattern in self._sets:
            edges.setdefault((tensor, dim), []).append(np.array(pattern, dtype=np.int64).ravel())
        for store, tile in zip(self.stores.all, tiles, strict=True):
            for dim, (low, high) in enumerate(tile):
                edges.setdefault((store.tensor, dim), []).extend((low, high))
        cuts = {key: np.unique(np.concatenate(found)) for key, found in edges.items()}
        pointer = np.concatenate([[0], np.cumsum([len(p) for _, _, p in self._sets])])
        lows, highs = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for tensor, dim, pattern in self._sets:
            ends = np.array(pattern, dtype=np.int64).reshape(-1, 2)
            lows.append(np.searchsorted(cuts[tensor, dim], ends[:, 0]))
            highs.append(np.searchsorted(cuts[tensor, dim], ends[:, 1]))
        num_entries, num_slots = self.stores.num_entries, self.stores.num_slots
        origin = np.zeros((num_entries, self.rank), dtype=np.int32)
        size = np.ones((num_entries, self.rank), dtype=np.int32)
        slot = np.zeros(num_entries, dtype=np.int64)
        first_cell = np.zeros(num_slots, dtype=np.int64)
        stride = np.zeros((num_slots, self.rank), dtype=np.int64)
        total = 0
        for store, tile in zip(self.stores.all, tiles, strict=True):
            entries = slice(store.first_entry, store.first_entry + store.num_entries)
            slots = slice(store.first_slot, store.first_slot + store.num_slots)
            slot[entries] = store.slots
            step = 1
            for dim in reversed(range(len(tile))):
                low = np.searchsorted(cuts[store.tensor, dim], tile[dim][0])
                high = np.searchsorted(cuts[store.tensor, dim], tile[dim][1])
                origin[entries, dim], size[entries, dim] = low, high - low
                stride[slots, dim] = step
                step *= max(int((high - low).max(initial=0)), 1)
            first_cell[slots] = total + step * np.arange(store.num_slots)
            total += step * store.num_slots
        return Cells(
            pointer.astype(np.int64), np.concatenate(lows), np.concatenate(highs), origin, size,
            slot, first_cell, stride, total,
        )  # fmt: skip

    def _tiles(self, number: int) -> list[tuple[Ints, Ints]]:
        """Per dimension, the ends of the tile of every entry."""
        store = self.stores.all[number]
        if not store.tensor:
            return []
        if store.scope is None:
            shape = self.shapes[store.tensor]
            return [(np.zeros(1, dtype=np.int64), np.full(1, n, dtype=np.int64)) for n in shape]
        coords = coordinates(store.scope.frames)
        whole = tuple(f.trip for f in store.scope.frames)
        tile = []
        for span in store.scope.tile:
            low, high = span_range(span, coords)
            tile.append(
                (np.broadcast_to(low, whole).ravel(), np.broadcast_to(high + 1, whole).ravel())
            )
        return tile

"""Sets of elements as numbers, and the cells that stand for what memories hold.

Each dimension of a tensor is cut where some access, or the tile of some buffer, begins or ends; the
pieces between cuts are its *atoms*.  Nothing splits an atom, so a buffer's contents are told by one
cell per combination of atoms: their number grows with tiles, not with bytes.  All sets have to be
known before the first cell is: `Tables.collect` goes over all that a schedule touches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.compiler.audit.accesses import Touched
from worker.compiler.audit.expected import Batch
from worker.compiler.audit.numbered import NumberedSets
from worker.compiler.audit.sets import Patterns
from worker.compiler.audit.storage import Stores
from worker.compiler.ir.distinct import distinct
from worker.compiler.schedule.grid import Ints

_FEW = 64
"""Numbers that are put into a set one by one, and not told apart first, which takes 10 us."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Where the cells of every slot are."""

    set_pointer: Ints
    set_low: Ints
    """Set k holds the atoms low : high of its dimension, of each of its intervals."""
    set_high: Ints
    set_size: Ints
    """[sets] Atoms of each."""
    first_cell: Ints
    """[slots]"""
    stride: npt.NDArray[np.int64]
    """[slots, rank] Cells between neighbouring atoms."""
    num_cells: int
    lengths: Mapping[tuple[str, int], Ints]
    """Elements of each atom of a tensor's dimension."""

    def of(self, slot: int, tile: Sequence[int], sets: Sequence[int]) -> Ints:
        """Cells of the product of some sets in a slot that holds a tile."""
        cells: Ints = self.first_cell[slot : slot + 1]
        for d, (room, number) in enumerate(zip(tile, sets, strict=True)):
            spans = range(self.set_pointer[number], self.set_pointer[number + 1])
            atoms = [np.arange(self.set_low[k], self.set_high[k]) for k in spans]
            inside = np.concatenate(atoms) - self.set_low[self.set_pointer[room]]
            cells = (cells[:, None] + inside * self.stride[slot, d]).ravel()
        return cells

    def is_box(self, sets: Sequence[int]) -> bool:
        """Whether each of some sets is one interval."""
        return all(self.set_pointer[k + 1] - self.set_pointer[k] == 1 for k in sets)

    def elements(self, tensor: str, sets: Sequence[int]) -> Ints:
        """How many each cell of the product of some sets of a tensor stands for, in that order."""
        found: Ints = np.ones(1, dtype=np.int64)
        for d, number in enumerate(sets):
            spans = range(self.set_pointer[number], self.set_pointer[number + 1])
            atoms = [np.arange(self.set_low[k], self.set_high[k]) for k in spans]
            found = (found[:, None] * self.lengths[tensor, d][np.concatenate(atoms)]).ravel()
        return found


class Tables:
    """Numbers the sets of one schedule."""

    def __init__(
        self, stores: Stores, patterns: Patterns, shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.stores = stores
        self.rank = max((len(shape) for shape in shapes.values()), default=0)
        self._sets = NumberedSets(patterns)
        self._tiles: dict[tuple[int, int], set[int]] = {}
        self._kept: dict[tuple[int, int], tuple[Touched, list[Ints]]] = {}
        """Numbers by store and identity, which holds as long as the object is kept beside them."""

    def collect(self, batch: Batch, *, is_kept: bool) -> None:
        """Make what a batch touches known; `is_kept`: it will be asked for again as it is."""
        for row, _ in batch.rows:
            for touched in (row.tile, row.touched):
                if touched is None:
                    continue
                found = self.numbers(row.store, touched)
                if is_kept:
                    self._kept[row.store, id(touched)] = touched, found
                if touched is row.tile:
                    for d, numbers in enumerate(found):
                        self._tiles.setdefault((row.store, d), set()).update(
                            (numbers if numbers.size <= _FEW else distinct(numbers))
                            .ravel()
                            .tolist()
                        )

    def demand(self, store: int, tile: Touched, touched: Touched) -> tuple[list[int], list[int]]:
        """Numbers of something that is touched once, as `Cells.of` wants them."""
        rooms, sets = (
            [int(numbers.ravel()[0]) for numbers in self.numbers(store, each)]
            for each in (tile, touched)
        )
        for d, number in enumerate(rooms):
            self._tiles.setdefault((store, d), set()).add(number)
        return rooms, sets

    def numbers(self, store: int, touched: Touched) -> list[Ints]:
        """Per dimension, the number of the set in each iteration."""
        kept = self._kept.get((store, id(touched)))
        if kept is not None:
            return kept[1]
        tensor = self.stores.all[store].tensor
        return [
            self._sets.numbers((tensor, d), *found, clip)
            for d, (found, clip) in enumerate(zip(touched.sets, touched.clip, strict=True))
        ]

    def cells(self) -> Cells:
        """Cut every dimension; lay out the cells of every slot.  After the last `collect`."""
        pointer, intervals, edges = self._sets.pieces()
        lows, highs = np.zeros((2, int(pointer[-1])), dtype=np.int64)
        for of, (places, ends) in intervals.items():
            lows[places], highs[places] = np.searchsorted(edges[of], ends).T
        size = np.diff(np.concatenate([[0], np.cumsum(highs - lows)])[pointer])
        first_cell = np.zeros(self.stores.num_slots, dtype=np.int64)
        stride = np.zeros((self.stores.num_slots, self.rank), dtype=np.int64)
        total = 0
        for k, store in enumerate(self.stores.all):
            slots = slice(store.first_slot, store.first_slot + store.num_slots)
            step = 1
            for dim in reversed(range(self.rank)):
                tiles = sorted(self._tiles.get((k, dim), ()))
                if tiles:
                    stride[slots, dim] = step
                    step *= max(int(size[tiles].max()), 1)
            first_cell[slots] = total + step * np.arange(store.num_slots)
            total += step * store.num_slots
        lengths = {of: np.diff(ends) for of, ends in edges.items()}
        return Cells(
            pointer, lows, highs, size.astype(np.int64), first_cell, stride, total, lengths
        )

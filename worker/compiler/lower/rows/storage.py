"""Numbers for every piece of storage that tokens protect.

One number per (buffer, instance, block, slot), or one for every piece that its users touch apart
(`rows.tiles`; without those, for every core where the cores of an instance touch disjoint parts of
the slot: `rows.hazards`); likewise per tensor at home that the unit both writes and uses; two per
core for each staged operand of a compute (its transfer may run one step ahead).

Pieces are boxes and protect the elements of one value.  Who begins the next value, in the same slot
or in another buffer at its addresses, waits for all of the one before: a slot that is cut into
tiles has one more number for that, which all of its accesses touch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.compiler.isa.program import Buffer
from worker.compiler.lower.grid import Grid, Ints, slots
from worker.compiler.lower.issue import users_of
from worker.compiler.lower.resolve import Refs
from worker.compiler.lower.rows.hazards import (
    HomeHazards,
    core_pieces,
    inner_frames,
    ordered_writes,
    reads_identity,
)
from worker.compiler.lower.rows.reach import Place, bounds, boxes_in
from worker.compiler.lower.rows.tiles import TilePieces, tile_pieces
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.grid import core_ids
from worker.compiler.schedule.nodes import LoopKind
from worker.compiler.schedule.walk import Leaf, Walk


@dataclass(frozen=True, slots=True)
class Touch:
    """One access of every instruction of a batch to storage."""

    storage: Ints
    """Storage number per instruction; -1 where there is none."""
    is_write: bool
    waits_ready: bool
    """Whether earlier writes must have finished."""
    waits_free: bool
    """Whether earlier readers must have finished."""
    starts_value: bool = False
    """Whether what it writes, or reads first, may take the addresses of other scopes' values."""


@dataclass(frozen=True, slots=True)
class StorageExtents:
    """Where every storage lies.  Shapes: [storages]."""

    memory: npt.NDArray[np.int32]
    """Number of the instance of a memory; -1: none of its bytes is used by another scope."""
    scope: npt.NDArray[np.int32]
    low: Ints
    high: Ints
    """Addresses low : high in that instance."""


@dataclass(frozen=True, slots=True)
class _Home:
    """Storages of a tensor at home."""

    first: int
    tiles: TilePieces | None
    is_ordered: bool
    """Whether its writes may overlap."""


class Storages:
    """The numbering."""

    def __init__(
        self,
        nest: Walk,
        refs: Sequence[Refs],
        buffers: Sequence[Buffer],
        machine: Machine,
        hazards: HomeHazards,
        num_staged: int,
        *,
        by_tile: bool,
    ) -> None:
        """`by_tile`: slots are cut into tiles, where that keeps users apart."""
        self.nest = nest
        self.refs = refs
        self.by_tile = by_tile
        self.buffers = buffers
        self.machine = machine
        touched = users_of(refs)
        users = [touched.get(k, []) for k in range(len(buffers))]
        self.needs_order = tuple(
            ordered_writes(nest, refs, k, users[k]) for k in range(len(buffers))
        )
        cut = [self._cut(k, users[k]) for k in range(len(buffers))]
        self.tiles = tuple(tiles for tiles, _ in cut)
        """Per scope: how its slots are cut."""
        self.cores = tuple(owners for _, owners in cut)
        """Per scope: core offsets that own one piece each; empty when slots are not split so."""
        self.is_shared = tuple(self.shares_addresses(buffer) for buffer in buffers)
        """Per scope: whether another has some of its addresses."""
        self.parts = tuple(self._parts(k) for k in range(len(buffers)))
        """Per scope: storages of one slot."""
        self.is_read_first = tuple(
            reads_identity(nest, refs, k, users[k]) for k in range(len(buffers))
        )
        self._base: list[int] = []
        total = 0
        for buffer in buffers:
            self._base.append(total)
            instances = machine.level(buffer.level).instances
            total += instances * self._cells(len(self._base) - 1)
        self._num_placed = total
        self._home_users = _home_users(refs)
        self._home: dict[str, _Home] = {}
        for name in hazards.tensors:
            ordered = name not in hazards.disjoint
            kept = self._at_home(name, total, is_ordered=ordered)
            self._home[name] = kept
            total += 1 if kept.tiles is None else kept.tiles.count
        self._staged = total
        total += num_staged * machine.num_cores * 2
        self.count = total
        self.extents = self._all_extents()

    def place(self, scope: int, values: Mapping[str, Ints]) -> tuple[Ints, Ints, Ints]:
        """(core of the owner, instance, block * copies + slot) of `scope` at all iterations."""
        owner, buffer = self.nest.scopes[scope], self.buffers[scope]
        core = core_ids(owner.core_base, owner.frames, values)
        count = self.machine.level(buffer.level).instances
        instance = core * count // self.machine.num_cores
        local = slots(owner, values)
        if buffer.blocks > 1:
            width = self.machine.num_cores // count
            block = (core % width - buffer.first_core) // buffer.block_stride
            local = local + block * buffer.copies
        return core, instance, local

    def touch(self, scope: int, leaf: Leaf, grid: Grid, *, is_write: bool) -> tuple[Touch, ...]:
        """Accesses of `leaf` to the current slot of `scope`: of each piece that it meets, and of
        the slot where its addresses are used again."""
        _, instance, local = self.place(scope, grid.values)
        first = self._base[scope] + instance * self._cells(scope) + local * self.parts[scope]
        starts_value = is_write or self.is_read_first[scope]
        needs_order = self.needs_order[scope]
        tiles = self.tiles[scope]
        if tiles is None:
            return tuple(
                Touch(np.asarray(n), is_write, not is_write or needs_order, starts_value,
                      starts_value)
                for n in self._of_cores(scope, leaf, grid, first)
            )  # fmt: skip
        waits_ready = not is_write or needs_order
        place = Place.of_scope(self.nest.scopes[scope])
        touches = [
            Touch(number, is_write, waits_ready, starts_value)
            for number in self._met(place, tiles, first, leaf, grid, is_write=is_write)
        ]
        if self.parts[scope] > tiles.count:
            whole = np.asarray(first + tiles.count)
            frees = starts_value and tiles.is_used_again
            touches.append(Touch(whole, is_write, False, frees, starts_value))
        return tuple(touches)

    def _of_cores(self, scope: int, leaf: Leaf, grid: Grid, first: Ints) -> list[Ints]:
        """The storage of the core's piece, or of every piece."""
        owners = self.cores[scope]
        if not len(owners):
            return [first]
        inner = inner_frames(leaf, self.nest.scopes[scope])
        if any(f.kind is LoopKind.CORES for f in inner):
            return [first + np.searchsorted(owners, core_ids(0, inner, grid.values))]
        return [first + k for k in range(len(owners))]

    def _cut(self, scope: int, users: Sequence[int]) -> tuple[TilePieces | None, Ints]:
        """Pieces of the slots of a scope: tiles, else those of cores (none: whole)."""
        none = np.zeros(0, dtype=np.int64)
        place, ordered = Place.of_scope(self.nest.scopes[scope]), self.needs_order[scope]
        tiles, is_exact = self._tiles(place, users, are_ordered=ordered)
        if is_exact:
            return tiles, none
        owners = core_pieces(self.nest, self.refs, scope, users)
        return (None, owners) if len(owners) else (tiles, none)

    def _tiles(
        self, place: Place, users: Sequence[int], *, are_ordered: bool
    ) -> tuple[TilePieces | None, bool]:
        """(tiles, whether they keep apart all that may be kept apart)."""
        if not self.by_tile:
            return None, False
        return tile_pieces(self.nest, self.refs, place, users, are_ordered=are_ordered)

    def touch_home(
        self, tensor: str, leaf: Leaf, grid: Grid, *, is_write: bool
    ) -> tuple[Touch, ...]:
        """Accesses of `leaf` to a tensor at home; nothing when no token protects it."""
        home = self._home.get(tensor)
        if home is None:
            return ()
        first: Ints = np.array(home.first, dtype=np.int64)
        numbers = iter((first,))
        if home.tiles is not None:
            place = Place.of_home(self.nest, tensor)
            numbers = self._met(place, home.tiles, first, leaf, grid, is_write=is_write)
        ordered = home.is_ordered
        return tuple(
            Touch(n, is_write, ordered or not is_write, ordered and is_write) for n in numbers
        )

    def _at_home(self, tensor: str, first: int, *, is_ordered: bool) -> _Home:
        place, users = Place.of_home(self.nest, tensor), self._home_users[tensor]
        tiles, _ = self._tiles(place, users, are_ordered=is_ordered)
        return _Home(first, tiles, is_ordered)

    def _met(
        self, place: Place, tiles: TilePieces, first: Ints, leaf: Leaf, grid: Grid, *,
        is_write: bool,
    ) -> Iterator[Ints]:  # fmt: skip
        """Storages of the pieces, from `first` on, that `leaf` meets in a place; -1: no more."""
        refs = self.refs[leaf.number]
        boxes = boxes_in(self.nest, leaf, refs, place, is_write=is_write)
        for number in tiles.met(*bounds(boxes, place, grid, tiles.dims)):
            yield np.where(number >= 0, first + number, -1)

    def of_staged(self, number: int, core: Ints, step: Ints) -> Ints:
        """Storage number of staged operand `number`; `step` counts the iterations in one core."""
        return np.asarray(self._staged + (number * self.machine.num_cores + core) * 2 + step % 2)

    def _parts(self, scope: int) -> int:
        tiles = self.tiles[scope]
        if tiles is None:
            return max(len(self.cores[scope]), 1)
        return tiles.count + (self.is_shared[scope] or tiles.is_used_again)

    def _cells(self, scope: int) -> int:
        """Storages of one instance of a buffer."""
        buffer = self.buffers[scope]
        return buffer.blocks * buffer.copies * self.parts[scope]

    def _all_extents(self) -> StorageExtents:
        extents = StorageExtents(
            np.full(self.count, -1, dtype=np.int32),
            np.full(self.count, -1, dtype=np.int32),
            np.zeros(self.count, dtype=np.int64),
            np.zeros(self.count, dtype=np.int64),
        )
        first_of: dict[str, int] = {}
        total = 0
        for level in dict.fromkeys(b.level for b in self.buffers):
            first_of[level] = total
            total += self.machine.level(level).instances
        for k, buffer in enumerate(self.buffers):
            cells = self._cells(k)
            if not cells or not self.is_shared[k]:
                continue
            instances = self.machine.level(buffer.level).instances
            number = np.arange(instances * cells)
            if self.tiles[k] is not None:
                number = number[self.parts[k] - 1 :: self.parts[k]]
            slot = number % cells // self.parts[k]
            own = self._base[k] + number
            extents.memory[own] = first_of[buffer.level] + number // cells
            extents.scope[own] = k
            extents.low[own] = buffer.address + slot * buffer.slot_bytes
            extents.high[own] = extents.low[own] + buffer.slot_bytes
        return extents

    def overlap_counts(self) -> Ints:
        """[scopes] How many storages of others are at the addresses of one slot of each, at most.

        Cost: scopes times storages, and slots times storages of their memory.
        """
        overlap_counts: Ints = np.zeros(len(self.buffers), dtype=np.int64)
        memory, extents = self.extents.memory, self.extents
        for k in range(len(self.buffers)):
            if not self._cells(k) or not self.is_shared[k]:
                continue
            first = self._base[k] + (0 if self.tiles[k] is None else self.parts[k] - 1)
            others = np.flatnonzero((memory == memory[first]) & (extents.scope != k))
            own = slice(first, self._base[k] + self._cells(k), self.parts[k])
            meets = (extents.low[own, None] < extents.high[others]) & (
                extents.high[own, None] > extents.low[others]
            )
            overlap_counts[k] = meets.sum(axis=1).max(initial=0)
        return overlap_counts

    def shares_addresses(self, buffer: Buffer) -> bool:
        """Whether another buffer of its level has some of its addresses."""
        low, high = buffer.address, buffer.address + buffer.size_bytes
        return low < high and any(
            other is not buffer and other.level == buffer.level
            and other.address < high and other.address + other.size_bytes > low
            for other in self.buffers
        )  # fmt: skip


def _home_users(refs: Sequence[Refs]) -> Mapping[str, list[int]]:
    """Leaves that touch each tensor at home, ascending."""
    users: dict[str, list[int]] = {}
    for number, leaf_refs in enumerate(refs):
        for name in dict.fromkeys(
            ref.tensor for ref in (*leaf_refs.reads, leaf_refs.write) if ref.scope is None
        ):
            users.setdefault(name, []).append(number)
    return users

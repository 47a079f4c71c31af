"""Memories of the machine, and the entries that stand in their slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from worker.compiler.errors import MemoryFault
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import UnitProgram
from worker.compiler.package.emulator import LevelSpec
from worker.interpreter.expressions import Expressions, constant
from worker.interpreter.leaves import Access, Scope, strides
from worker.interpreter.values import Array, store, stored

FLOAT_POISON, INTEGER_POISON = 0xFF, 0xA5
"""What undefined bytes hold, as in the C kernels."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Elements in reach: of an operand at home, of a slot, or of a staged copy."""

    elements: Array
    """One dimension, in storage types; a view of the memory they are in."""
    dtype: DType
    starts: tuple[int, ...]
    """Coordinates of element 0."""
    extents: tuple[int, ...]

    def offsets(self, index: Sequence[Array]) -> Array:
        """Numbers of the elements at some coordinates, which are inside."""
        found: Array = np.zeros((), dtype=np.int64)
        for at, start, stride in zip(index, self.starts, strides(self.extents), strict=True):
            found = found + (at - start) * stride
        return found

    def holds(self, index: Sequence[Array]) -> Array:
        """Where coordinates are inside."""
        found: Array = np.ones((), dtype=np.bool_)
        for at, start, extent in zip(index, self.starts, self.extents, strict=True):
            found = found & (at >= start) & (at < start + extent)
        return found

    def copy(self) -> Storage:
        """The same as it is now."""
        return Storage(self.elements.copy(), self.dtype, self.starts, self.extents)


class Memory:
    """Everything that a unit's instructions reach during one call."""

    def __init__(
        self,
        unit: UnitProgram,
        expressions: Expressions,
        levels: Sequence[LevelSpec],
        num_cores: int,
        operands: Sequence[Array],
    ) -> None:
        """`operands`: bytes at home, changed in place."""
        self.unit = unit
        self.expressions = expressions
        self.num_cores = num_cores
        self.level_of = {level.name: k for k, level in enumerate(levels)}
        self.instances = {level.name: level.instances for level in levels}
        self.operands = operands
        self._arenas: dict[tuple[str, int], Array] = {}
        self._sizes = {
            level.name: max(
                (b.address + b.size_bytes for b in unit.buffers if b.level == level.name),
                default=0,
            )
            for level in levels
        }
        for level in levels:
            if self._sizes[level.name] > level.capacity_bytes:
                raise MemoryFault(
                    f"buffers need {self._sizes[level.name]} bytes of {level.name}, it has"
                    f" {level.capacity_bytes}"
                )
        self._opened: set[tuple[int, int]] = set()
        self._standing: dict[tuple[str, int, int], tuple[int, int]] = {}

    def instance(self, level: str, core: int) -> int:
        """The one that a core is attached to."""
        return core * self.instances[level] // self.num_cores

    def slot_offset(self, scope: Scope, counters: Sequence[int]) -> int:
        """Bytes from the buffer's address to the slot of the open entry."""
        slot = self.expressions.integer(scope.slot, counters)
        return slot * self.unit.buffers[scope.buffer].slot_bytes

    def storage(self, access: Access, counters: Sequence[int]) -> Storage:
        """Where an operand is.  An entry begins with whatever reaches for it first, undefined, and
        is so again once its slot has been given to another one.

        Raises:
            MemoryFault: the slot is outside of its buffer.
        """
        if access.scope is None:
            operand = self.unit.operands[access.operand]
            kind = DType(operand.dtype)
            raw = self.operands[access.operand]
            return Storage(
                raw.view(stored(kind)), kind, (0,) * len(operand.shape), operand.shape
            )  # fmt: skip
        scope, buffer = access.scope, self.unit.buffers[access.scope.buffer]
        kind = DType(buffer.dtype)
        offset = self.slot_offset(scope, counters)
        size = prod(scope.extents) * kind.size_bytes
        if not 0 <= offset <= buffer.size_bytes - size:
            raise MemoryFault(f"{buffer.path} has no slot at byte {offset}")
        core = self.expressions.integer(scope.core, counters)
        if not 0 <= core < self.num_cores:
            raise MemoryFault(f"{buffer.path} is on core {core} of {self.num_cores}")
        instance = self.instance(buffer.level, core)
        address = buffer.address + offset
        raw = self._arena(buffer.level, instance)[address : address + size]
        starts = tuple(self.expressions.integer(e, counters) for e in scope.starts)
        found = Storage(raw.view(stored(kind)), kind, starts, scope.extents)
        entry = scope.number, self.expressions.integer(scope.entry, counters)
        where = buffer.level, instance, address
        if self._standing.get(where) != entry:
            raw[:] = FLOAT_POISON if kind.is_float else INTEGER_POISON
            if entry in self._opened:
                return found  # another entry has taken its slot: what it held is gone
            self._opened.add(entry)
            self._standing[where] = entry
            if scope.is_identity:
                found.elements[:] = store(constant(scope.value, kind), kind, kind)
        return found

    def _arena(self, level: str, instance: int) -> Array:
        if (level, instance) not in self._arenas:
            self._arenas[level, instance] = np.full(
                self._sizes[level], FLOAT_POISON, dtype=np.uint8
            )
        return self._arenas[level, instance]

"""The metadata module: constants, and the data entries that values are read from and written to.

Entries have their ids since compile time: first the tensors of the home arena, in its table's
order, then the values that only host parts see.  Those with a static shape are allocated once, when
the model is loaded; others are kept as each run makes them.
Source: BYOC section 3.4, figure 6a.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from worker.compiler.ir.dtype import DType
from worker.compiler.package.archive import damaged
from worker.compiler.package.emulator import Arena
from worker.compiler.package.executable import (
    Array,
    Constants,
    ExecutableModel,
    HomeTensor,
    HostEntry,
)
from worker.compiler.package.weights import stored_bytes

_POISON = 0xFF


@dataclass(frozen=True, slots=True)
class DataEntry:
    """One pre-allocated value."""

    id: int
    name: str
    dtype: str
    """`DType` value, or numpy's name."""
    array: Array
    """Its memory, in the storage type."""


class MetadataModule:
    """Constants and data entries of one program.  Not thread-safe."""

    def __init__(self, model: ExecutableModel) -> None:
        self._tensors = {t.name: t for t in model.tensors}
        self._constants = model.constants
        self._home_bytes = model.program.home_bytes
        self._home = Arena(model.program.home_bytes)
        self.entries: dict[str, DataEntry] = {}
        """Pre-allocated ones, by name."""
        for number, tensor in enumerate(model.tensors):
            array = self._home_array(tensor)
            self.entries[tensor.name] = DataEntry(number, tensor.name, tensor.dtype, array)
        self._host_names: list[str] = []
        for number, entry in enumerate(model.host_entries, len(model.tensors)):
            memory = _allocated(entry)
            if memory is not None:
                self.entries[entry.name] = DataEntry(number, entry.name, entry.dtype, memory)
                self._host_names.append(entry.name)
        self._kept: dict[str, Array] = {}
        """Values of this run that have no memory of their own."""
        self._written: set[str] = set()
        """Host entries that this run has written."""

    def _home_array(self, tensor: HomeTensor) -> Array:
        count = prod(tensor.shape)
        if not count:
            return np.zeros(tensor.shape, DType(tensor.dtype).numpy)
        flat = np.frombuffer(self._home.buffer(), DType(tensor.dtype).numpy, count, tensor.address)
        return flat.reshape(tensor.shape)

    @property
    def arena(self) -> memoryview:
        """The home memory, writable."""
        return self._home.buffer()

    @property
    def home_address(self) -> int:
        """Where the home memory starts."""
        return self._home.address

    def load_constants(self, constants: Constants) -> None:
        """Copy weights to their addresses, one at a time."""
        for name in self._constants:
            tensor = self._tensors[name]
            place = self.arena[tensor.address : tensor.address + tensor.size_bytes]
            place[:] = stored_bytes(tensor, constants[name]())

    def begin(self) -> None:
        """Forget the values of the run before."""
        self._kept.clear()
        self._written.clear()

    def poison(self) -> None:
        """Fill whatever holds no weights with bytes that no result looks like."""
        for start, end in self._between_weights():
            self.fill(start, end - start)
        for name in self._host_names:
            self.entries[name].array.reshape(-1).view(np.uint8)[:] = _POISON

    def fill(self, address: int, size_bytes: int) -> None:
        """Poison a range of the home memory."""
        np.frombuffer(self.arena, np.uint8, size_bytes, address)[:] = _POISON

    def unwritten(self, inputs: Mapping[str, object]) -> set[str]:
        """Home tensors that a run must write before it reads them."""
        return set(self._tensors) - set(self._constants) - set(inputs)

    def write(self, name: str, value: Array) -> None:
        """Define a value: copied to its entry where it has one."""
        tensor = self._tensors.get(name)
        if tensor is not None:
            place = self.arena[tensor.address : tensor.address + tensor.size_bytes]
            place[:] = stored_bytes(tensor, value)
            return
        entry = self.entries.get(name)
        if entry is None or not _fits(value, entry.array):
            self._kept[name] = value
            return
        entry.array[...] = value
        self._written.add(name)

    def place(self, name: str) -> memoryview:
        """The bytes of a home tensor where they are, writable."""
        tensor = self._tensors[name]
        return self.arena[tensor.address : tensor.address + tensor.size_bytes]

    def mark_written(self, name: str) -> None:
        """Note that a host part has written the value's entry in place."""
        self._written.add(name)

    def is_allocated(self, name: str) -> bool:
        """Whether a bound host part may read or write the value's memory as it is now."""
        return name in self.entries and name not in self._kept

    def value(self, name: str) -> Array:
        """The value as it is now, without a copy.

        Raises:
            InputError: TW-RUN-001, nothing in this run has made it.
        """
        if name in self._kept:
            return self._kept[name]
        if name in self._tensors or name in self._written:
            return self.entries[name].array
        raise damaged(f"nothing produces {name}")

    def read(self, name: str) -> Array:
        """A copy of a value as it is now; values without memory of their own are given as made."""
        return self._kept[name] if name in self._kept else self.value(name).copy()

    def _between_weights(self) -> list[tuple[int, int]]:
        """Address ranges of the home memory that hold no weights."""
        held = sorted(
            (t.address, t.address + t.size_bytes)
            for t in (self._tensors[name] for name in self._constants)
        )
        free: list[tuple[int, int]] = []
        top = 0
        for start, end in (*held, (self._home_bytes,) * 2):
            if start > top:
                free.append((top, start))
            top = max(top, end)
        return free


def _fits(value: object, memory: Array) -> bool:
    """Whether a value is an array of the memory's type; sequences and absent values are none."""
    if not isinstance(value, np.ndarray):
        return False
    return (value.dtype, value.shape) == (memory.dtype, memory.shape)


def _allocated(entry: HostEntry) -> Array | None:
    """Memory of a value that only host parts see; None where only a run knows its size."""
    if entry.shape is None:
        return None
    known = entry.dtype in DType.__members__.values()
    return np.zeros(entry.shape, DType(entry.dtype).numpy if known else np.dtype(entry.dtype))

"""The machine as the kernels see it: arenas of its sizes, a fault record, ctypes calls.

Mirrors `tw_machine` of tilewright_rt.h field by field.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from worker.compiler.errors import InternalError, MemoryFault
from worker.compiler.isa.program import UnitProgram
from worker.compiler.package.archive import damaged
from worker.compiler.package.build import LAYOUT_SYMBOL

_ABI = 1
_MAX_LEVELS = 16
_SCRATCH_BYTES = 4 << 20
_HUGE_PAGE_BYTES = 2 << 20
_FAULTS = {
    1: "leaves its arena: bytes {low}..{high} of {limit}",
    2: "is left: elements {low}..{high} of a dimension of {limit}",
    3: "asks for instance {low} of {limit}",
    4: "is written through a looked-up index outside its operand",
}


@dataclass(frozen=True, slots=True)
class LevelSpec:
    """What the emulator needs to know of a memory level."""

    name: str
    capacity_bytes: int
    instances: int


class _Machine(ctypes.Structure):
    _fields_ = (
        ("abi", ctypes.c_int32),
        ("num_levels", ctypes.c_int32),
        ("poison", ctypes.c_int32),
        ("num_faults", ctypes.c_int32),
        ("fault_kind", ctypes.c_int32),
        ("fault_buffer", ctypes.c_int32),
        ("fault_path", ctypes.c_char_p),
        ("fault_low", ctypes.c_int64),
        ("fault_high", ctypes.c_int64),
        ("fault_limit", ctypes.c_int64),
        ("scratch", ctypes.c_void_p),
        ("arena", ctypes.c_void_p * _MAX_LEVELS),
        ("capacity_bytes", ctypes.c_int64 * _MAX_LEVELS),
        ("instances", ctypes.c_int64 * _MAX_LEVELS),
        ("instance_stride_bytes", ctypes.c_int64 * _MAX_LEVELS),
    )


class Arena:
    """Zeroed memory of a fixed size that is committed page by page as it is touched."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._map = mmap.mmap(-1, max(num_bytes, 1))
        if hasattr(mmap, "MADV_HUGEPAGE") and num_bytes >= _HUGE_PAGE_BYTES:
            self._map.madvise(mmap.MADV_HUGEPAGE)  # strided tiles would miss the TLB per row
        self._view = (ctypes.c_ubyte * max(num_bytes, 1)).from_buffer(self._map)
        self.address = ctypes.addressof(self._view)

    def buffer(self) -> memoryview:
        """The bytes, writable."""
        return memoryview(self._map)


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """The arena that stands for all instances of a level."""

    stride_bytes: int
    """Distance of instances; 0: they never hold live data at the same time and share it."""
    arena_bytes: int


def plan_levels(
    levels: Sequence[LevelSpec], programs: Sequence[UnitProgram]
) -> tuple[LevelPlan, ...]:
    """Arenas that hold every buffer of some programs, parallel to `levels`.

    Instances share one arena unless some unit keeps data in several at a time (queues).
    """
    spread = any(_has_queues(program) for program in programs)
    found: list[LevelPlan] = []
    for level in levels:
        planned = max(
            (
                b.address + b.size_bytes
                for p in programs
                for b in p.buffers
                if b.level == level.name
            ),
            default=0,
        )
        found.append(
            LevelPlan(planned if spread else 0, planned * (level.instances if spread else 1))
        )
    return tuple(found)


class Emulator:
    """Runs kernels of a library for one machine, one call at a time."""

    def __init__(
        self,
        library: Path,
        levels: Sequence[LevelSpec],
        programs: Sequence[UnitProgram],
        poison: bool = True,
    ) -> None:
        if len(levels) > _MAX_LEVELS:
            raise InternalError("TW-INT-001", f"{len(levels)} memory levels, {_MAX_LEVELS} allowed")
        self._library = ctypes.CDLL(str(library))
        layout = ctypes.c_int64.in_dll(self._library, LAYOUT_SYMBOL).value
        if layout != ctypes.sizeof(_Machine):
            raise damaged(
                f"the kernels' runtime header describes a machine of {layout} bytes,"
                f" this version expects {ctypes.sizeof(_Machine)}"
            )
        self.machine = _Machine(abi=_ABI, num_levels=len(levels), poison=int(poison))
        """The `tw_machine` that kernels are called with."""
        self._scratch = Arena(_SCRATCH_BYTES)
        self.machine.scratch = self._scratch.address
        self._arenas: list[Arena] = []
        plans = plan_levels(levels, programs)
        for k, (level, plan) in enumerate(zip(levels, plans, strict=True)):
            arena = Arena(plan.arena_bytes)
            self._arenas.append(arena)
            self.machine.arena[k] = arena.address
            self.machine.capacity_bytes[k] = level.capacity_bytes
            self.machine.instances[k] = level.instances
            self.machine.instance_stride_bytes[k] = plan.stride_bytes

    def call(self, kernel: str, program: UnitProgram, addresses: Sequence[int]) -> None:
        """Run one kernel on operands at the given addresses.

        Raises:
            MemoryFault: an access outside a buffer or arena; names buffer, path and addresses.
        """
        launch = self.prepare(kernel, addresses)
        launch()
        self.check(kernel, program)

    def prepare(self, kernel: str, addresses: Sequence[int]) -> Callable[[], object]:
        """Marshal the arguments of a call that can then be made any number of times."""
        function = getattr(self._library, kernel)
        function.restype = None
        operands = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        return partial(function, ctypes.byref(self.machine), operands)

    def check(self, kernel: str, program: UnitProgram) -> None:
        """Look for a fault that the last call has recorded, and clear it.

        Raises:
            MemoryFault: there is one.
        """
        if self.machine.num_faults:
            fault = self._fault(program)
            self.machine.num_faults = 0
            raise MemoryFault(f"kernel {kernel}: {fault}")

    def _fault(self, program: UnitProgram) -> str:
        m = self.machine
        index = m.fault_buffer
        if index >= 0:
            buffer = program.buffers[index]
            what = f"buffer of {buffer.tensor} at {buffer.path} in {buffer.level}"
        else:
            what = f"operand {program.operands[-1 - index].tensor}"
        detail = _FAULTS[m.fault_kind].format(
            low=m.fault_low, high=m.fault_high, limit=m.fault_limit
        )
        return f"at {(m.fault_path or b'').decode()}: {what} {detail}"


def _has_queues(program: UnitProgram) -> bool:
    return any(".q" in buffer.path for buffer in program.buffers)

"""A kernel run as its program runs: instruction by instruction, in a legal order drawn by a seed.

The plain kernel goes through its loops in sequence, so it cannot see that nothing keeps a core from
overtaking another, or a transfer from filling a slot that is still read.  Here every instruction of
the lowered program is carried out by the C of its leaf, at one iteration, on the slots and
addresses that the program gives it; every core and instance has memory of its own, and the order is
any that streams and tokens allow.  An instruction that does not wait long enough then reads poison
or what belongs to another iteration, and the outputs are other bits than the plain kernel's.

An instruction takes effect at one moment, and those of one stream in their order: what two of one
stream do to each other while both are under way is left to the audit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from worker.compiler.codegen.kernel import generate_steps
from worker.compiler.errors import MemoryFault
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.order import predecessors
from worker.compiler.isa.program import Opcode, OperandRole, UnitProgram, expanded
from worker.compiler.machine.machine import Machine
from worker.compiler.package.build import build_library
from worker.compiler.package.emulator import Arena, Emulator
from worker.compiler.package.executable import level_specs
from worker.compiler.schedule.nodes import Init, Schedule
from worker.compiler.schedule.walk import walk
from worker.verification.orders import legal_order
from worker.verification.program_steps import RESULT, LeafSteps, Place, Step, leaf_steps
from worker.verification.receivers import receiver_by_receiver

Bytes = npt.NDArray[np.uint8]

MAX_INSTRUCTIONS = 1 << 13
"""Of a kernel's program: each takes Python some 50 us in an order."""
MAX_LEAVES = 1 << 8
"""Of its tree: each is a C function, some 5 ms to compile."""
MAX_POINTS = 1 << 24
"""Of its operators: the C is not optimised, some 10 ns."""
MAX_BYTES = 1 << 26
"""Of its memories and operands."""
MAX_STAGED_BYTES = 1 << 27
"""Of what is staged: each transfer keeps a copy of all that it might have read."""
_ALIGN = 64
_FLOAT_POISON, _INTEGER_POISON = 0xFF, 0xA5
"""As kernels poison (`codegen/kernel.py`)."""


def why_not(schedule: Schedule, unit: UnitProgram, machine: Machine) -> str | None:
    """Why a kernel is not interleaved: what is too large, count and limit; None where it can be."""
    home = sum(operand.size_bytes for operand in unit.operands)
    held = sum(machine.level(b.level).instances * (b.address + b.size_bytes) for b in unit.buffers)
    count = unit.num_instructions
    counts = (
        (count, MAX_INSTRUCTIONS, "instructions"),
        (len(walk(schedule).leaves), MAX_LEAVES, "leaves"),
        (sum(op.num_points for op in schedule.graph.ops), MAX_POINTS, "points"),
        (home + held, MAX_BYTES, "bytes of memory"),
    )
    for have, most, what in counts:
        if have > most:
            return f"it has {have} {what}, more than {most}"
    staged = _num_staged(unit) * max(
        [operand.size_bytes for operand in unit.operands] + [b.slot_bytes for b in unit.buffers]
    )
    if staged > MAX_STAGED_BYTES:
        return f"it may stage {staged} bytes, more than {MAX_STAGED_BYTES}"
    return None


def _num_staged(unit: UnitProgram) -> int:
    """Transfers of operands that computes can't address."""
    rows = expanded(unit).instructions
    is_compute = rows["opcode"] == int(Opcode.COMPUTE)
    computing = np.zeros(len(unit.nodes), dtype=np.bool_)
    computing[rows["node"][is_compute]] = True
    return int(np.count_nonzero(computing[rows["node"]] & ~is_compute))


class InterleavedKernel:
    """One kernel, ready to run in any order.  Not thread-safe."""

    def __init__(
        self, schedule: Schedule, program: UnitProgram, machine: Machine, library: Path, name: str
    ) -> None:
        """`library` holds `generate_steps(..., name)`.

        Raises:
            VerifyError: an instruction is none of the schedule's, or waits for what does not come.
        """
        self.unit, cores = receiver_by_receiver(expanded(program), machine)
        self._name = name
        self._leaves, self._steps = leaf_steps(schedule, self.unit, cores, machine)
        self._before = predecessors(self.unit)
        self._emulator = Emulator(library, level_specs(machine), [program])
        self._library = ctypes.CDLL(str(library))
        self._scopes = walk(schedule).scopes
        self._buffer_of = {buffer.path: buffer for buffer in self.unit.buffers}
        self._guard = max((b.slot_bytes for b in self.unit.buffers), default=0) + _ALIGN
        size = self._guard
        self._level: dict[str, tuple[int, int]] = {}
        for level in machine.levels:
            planned = max(
                (b.address + b.size_bytes for b in self.unit.buffers if b.level == level.name),
                default=0,
            )
            stride = -(-(planned + self._guard) // _ALIGN) * _ALIGN
            self._level[level.name] = size, stride
            size += stride * level.instances if planned else 0
        self._home: list[int] = []
        for operand in self.unit.operands:
            self._home.append(size)
            size += -(-(operand.size_bytes + self._guard) // _ALIGN) * _ALIGN
        self._arena = Arena(size + self._guard)
        self._memory = np.frombuffer(self._arena.buffer(), dtype=np.uint8)
        self._base = self._arena.address
        self._opened: set[tuple[int, int]] = set()
        """Entries: number of the scope, and of the entry in it."""
        self._standing: dict[int, tuple[int, int]] = {}
        """By address of a slot: the entry that was opened there last."""
        self._staged: dict[tuple[int, int, Place], tuple[int, bytes]] = {}
        """By leaf, staging slot and operand: the iteration, and a copy of all that its transfer
        might have read."""
        self._operands: dict[tuple[int, int], tuple[int, dict[Place, bytes]]] = {}
        """By leaf and staging slot: the iteration, and what its result is computed from when it
        leaves the slot."""

    def run(self, operands: Sequence[Bytes], seed: int) -> list[Bytes]:
        """The operands as one order leaves them; those given are only read, results poisoned.

        Raises:
            MemoryFault: an access leaves its buffer or the memory.
        """
        self._memory[:] = _FLOAT_POISON
        self._opened.clear()
        self._standing.clear()
        self._staged.clear()
        self._operands.clear()
        for at, value in zip(self._home, poisoned(self.unit, operands), strict=True):
            self._memory[at : at + len(value)] = value
        for event in legal_order(self.unit, self._before, seed):
            step = self._steps[event // 2]
            if event % 2 == 0:
                self._begin(step)
                continue
            self._take_effect(step)
            if self._emulator.machine.num_faults:
                self._emulator.check(self._name, self.unit)
        return [
            self._memory[at : at + len(value)].copy()
            for at, value in zip(self._home, operands, strict=True)
        ]

    def _begin(self, step: Step) -> None:
        """What it touches first is undefined from now on."""
        leaf = self._leaves[step.leaf]
        if step.turn >= 0:
            self._open(leaf, step.iteration, leaf.staged[step.turn])
        elif step.turn == RESULT:
            self._open(leaf, step.iteration, leaf.write)
        else:
            for place in leaf.reads:
                self._open(leaf, step.iteration, place)
            if not leaf.is_write_staged:
                self._open(leaf, step.iteration, leaf.write)

    def _take_effect(self, step: Step) -> None:
        leaf, at = self._leaves[step.leaf], step.iteration
        staging = step.leaf, leaf.staging[at]
        if step.turn >= 0:
            place = leaf.staged[step.turn]
            address = self._address(leaf, at, place) + step.source_shift
            self._staged[*staging, place] = at, self._read(address, self._size(leaf, place))
        elif step.turn == RESULT:
            began, held = self._operands.get(staging, (-1, {}))
            if began != at:  # the slot holds another iteration's result, or none
                held = {p: self._undefined(leaf, p) for p in (*leaf.reads, *leaf.staged)}
            self._call(leaf, step, held)
        else:
            held = {place: self._brought(leaf, at, place) for place in leaf.staged}
            if leaf.is_write_staged:
                for place in leaf.reads:
                    address = self._address(leaf, at, place)
                    held[place] = self._read(address, self._size(leaf, place))
                self._operands[staging] = at, held
            else:
                self._call(leaf, step, held)

    def _brought(self, leaf: LeafSteps, at: int, place: Place) -> bytes:
        """A staged operand, if it is what its slot holds."""
        staging = leaf.leaf.number, leaf.staging[at]
        brought, value = self._staged.get((*staging, place), (-1, b""))
        return value if brought == at else self._undefined(leaf, place)

    def _undefined(self, leaf: LeafSteps, place: Place) -> bytes:
        return bytes([_FLOAT_POISON]) * self._size(leaf, place)

    def _call(self, leaf: LeafSteps, step: Step, held: dict[Place, bytes]) -> None:
        """Run a leaf's C on its slots, or on the copies `held` of them."""
        at, number = step.iteration, leaf.leaf.number
        slots = [self._address(leaf, at, Place(True, k)) for k in range(len(leaf.leaf.scopes))]
        homes = [self._base + offset for offset in self._home]
        shifts = [(leaf.reads[0], step.source_shift)] if step.source_shift else []
        shifts += [(leaf.write, step.target_shift)] if step.target_shift else []
        for place, shift in shifts:
            where = slots if place.is_scope else homes
            where[place.number] += shift
            self._read(where[place.number], 0)
        copies = {place: ctypes.create_string_buffer(value) for place, value in held.items()}
        target = (slots if leaf.write.is_scope else homes)[leaf.write.number]
        for place, copy in copies.items():
            where = slots if place.is_scope else homes
            where[place.number] = ctypes.addressof(copy)
        function = getattr(self._library, f"{self._name}_l{number}")
        function.restype = None
        counters = leaf.counters[at]
        function(
            ctypes.byref(self._emulator.machine),
            (ctypes.c_void_p * max(len(homes), 1))(*homes),
            (ctypes.c_void_p * max(len(slots), 1))(*slots),
            (ctypes.c_int64 * max(len(counters), 1))(*counters),
        )
        if leaf.write in copies:  # read and written through staging: what it changed goes back
            made = np.frombuffer(copies[leaf.write].raw, dtype=np.uint8)[: len(held[leaf.write])]
            changed = made != np.frombuffer(held[leaf.write], dtype=np.uint8)
            first = target - self._base
            self._memory[first : first + len(made)][changed] = made[changed]

    def _address(self, leaf: LeafSteps, at: int, place: Place) -> int:
        if not place.is_scope:
            return self._base + self._home[place.number]
        first, stride = self._level[leaf.leaf.scopes[place.number].memory]
        instance, offset = leaf.instances[at][place.number], leaf.offsets[at][place.number]
        return self._base + first + instance * stride + offset

    def _size(self, leaf: LeafSteps, place: Place) -> int:
        if not place.is_scope:
            return self.unit.operands[place.number].size_bytes
        buffer = self._buffer_of[leaf.leaf.scopes[place.number].path]
        return prod(buffer.extents) * DType(buffer.dtype).size_bytes

    def _read(self, address: int, size: int) -> bytes:
        first = address - self._base
        if first < 0 or first + size > len(self._memory):
            raise MemoryFault(f"kernel {self._name}: an address outside of all memory")
        return self._memory[first : first + size].tobytes()

    def _open(self, leaf: LeafSteps, at: int, place: Place) -> None:
        """Poison an entry's slot, or bring its identity, before whatever touches it first."""
        if not place.is_scope:
            return
        scope = leaf.leaf.scopes[place.number]
        entry = scope.number, leaf.entries[at][place.number]
        address, size = self._address(leaf, at, place), self._size(leaf, place)
        if self._standing.get(address) == entry:
            return
        # Also where it has lost its slot: another entry's values are not its own, even if equal.
        self._memory[address - self._base :][:size] = (
            _FLOAT_POISON if scope.dtype.is_float else _INTEGER_POISON
        )
        if entry in self._opened:
            return
        self._opened.add(entry)
        self._standing[address] = entry
        if scope.init is Init.IDENTITY:
            getattr(self._library, f"{self._name}_i{scope.number}")(ctypes.c_void_p(address))


def poisoned(unit: UnitProgram, operands: Sequence[Bytes]) -> list[Bytes]:
    """Copies of the operands, with poison where the kernel writes."""
    found = []
    for operand, value in zip(unit.operands, operands, strict=True):
        if operand.role in (OperandRole.OUTPUT, OperandRole.SCRATCH):
            is_float = DType(operand.dtype).is_float
            found.append(np.full_like(value, _FLOAT_POISON if is_float else _INTEGER_POISON))
        else:
            found.append(value.copy())
    return found


def interleaved_kernel(
    schedule: Schedule, program: UnitProgram, machine: Machine, folder: Path, name: str = "tw_steps"
) -> InterleavedKernel:
    """Build one kernel's steps in `folder`."""
    text = generate_steps(schedule, program, machine, name)
    library = build_library({name: text}, folder, is_quick=True)
    return InterleavedKernel(schedule, program, machine, library, name)

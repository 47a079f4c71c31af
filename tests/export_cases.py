"""Small kernels on small machines, as the exports' tests share them."""

from __future__ import annotations

from dataclasses import replace

from kernel_toys import conv_graph, machine, matmul_graph, tiled

from worker.compiler.export.derive import loop_nests
from worker.compiler.export.nest import LoopNest, Refusal
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import Machine, Managed, MemoryLevel
from worker.compiler.schedule.nodes import Schedule


def one_core() -> Machine:
    """A 4x4 array behind one scratchpad of 64 KiB."""
    return replace(machine(1, 1 << 16), name="one-core")


def two_cores() -> Machine:
    """The same twice."""
    return replace(machine(2, 1 << 16), name="two-cores")


def with_registers(mach: Machine) -> Machine:
    """A machine with 32 bytes of registers in each of the 16 units."""
    registers = MemoryLevel(
        "REG", 512, mach.num_cores, 1024.0, 1024.0, 0, 0.25, 0.25, Managed.REGISTER
    )
    return replace(mach, levels=(*mach.levels, registers))


def derived(schedule: Schedule, mach: Machine) -> tuple[LoopNest | Refusal, ...]:
    """Nests and refusals of a schedule as kernel `k`."""
    return loop_nests("k", ("node",), schedule, mach)


def nest_of(schedule: Schedule, mach: Machine) -> LoopNest:
    """The only nest of a schedule."""
    (found,) = derived(schedule, mach)
    assert isinstance(found, LoopNest), found
    return found


def refusal_of(schedule: Schedule, mach: Machine) -> Refusal:
    """The only refusal of a schedule."""
    (found,) = derived(schedule, mach)
    assert isinstance(found, Refusal), found
    return found


def matmul_nest() -> LoopNest:
    """8 x 16 x 8: tiles of 4 x 16 x 4, sums in four-row tiles."""
    return nest_of(tiled(matmul_graph(8, 16, 8), {"i": 4, "k": 4}), one_core())


def conv_nest() -> LoopNest:
    """8 filters of 3x3 over 8 channels of 8x8, padded: two rows and four channels at a time."""
    graph = conv_graph(8, 8, 8, 3, 1, 1, DType.F16)
    return nest_of(tiled(graph, {"h": 2, "c": 4}), one_core())

"""Small kernels on small machines, as the exports' tests share them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from kernel_toys import conv_graph, machine, matmul_graph, tiled
from naive_schedules import naive_schedule

from worker.compiler.export.derive import loop_nests
from worker.compiler.export.nest import LoopNest, Refusal
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
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


graphs = st.one_of(
    st.builds(matmul_graph, st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
    st.builds(
        conv_graph, st.integers(1, 3), st.integers(1, 4), st.integers(3, 8),
        st.sampled_from((1, 3)), st.sampled_from((1, 2)), st.sampled_from((0, 1)),
    ),
)  # fmt: skip


@st.composite
def kernels(draw: st.DrawFn) -> tuple[Schedule, Machine]:
    """Products and convolutions, by `naive` or in tiles of any size, on one core or two."""
    graph: Graph = draw(graphs)
    if draw(st.booleans()):
        return naive_schedule(graph, one_core()), one_core()
    tile = {a.name: draw(st.integers(1, a.extent)) for a in graph.ops[0].domain}
    is_split = draw(st.booleans())
    if is_split:
        first = next((a.name for a in graph.ops[0].domain if -(-a.extent // tile[a.name]) > 1), "")
        is_split = bool(first) and -(-graph.ops[0].axis(first).extent // tile[first]) <= 2
    return tiled(graph, tile, 2 if is_split else 1), two_cores()

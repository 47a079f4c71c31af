"""Directives against the trees they come from, and against what they say by themselves."""

from __future__ import annotations

from math import prod

import numpy as np
from export_cases import derived, kernels
from hypothesis import given
from hypothesis import strategies as st
from kernel_toys import machine, matmul_graph

from worker.compiler.cost.compute import contracted_points
from worker.compiler.errors import InputError
from worker.compiler.export.directives.notation import (
    Directives,
    Level,
    Stack,
    Tensor,
    Update,
    parse_directives,
    print_directives,
)
from worker.compiler.export.directives.of_nest import write_directives
from worker.compiler.export.directives.tree import tree_of
from worker.compiler.export.nest import LoopNest
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.interpret import interpret
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.verify import verify
from worker.simulator.results import UnitSimulation
from worker.simulator.run import simulate_unit


def simulated(schedule: Schedule, mach: Machine) -> UnitSimulation:
    program = lower_unit(schedule, mach, "0" * 64)
    return simulate_unit(program, mach, 0, contracted_points(schedule.graph.ops))


@given(kernels())
def test_what_is_told_in_directives_runs_as_the_tree_it_was_read_from(
    kernel: tuple[Schedule, Machine],
) -> None:
    """Nothing that is told differs; what is not told was dropped and fetched again."""
    schedule, mach = kernel
    (nest,) = derived(schedule, mach)
    assert isinstance(nest, LoopNest)
    export = write_directives((nest,), mach)
    if export.refused:
        assert not all(nest.is_stationary(hold) for hold in nest.holds), export.refused
        return
    [(_, text)] = export.files
    root = tree_of(parse_directives(text), schedule.graph, mach)
    again = Schedule(schedule.graph, root, "directives", 0)
    verify(again, mach)
    before, after = simulated(schedule, mach), simulated(again, mach)
    assert (after.cycles, after.traffic) == (before.cycles, before.traffic)


@st.composite
def products(draw: st.DrawFn) -> Directives:
    """A product on up to eight cores: chunks of neighbours, or every third row to the same core."""
    chains = {}
    for axis in "ijk":
        parts = ["inner", "time"] + ["cores"] * (axis != "k")
        chains[axis] = [(part, draw(st.integers(1, 3))) for part in draw(st.permutations(parts))]
        # What the engine steps through lies inside of a buffer, side by side.
        chains[axis].sort(key=lambda link: link[0] != "inner")
    tile = {axis: draw(st.integers(1, 2)) for axis in "ijk"}
    told: dict[str, list[tuple[str, int, int]]] = {"inner": [], "time": [], "cores": []}
    inside, extent = {}, {}
    for axis, chain in chains.items():
        step = tile[axis]
        for part, trip in chain:
            if trip > 1:
                told[part].append((axis, step, trip))
            step *= trip
            if part == "inner":
                inside[axis] = step
        extent[axis] = step
    for part in told:
        told[part] = draw(st.permutations(told[part]))
    axes = tuple((axis, size) for axis, size in extent.items() if size > 1)
    tensors = {"a": "ik", "b": "kj", "c": "ij"}

    def held(sizes: dict[str, int]) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(name, tuple((x, sizes[x]) for x in "ijk" if x in own and extent[x] > 1))
            for name, own in tensors.items()
        )

    stacks, inner = [], 1
    for axis, step, trip in told["cores"]:
        stacks.append(Stack(axis, step, trip, inner))
        inner *= trip
    # Loops inside of a buffer that do not move it keep what it has of the others.
    updates = {part: tuple(Update(x, s) for x, s, _ in told[part]) for part in told}
    buffers = []
    for name, own in tensors.items():
        times = [x for x, *_ in reversed(told["time"])]
        depth = max((k + 1 for k, x in enumerate(times) if x in own), default=0)
        later = {x: s * t for x, s, t in told["time"] if x in times[depth:]}
        sizes = tuple(
            (x, max(inside[x], later.get(x, 0))) for x in "ijk" if x in own and extent[x] > 1
        )
        buffers.append(Tensor(name, sizes, draw(st.integers(1, 2))))
    return Directives(
        "mm", axes,
        (Level("mme", held(tile), (), updates["inner"]),
         Level("L1", tuple(buffers), tuple(stacks), updates["time"])),
    )  # fmt: skip


@given(products(), st.integers(0, 1 << 30))
def test_directives_compute_what_their_operator_does(told: Directives, seed: int) -> None:
    sizes = dict(told.axes)
    m, n, k = (sizes.get(axis, 1) for axis in "ijk")
    graph, mach = matmul_graph(m, n, k), machine(16)
    text = print_directives(told)
    assert parse_directives(text) == told
    try:
        root = tree_of(told, graph, mach)
    except InputError as error:
        [finding] = error.findings
        # The last of the loops that move the result has one over sums inside of it.
        assert "sums would leave it" in finding.message
        updates = [update.axis for update in reversed(told.levels[1].updates)]
        assert "k" in updates[: max(i for i, x in enumerate(updates) if x in "ij")]
        return
    schedule = Schedule(graph, root, "directives", 0)
    verify(schedule, mach)
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-8, 8, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    assert np.array_equal(interpret(schedule, {"a": a, "b": b})["c"], a @ b)
    (nest,) = derived(schedule, mach)
    if isinstance(nest, LoopNest):  # cores that take turns are no nest of dimensions
        assert prod(loop.trip for loop in nest.loops if loop.is_spatial) == prod(
            stack.repl for stack in told.levels[1].stacks
        )

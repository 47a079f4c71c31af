"""Random composites on random machines: legal, and the same numbers interpreted and as C."""

from __future__ import annotations

import fused_graphs as fused
import numpy as np
from fused_graphs import ADD, Graph, Step
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from kernel_toys import run_units
from test_naive_schedules import machines, small_inputs

from worker.compiler.errors import Shortfall
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.graph import Graph as Ops
from worker.compiler.ir.op import Reduce
from worker.compiler.ir.region import Cuts
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.interpret import interpret
from worker.compiler.schedule.text import parse_schedule, print_schedule
from worker.compiler.schedule.verify import verify
from worker.compiler.strategies.naive.strategy import NaiveStrategy

SUB = Apply(Fn.SUB, (Read(0), Read(1)))


@st.composite
def composites(draw: st.DrawFn) -> Graph:
    """An anchor and one to four pointwise operators; some read any earlier result."""
    n = st.integers(1, 9)
    anchor = draw(
        st.one_of(
            st.builds(fused.matmul, n, n, st.integers(1, 24)),
            st.builds(
                fused.conv, st.integers(1, 4), st.integers(1, 6), st.integers(3, 8),
                st.sampled_from([1, 3]), st.integers(1, 2),
            ),
            st.builds(fused.grouped, st.integers(1, 4), st.integers(1, 4), st.integers(4, 9)),
            st.builds(fused.reduction, n, n, st.sampled_from([Reduce.ADD, Reduce.MAX])),
        )
    )  # fmt: skip
    given_type, result = draw(
        st.sampled_from(
            [(DType.F32, DType.F32), (DType.F16, DType.F16), (DType.BF16, DType.BF16),
             (DType.I8, DType.I32), (DType.I8, DType.I8)]
        )
    )  # fmt: skip
    operand = result if result is not DType.F32 else DType.F32
    steps: list[Step] = []
    for k in range(1, draw(st.integers(1, 4)) + 1):
        kind = draw(st.sampled_from(["channel", "same", "one", "relu", "earlier"]))
        if kind == "relu":
            steps.append((fused.relu(operand.accumulator), (), result))
        elif kind == "earlier":
            other = draw(st.integers(0, k - 1))
            steps.append((SUB, (f"@{k - 1}", f"@{other}"), result))
        else:
            steps.append((ADD, (kind,), result))
    if result is DType.I32 and draw(st.booleans()):
        steps.append((fused.requantise(0.13, -128, 127), (), DType.I8))
    return fused.composite(anchor, given_type, result, tuple(steps))


@given(composites(), machines(), st.integers(0, 1000))
def test_fused_is_legal_and_means_the_graph(graph: Graph, machine: Machine, seed: int) -> None:
    assert fused.grouped_names(graph, machine) == (fused.names(graph),)
    schedule = fused.planned(graph, machine)
    if isinstance(schedule, Shortfall):
        assert schedule.demand > schedule.bound
        return
    verify(schedule, machine)
    assert parse_schedule(print_schedule(schedule)) == schedule
    verify_program(lower_unit(schedule, machine, "s"), machine)
    inputs = small_inputs(schedule.graph, seed)
    (name,) = schedule.graph.outputs
    want = evaluate(schedule.graph, inputs)[name]
    np.testing.assert_array_equal(interpret(schedule, inputs, home="DDR")[name], want)


@COSTLY
@given(st.lists(composites(), min_size=12, max_size=12), machines(), st.integers(0, 1000))
def test_compiled_kernels_mean_the_graph(graphs: list[Graph], machine: Machine, seed: int) -> None:
    cases = []
    for graph in graphs:
        schedule = fused.planned(graph, machine)
        if not isinstance(schedule, Shortfall):
            program = lower_unit(schedule, machine, "s")
            cases.append((schedule, program, small_inputs(schedule.graph, seed)))
    if not cases:
        return
    for (schedule, _, inputs), got in zip(cases, run_units(cases, machine), strict=True):
        (name,) = schedule.graph.outputs
        np.testing.assert_array_equal(got[name], evaluate(schedule.graph, inputs)[name])


@given(composites(), machines(), st.data())
def test_groups_are_in_an_order_that_runs(
    graph: Graph, machine: Machine, data: st.DataObject
) -> None:
    """Whatever is asked together: every operator once, no value used before it is made."""
    names = fused.names(graph)
    asked = [
        tuple(data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4))) for _ in "ab"
    ]
    groups = NaiveStrategy().group(graph, machine, together=asked).groups
    flat = [name for group in groups for name in group.ops]
    assert sorted(flat) == sorted(names)
    cuts = Cuts.of(graph)
    Ops.build(
        tuple(cuts.op(name) for name in flat), tuple(graph.tensors.values()), graph.inputs,
        graph.outputs,
    )  # fmt: skip

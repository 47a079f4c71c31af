"""Primes, ones, millions, memories of a few bytes: a schedule or what is missing, and soon."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import lower_toys as toys
import pytest
from algebra_graphs import conv
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from machine_rates import with_every_format

from worker.compiler.errors import Shortfall
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.signature import canonicalize
from worker.compiler.machine import load_preset
from worker.compiler.options import Objective
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.verify import verify
from worker.compiler.strategies.base import Budget
from worker.compiler.strategies.naive.strategy import NAIVE
from worker.compiler.tiling.nest import branch_bound
from worker.compiler.tiling.nest.price import Pricer, Tilings

PRESETS = [
    "a100", "stcp920-inferred", "kapla-16x16", "eyeriss", "nvdla-large", "tpuv1", "ethos-u65",
    "simba", "ipu-gc200", "ascend910",
]  # fmt: skip
MOST_TILINGS = 8 * (branch_bound.MOST_TILINGS + 500)
"""Priced for one operator: on up to eight chains of memories, each to the end of a round."""
extents = st.sampled_from([1, 2, 3, 17, 128, 997, 7919, 65_536, 999_983, 1_000_000])
graphs = st.one_of(
    st.builds(toys.matmul_graph, extents, extents, extents),
    st.builds(
        conv, st.sampled_from([1, 2, 16]), st.sampled_from([1, 3, 512, 997]),
        st.sampled_from([1, 7, 64, 997]), st.sampled_from([31, 56, 224, 4099]),
        st.sampled_from([1, 3, 7, 31]), st.sampled_from([1, 2]), st.sampled_from([0, 1]),
    ),
)  # fmt: skip


@contextmanager
def counted() -> Iterator[list[int]]:
    """How many tilings are priced inside."""
    number = [0]
    best = Pricer.best

    def counting(self: Pricer, tilings: Tilings, *args: Any) -> Any:
        number[0] += len(tilings.tiles)
        return best(self, tilings, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pricer, "best", counting)
        yield number


@COSTLY
@given(
    graphs, st.sampled_from(PRESETS), st.sampled_from([1, 10, 10**3, 10**5]),
    st.sampled_from([Objective.LATENCY, Objective.ENERGY, Objective.OFFCHIP]),
)  # fmt: skip
def test_any_operator_ends_in_a_schedule_or_a_shortfall(
    graph: Graph, preset: str, smaller: int, objective: Objective
) -> None:
    machine = with_every_format(load_preset(preset))
    home, *inside = machine.levels
    inside = [replace(m, capacity_bytes=max(1, m.capacity_bytes // smaller)) for m in inside]
    machine = replace(machine, levels=(home, *inside))
    with counted() as number:
        budget = Budget(3, (objective,))
        answers = list(NAIVE.candidates(canonicalize(graph).graph, machine, budget=budget))
    assert number[0] <= MOST_TILINGS
    assert answers
    for answer in answers:
        if isinstance(answer, Shortfall):
            assert answers == [answer]
            assert answer.demand > answer.bound
            assert answer.levers
        else:
            assert isinstance(answer, Schedule)
            verify(answer, machine)

"""What each idea of `naive` does, seen by turning it off."""

from __future__ import annotations

import pytest
from kernel_toys import elementwise_graph, matmul_graph

from worker.compiler.errors import OptionError
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.scalar import Read
from worker.compiler.ir.signature import canonicalize
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions, Objective
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.text import print_schedule
from worker.compiler.strategies.base import Budget
from worker.compiler.strategies.naive.descriptor import Idea, NaiveOptions
from worker.compiler.strategies.naive.strategy import NAIVE

LATENCY, ENERGY = Budget(8), Budget(8, (Objective.ENERGY,))
SEEN = {
    Idea.JOINED: ("simba", (256, 512, 256), DType.I8, LATENCY),
    Idea.MEASURES: ("kapla-edge", (64, 1024, 512), DType.F16, ENERGY),
    Idea.REGISTERS: ("a100", (512, 512, 2048), DType.F16, LATENCY),
    Idea.CHAINS: ("stcp920-inferred", (128, 3072, 768), DType.F16, LATENCY),
    Idea.ONE_TEAM: ("kapla-16x16", (256, 1024, 512), DType.F16, LATENCY),
    Idea.SHORT: ("ipu-gc2", (2048, 512, 512), DType.F16, LATENCY),
    Idea.WALKS: ("simba", (64, 3072, 768), DType.I8, LATENCY),
    Idea.ALONE: ("h200", (512, 14336, 4096), DType.F16, LATENCY),
}


def schedules(idea: Idea, *without: Idea) -> list[str]:
    """What `naive` offers, as text, the best guess first."""
    preset, size, dtype, budget = SEEN[idea]
    graph = canonicalize(matmul_graph(*size, dtype)).graph
    options = NaiveOptions(without=without)
    found = list(NAIVE.candidates(graph, load_preset(preset), options, budget))
    assert all(isinstance(each, Schedule) for each in found)
    return [print_schedule(each) for each in found if isinstance(each, Schedule)]


@pytest.mark.parametrize("idea", Idea)
def test_without_an_idea_something_else_is_offered(idea: Idea) -> None:
    without = schedules(idea, idea)
    assert schedules(idea) != without
    assert without


def test_without_registers_no_sum_stands_in_them() -> None:
    assert any("place t2 REG" in text for text in schedules(Idea.REGISTERS))
    assert not any("REG" in text for text in schedules(Idea.REGISTERS, Idea.REGISTERS))


def test_cores_that_share_no_operand_are_not_served_together() -> None:
    machine = load_preset("kapla-16x16")
    budget = Budget(8)

    def proofs(graph: Graph, *without: Idea) -> list[str]:
        options = NaiveOptions(without=without)
        found = NAIVE.candidates(canonicalize(graph).graph, machine, options, budget)
        return [note for each in found for note in each.notes if isinstance(each, Schedule)]

    relu = elementwise_graph(Read(0), (DType.F16,), DType.F16, (64, 4096))
    assert not any("joined" in note for note in proofs(relu))
    assert any("joined" in note for note in proofs(relu, Idea.ONE_TEAM))
    assert any("joined" in note for note in proofs(matmul_graph(256, 512, 256, DType.F16)))


def test_options_hold_ideas_sorted_and_refuse_what_is_none() -> None:
    asked = {"strategy": "naive", "strategy_options": {"naive": {"without": ["joined", "alone"]}}}
    [(name, options)] = CompileOptions.from_json(asked).strategy_options
    assert (name, options) == ("naive", NaiveOptions(without=(Idea.ALONE, Idea.JOINED)))
    assert options == NaiveOptions(without=(Idea.JOINED, Idea.ALONE, Idea.JOINED))
    asked["strategy_options"] = {"naive": {"without": ["luck"]}}
    with pytest.raises(OptionError, match="luck"):
        CompileOptions.from_json(asked)

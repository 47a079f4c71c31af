"""Every heuristic has a switch, and every switch decides something."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from graphturbo_nets import Net, clustered, down_sampled, towers
from onnx_models import conv_net, saved
from test_graphturbo_bands import attended
from test_graphturbo_loosen import projection
from test_graphturbo_nests import ON as SMALL_BUFFERS
from test_graphturbo_sections import conv_chain, slow_home, wide_then_deep
from test_graphturbo_unit_plan import residual

from benchmarks.ablation import GENERAL, JUDGE, NAIVE_ROWS, ROWS, options_of, table
from worker.compiler.cache import MemoryCache
from worker.compiler.errors import OptionError, Shortfall, VerifyError
from worker.compiler.heuristics import LOWERING, Heuristic
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.scalar import Read
from worker.compiler.judge.elect import ways_for
from worker.compiler.judge.entrants import entrants
from worker.compiler.judge.figures import Caps
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions, Objective
from worker.compiler.partition.plan import RegionRule
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.text import parse_schedule, print_schedule
from worker.compiler.strategies.graphturbo.descriptor import GraphTurboOptions, Idea
from worker.compiler.strategies.graphturbo.strategy import GRAPHTURBO
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress

CHIP = load_preset("stcp920-inferred")
FOUR = clustered(clusters=4, cores=2, gb_bytes=1 << 16, l1_bytes=1 << 13)


def planned(graph: Graph, on: Machine, *without: Idea) -> tuple[tuple[str, ...], Schedule]:
    """The operators that are scheduled, and GraphTurbo's first schedule of them."""
    options = GraphTurboOptions(without=without)
    grouping = GRAPHTURBO.group(graph, on, options)
    found = next(GRAPHTURBO.candidates(grouping.graph, on, options))
    assert not isinstance(found, Shortfall)
    return tuple(op.name for op in grouping.graph.ops), found


def turned(size: int = 8) -> Graph:
    """A product of a matrix that was copied with its dimensions exchanged."""
    net = Net()
    x = net.given(size, size)
    axes = [("i", size), ("j", size)]
    return net.graph(net.relu(net.matmul(net.op("turn", axes, [(x, ("j", "i"))], Read(0)), size)))


def products_apart(count: int = 3, size: int = 8) -> Graph:
    """Chains of two products of the same matrix, one after the other."""
    net = Net()
    x = net.given(size, size)
    return net.graph(*(net.matmul(net.matmul(x, size), size) for _ in range(count)))


def work_late() -> Graph:
    """Large tensors and little work, then small tensors and much work."""
    net = Net()
    x = net.relu(net.conv(net.given(1, 8, 16, 16), 32, 3))
    x = net.relu(net.conv(x, 32, 3, 4))
    for channels in (128, 128, 32):
        x = net.relu(net.conv(x, channels, 1))
    return net.graph(x)


LOOSE = clustered(clusters=2, cores=2, gb_bytes=1 << 15, l1_bytes=1 << 13)
DECIDED: dict[Idea, tuple[Callable[[], Graph], Machine, tuple[Idea, ...]]] = {
    Idea.COMPOSE: (turned, FOUR, ()),
    Idea.TWO_STAGES: (attended, FOUR, ()),
    Idea.LOCKSTEP: (products_apart, FOUR, ()),
    Idea.LOOSEN: (lambda: projection(64, 2048, 64), LOOSE, ()),
    Idea.SECTIONS: (wide_then_deep, slow_home(8.0), ()),
    Idea.TEAMS: (work_late, slow_home(8.0), (Idea.SECTIONS,)),
    Idea.BANDS: (lambda: conv_chain(16, 8, 3), FOUR, ()),
    Idea.TURNS: (lambda: down_sampled(16), SMALL_BUFFERS, ()),
    Idea.SPILL_BY_COST: (residual, clustered(clusters=1, cores=2, gb_bytes=3000), ()),
    Idea.HANDOVER: (lambda: towers(16), FOUR, ()),
}
"""A graph and a machine where an idea decides, and what is left out besides."""


@pytest.mark.parametrize("idea", Idea)
def test_each_idea_of_graphturbo_decides_something(idea: Idea) -> None:
    build, on, besides = DECIDED[idea]
    graph = build()
    ops, schedule = planned(graph, on, *besides)
    other_ops, other = planned(graph, on, *besides, idea)
    assert (ops, schedule.root) != (other_ops, other.root), idea


def streamed(count: int, width: int) -> Graph:
    """Products whose weights stream past the activations."""
    net = Net()
    x = net.given(64, width)
    for _ in range(count):
        x = net.relu(net.matmul(x, width))
    return net.graph(x)


@pytest.mark.parametrize("name", GENERAL)
def test_each_heuristic_of_lowering_decides_something(name: Heuristic) -> None:
    differs = []
    for graph in (conv_chain(32, 16, 6), streamed(4, 128)):
        _, schedule = planned(graph, CHIP)
        programs = [
            lower_unit(
                Schedule(schedule.graph, schedule.root, "x", 0, without), CHIP, "s"
            ).instructions.tobytes()
            for without in ((), (name,))
        ]
        differs.append(programs[0] != programs[1])
    assert any(differs), name


def test_the_judge_mixes_unless_it_is_told_not_to() -> None:
    field, _ = entrants(CompileOptions())
    assert len(field) > 1
    mixed = ways_for(field, Objective.LATENCY, (RegionRule.CRITERIA,), Caps(None, None))
    alone = ways_for(
        field, Objective.LATENCY, (RegionRule.CRITERIA,), Caps(None, None), is_mixing=False
    )
    assert {len(way.entrants) for way in mixed} == {1, len(field)}
    assert {len(way.entrants) for way in alone} == {1}
    assert {way.names for way in alone} == {(one.name,) for one in field}


# --- options, text, bundles -----------------------------------------------------------------------


def test_without_is_a_list_of_known_names() -> None:
    options = CompileOptions.from_json({"without": ["spread", "pace", "spread"]})
    assert options.without == (Heuristic.PACE, Heuristic.SPREAD)
    assert CompileOptions.from_json(options.to_json()) == options
    for wrong in (["speed"], "pace", [1], None):
        with pytest.raises(OptionError) as caught:
            CompileOptions.from_json({"without": wrong})
        assert caught.value.findings[0].pointer == "/options/without"
    with pytest.raises(OptionError, match="has no mixtures to leave out"):
        CompileOptions.from_json({"strategy": "naive", "without": ["mixtures"]})
    for unknown in (["speed"], "bands"):
        with pytest.raises(OptionError, match="without: a list of bands, compose, "):
            CompileOptions.from_json({"strategy_options": {"graphturbo": {"without": unknown}}})


def test_what_graphturbo_leaves_out_has_one_form() -> None:
    """As JSON has it: lists, and nothing that is default, so that old documents stay equal."""
    asked = {"variant": "v1", "without": ["turns", "bands", "turns"]}
    options = CompileOptions.from_json({"strategy_options": {"graphturbo": asked}})
    document = options.to_json()
    assert document["strategy_options"] == {
        "graphturbo": {"variant": "v1", "without": ["bands", "turns"]}
    }
    assert json.loads(json.dumps(document)) == document
    assert CompileOptions.from_json(document) == options
    variant = {"graphturbo": {"variant": "v1"}}
    alone = CompileOptions.from_json({"strategy_options": variant}).to_json()
    assert alone["strategy_options"] == variant


def test_a_schedule_carries_what_lowering_leaves_out() -> None:
    _, schedule = planned(conv_chain(16, 8, 3), FOUR)
    made = Schedule(schedule.graph, schedule.root, "x", 7, (Heuristic.PACE, Heuristic.SPREAD))
    text = print_schedule(made)
    assert text.startswith("schedule x cycles=7 without=pace,spread\n")
    assert parse_schedule(text) == made
    for wrong in ("spread,pace", "pace,pace", "halves", "speed", ""):
        with pytest.raises(VerifyError):
            parse_schedule(text.replace("pace,spread", wrong))


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where kernels are compiled: many programs have the same."""
    return tmp_path_factory.mktemp("build")


@pytest.mark.parametrize("name", [*GENERAL, *Idea, *NAIVE_ROWS, *JUDGE])
def test_programs_without_a_heuristic_are_right(name: str, tmp_path: Path, build: Path) -> None:
    """Every tensor against ONNX Runtime; the bundle's kernels are made anew from its schedules."""
    options = CompileOptions.from_json({"verify": "full", **options_of(name)})
    request = JobRequest(saved(conv_net(), tmp_path), "m", {"preset": CHIP.name}, options, build)
    run_job(request, tmp_path / "out", MemoryCache(), NoProgress())
    report = json.loads((tmp_path / "out" / "report.json").read_bytes())
    assert report["verification"]["passed"] is True
    assert not [w for w in report["warnings"] if w["code"] == "STRATEGY_FALLBACK"]
    from worker.compiler.package.runtime import Origin, load_bundle

    loaded = load_bundle(tmp_path / "out" / "m.twb", build)
    assert loaded.origin is Origin.COMPARED


# --- the ledger -----------------------------------------------------------------------------------


def test_the_ledger_says_what_a_heuristic_earns() -> None:
    cycles = dict.fromkeys(("", "naive", "auto", *ROWS), 1000)
    rows = {
        "net chip": {"cycles": {**cycles, "pace": 1100, "halves": 900, "naive": 500}},
        "other chip": {"cycles": {**cycles, "loosen": "TW-PLAN-001 nothing fits"}},
        "broken chip": {"failure": "exit 1"},
    }
    lines = {line.split(" | ")[0].strip("| "): line for line in table(rows).splitlines()}
    geomean = np.sqrt(1.1)
    assert lines["pace"] == (
        f"| pace | {geomean:.4f} | net chip | 1.1000 | other chip | 1.0000 | 1 | 0 | 0 |"
    )
    assert " | 0.9000 | 0 | 1 | 0 |" in lines["halves"]
    assert lines["bounded"].startswith("| bounded | 1.4142 | net chip | 2.0000 |")
    assert lines["loosen"].endswith(" | 0 | 0 | 1 |")
    assert set(ROWS) == {*LOWERING, *Idea, *JUDGE, "level+pace", *NAIVE_ROWS}

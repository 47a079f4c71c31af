"""What a compile is to make small, `naive` looks for: not only among the fastest tilings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from algebra_graphs import conv
from onnx_models import one_conv, saved

from worker.compiler.cache import MemoryCache
from worker.compiler.errors import Shortfall
from worker.compiler.frontend.limits import Limits
from worker.compiler.ir.signature import canonicalize
from worker.compiler.isa.program import Opcode
from worker.compiler.lower.lower import LISTED_ROWS, lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions, Objective
from worker.compiler.pipeline import compile_model
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.strategies.base import Budget
from worker.compiler.strategies.naive.certificate import Certificate
from worker.compiler.strategies.naive.descriptor import Idea, NaiveOptions, Tiles
from worker.compiler.strategies.naive.strategy import NAIVE
from worker.compiler.strategies.naive.tilings import SHARED_LEAVES
from worker.job.ports import open_ports
from worker.job.request import NoProgress
from worker.job.simulation import simulate_model
from worker.simulator.run import simulate_unit

CONV = canonicalize(conv(1, 48, 27, 128, 5, 1, 2)).graph


def drawn(budget: Budget, tiles: Tiles = Tiles.BOUNDED) -> list[Schedule | Shortfall]:
    machine = load_preset("kapla-edge")
    return list(NAIVE.candidates(CONV, machine, NaiveOptions(tiles), budget))


def test_the_first_candidate_is_the_objective_s_and_the_fastest_one_is_there() -> None:
    fastest = drawn(Budget(3))
    for measure in (Objective.ENERGY, Objective.OFFCHIP):
        found = drawn(Budget(3, (measure,)))
        assert found[0] not in fastest
        assert found[1:] == fastest
    both = drawn(Budget(3, (Objective.LATENCY, Objective.ENERGY)))
    assert both[0] == fastest[0]
    assert both[1] == drawn(Budget(3, (Objective.ENERGY,)))[0]


def test_where_links_can_multicast_tiles_for_both_are_looked_for() -> None:
    """A convolution whose weights many tiles of an IPU need: read once, or by each."""
    machine = load_preset("ipu-gc2")
    graph = canonicalize(conv(1, 256, 256, 14, 3, 1, 1)).graph
    both = NaiveOptions(without=(Idea.ONE_TEAM,))
    found = [s for s in NAIVE.candidates(graph, machine, both) if isinstance(s, Schedule)]
    programs = [lower_unit(s, machine, "s" * 64) for s in found]
    cycles = [simulate_unit(program, machine).cycles for program in programs]
    shares = [bool(np.any(p.instructions["opcode"] == Opcode.MULTICAST)) for p in programs]
    together, apart = (
        min(c for c, own in zip(cycles, shares, strict=True) if own == is_shared)
        for is_shared in (True, False)
    )
    assert 2 * together < apart
    asked = [s for s in NAIVE.candidates(graph, machine) if isinstance(s, Schedule)]
    assert asked
    assert {s.root for s in asked} <= {
        s.root for s, own in zip(found, shares, strict=True) if own
    }  # so far behind, cores that load alone are not looked for
    alone = found[cycles.index(apart)]
    assert SHARED_LEAVES == LISTED_ROWS
    silent = replace(machine, links=tuple(replace(k, multicast=False) for k in machine.links))
    others = list(NAIVE.candidates(graph, silent, budget=Budget(3)))
    assert alone.root in [other.root for other in others if isinstance(other, Schedule)]


def test_tiles_that_grow_know_no_objective() -> None:
    assert drawn(Budget(3, (Objective.ENERGY,)), Tiles.GROWN) == drawn(Budget(3), Tiles.GROWN)


@pytest.mark.parametrize(
    ("preset", "most"), [("kapla-edge", 0.8), ("eyeriss", 0.8), ("nvdla-large", 1.0)]
)
def test_each_objective_is_served_best_by_its_own_compile(
    tmp_path: Path, preset: str, most: float
) -> None:
    """A layer whose operands do not fit in two chips, as simulated.

    By cycles no other is better by more than the certificate says that there may be.
    """
    path = saved(one_conv(27, 48, 128, kernel=5, stride=1), tmp_path)
    machine = load_preset(preset)
    figures: dict[Objective, dict[Objective, float]] = {}
    gaps: dict[Objective, float] = {}
    for objective in (Objective.LATENCY, Objective.ENERGY, Objective.OFFCHIP):
        options = CompileOptions(strategy="naive", objective=objective)
        cache = MemoryCache()
        ports = open_ports(machine, options, cache, NoProgress())
        model = compile_model(path, "m", machine, options, ports, Limits())
        _, ran = simulate_model(model, cache)
        home = next(t for t in ran.traffic if t.level == machine.home.name)
        notes = (note for unit in model.units for note in unit.schedule.notes)
        gaps[objective] = next(filter(None, map(Certificate.said, notes))).gap
        figures[objective] = {
            Objective.LATENCY: ran.cycles,
            Objective.ENERGY: ran.energy_pj,
            Objective.OFFCHIP: home.read_bytes + home.write_bytes,
        }
    for measure in figures:
        least = min(found[measure] for found in figures.values())
        may_be = 1 + gaps[measure] if measure is Objective.LATENCY else 1
        assert least <= figures[measure][measure] <= may_be * least
    fastest = figures[Objective.LATENCY]
    assert figures[Objective.OFFCHIP][Objective.OFFCHIP] <= most * fastest[Objective.OFFCHIP]

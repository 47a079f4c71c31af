"""Walks over tilings: what they come upon is in the space, and more than boxes show."""

from __future__ import annotations

import random

import lower_toys as toys
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from machine_rates import with_every_format
from nest_layers import ADDITIVE, PRESETS, Layer, graphs
from test_branch_bound import scores_of_all, toys_of_all_kinds

from benchmarks.searches.operators import graphs as graphs_of
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.options import Objective
from worker.compiler.tiling.nest import branch_bound
from worker.compiler.tiling.nest.arrays import TRIPS, WAYS, Floats, Ints
from worker.compiler.tiling.nest.box_floor import BoxFloor
from worker.compiler.tiling.nest.branch_bound import Flags, is_bounded, search_all
from worker.compiler.tiling.nest.enumeration import EVERY_ROUNDING, Enumeration, Numbers
from worker.compiler.tiling.nest.facts import granules
from worker.compiler.tiling.nest.search import MOST_LEAVES, score
from worker.compiler.tiling.nest.walks import Grid, walked

FORMAT = {"simba": DType.I8, "ipu-gc200": DType.F16}


class Ground:
    """A layer's space by plain code (`enumeration`), which asks after one tiling at a time."""

    def __init__(self, graph: Graph, machine: Machine, chain: int = 0) -> None:
        self.layer = Layer(graph, machine, chain)
        facts = self.layer.facts
        self.names = list(facts.extents)
        self.space = Enumeration(facts, self.layer.needed, granules(facts, self.layer.engine))
        self.floor = BoxFloor(self.layer.frame, self.layer.pricer, machine)

    def numbers(self, row: Ints) -> Numbers:
        """Of one tiling [2, stages, axes], by axis."""
        return {
            name: tuple(zip(*row[:, :, a].tolist(), strict=True))
            for a, name in enumerate(self.names)
        }

    def is_real(self, numbers: Numbers) -> bool:
        return all(self.space.is_real(n, axis) for n, axis in numbers.items())

    def tiled(self, numbers: Ints, rounding: Ints) -> tuple[Ints, Flags]:
        tiles = np.ones((len(numbers), len(self.names)), np.int64)
        may = np.zeros(len(numbers), np.bool_)
        for row in range(len(numbers)):
            found = self.numbers(numbers[row])
            if numbers[row].min() >= 1 and self.is_real(found):
                sizes = self.space.sized(found, EVERY_ROUNDING[rounding[row]], double=False)
                if sizes is not None:
                    may[row] = True
                    tiles[row] = list(sizes.tiles[-1].values())
        return tiles, may

    def grid(self) -> Grid:
        stages, facts = self.layer.needed, self.layer.facts
        most = np.ones((2, len(stages), len(self.names)), np.int64)
        for a, (name, extent) in enumerate(facts.extents.items()):
            most[TRIPS, :, a] = extent
            if name in facts.out_axes:
                most[WAYS, :, a] = [stage.units for stage in stages]
        return Grid(
            np.array(list(facts.extents.values())), most,
            np.array([stage.units for stage in stages]),
            np.array([name in facts.single for name in self.names]), len(EVERY_ROUNDING),
            self.tiled, self.floors,
        )  # fmt: skip

    def floors(self, numbers: Ints, tiles: Ints) -> Floats:
        return self.floor.of_tilings(numbers, tiles)


@COSTLY
@given(graphs, st.sampled_from(PRESETS), st.integers(0, 1))
def test_what_walks_come_upon_is_in_the_space(graph: Graph, preset: str, chain: int) -> None:
    """And has the floor that it was taken for; each once."""
    ground = Ground(graph, with_every_format(load_preset(preset)), chain)
    assume(is_bounded(ground.layer.facts))
    plan = ground.layer.grown()
    assume(plan is not None)
    assert plan is not None
    limit = 2 * score(plan, MOST_LEAVES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.compiler.tiling.nest.walks.WALKS", 8)
        patch.setattr("worker.compiler.tiling.nest.walks.STEPS", 40)
        patch.setattr("worker.compiler.tiling.nest.walks.GATHER", 10)
        found = walked(ground.grid(), limit)
    for row, tiles in zip(found.numbers, found.tiles, strict=True):
        numbers = ground.numbers(row)
        assert ground.is_real(numbers)
        assert ground.space.has_units(tuple(numbers.values()))
        may_be = [
            ground.space.sized(numbers, rounding, double=False) for rounding in EVERY_ROUNDING
        ]
        assert tiles.tolist() in [list(s.tiles[-1].values()) for s in may_be if s is not None]
    if len(found.numbers):
        assert (ground.floors(found.numbers, found.tiles).min(axis=1) < limit).all()
    keys = {
        (*row.ravel().tolist(), *tiles.tolist())
        for row, tiles in zip(found.numbers, found.tiles, strict=True)
    }
    assert len(keys) == len(found.tiles)


@given(
    toys_of_all_kinds, st.sampled_from([64, 160, 512, 4096]), st.integers(1, 4),
    st.sampled_from(ADDITIVE),
)  # fmt: skip
def test_walks_alone_find_the_best_of_toys(
    graph: Graph, capacity: int, num_cores: int, objective: Objective
) -> None:
    """Without a single box."""
    machine = toys.flat_machine(num_cores, capacity)
    layer = Layer(graph, machine, objective=objective)
    plan = layer.grown()
    assume(plan is not None)
    assert plan is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branch_bound, "NEAR", 1.0)
        patch.setattr(branch_bound, "WIDE", 1.0)
        patch.setattr(branch_bound, "MOST_BOXES", 0)
        found, proof = search_all(layer.facts, layer.engine, layer.stages, machine, plan)
    assert proof.boxes == 0
    assert score(found, MOST_LEAVES) == proof.best == scores_of_all(layer)[0]


@pytest.mark.parametrize(
    ("preset", "operator", "gain"),
    [
        ("simba", "conv 3-64 224 7x7/2", 1.7),
        ("simba", "conv 256-64 56 1x1/1", 1.6),
        ("ipu-gc200", "conv 3-64 224 7x7/2", 1.3),
    ],
    ids=["simba-7x7", "simba-1x1", "ipu-7x7"],
)
def test_many_units_are_not_lost_on(preset: str, operator: str, gain: float) -> None:
    """Boxes ran out before they showed what annealing found (decision 0062)."""
    machine = load_preset(preset)
    [graph] = [graph for name, graph in graphs_of(FORMAT[preset]) if name == operator]
    scores = []
    for may_walk in (False, True):
        found = []
        for chain in (0, 1):
            layer = Layer(graph, machine, chain)
            plan = layer.grown()
            assert plan is not None
            best, proof = search_all(
                layer.facts, layer.engine, layer.stages, machine, plan, may_walk=may_walk
            )
            found.append(score(best, MOST_LEAVES))
            assert proof.bound <= proof.best == found[-1]
        scores.append(found)
    assert max(a / b for a, b in zip(*scores, strict=True)) >= gain
    assert all(a >= b for a, b in zip(*scores, strict=True))


def test_where_nothing_is_below_the_limit_nothing_is_come_upon() -> None:
    ground = Ground(toys.matmul_graph(64, 96, 80, DType.F16), load_preset("kapla-16x16"))
    found = walked(ground.grid(), 0.0)
    assert found.numbers.shape == (0, 2, 1, 3)
    assert found.tiles.shape == (0, 3)


def test_chance_is_the_walks_own() -> None:
    """Whatever was drawn elsewhere before."""
    ground = Ground(toys.matmul_graph(64, 96, 80, DType.F16), load_preset("kapla-16x16"))
    found = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        found.append(walked(ground.grid(), np.inf))
    first, second = found
    assert len(first.tiles) > 500
    assert first.numbers.tolist() == second.numbers.tolist()
    assert first.tiles.tolist() == second.tiles.tolist()

"""Loops over single tilings: as plain code says, compiled and not."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from machine_rates import with_every_format
from nest_layers import PRESETS, graphs
from test_walks import Ground

from worker.compiler.ir.graph import Graph
from worker.compiler.jit import compiled
from worker.compiler.machine import load_preset
from worker.compiler.tiling.nest.arrays import TRIPS, WAYS, Ints
from worker.compiler.tiling.nest.branch_bound import ROUNDINGS, is_bounded
from worker.compiler.tiling.nest.facts import granules
from worker.compiler.tiling.nest.walk_steps import draw, sized, step, within


def drawn(ground: Ground, rng: np.random.Generator, rows: int, *, is_compiled: bool) -> Ints:
    """Ways and trips of some tilings, each axis by itself [rows, 2, stages, axes]."""
    grid, loop = ground.grid(), compiled(draw) if is_compiled else draw
    stages, axes = grid.most.shape[1:]
    found = np.ones((rows, 2, stages, axes), np.int64)
    for a in range(axes):
        one = np.ones((rows, 2, stages), np.int64)
        chances = rng.random((rows, 4 * stages))
        loop(np.full(rows, a), chances, grid.most, grid.extents, grid.single, one)
        found[..., a] = one
    return found


@pytest.mark.parametrize("is_compiled", [False, True])
@given(graphs, st.sampled_from(PRESETS), st.integers(0, 1), st.integers(0, 1 << 30))
def test_tilings_are_sized_as_plain_code_does(
    is_compiled: bool, graph: Graph, preset: str, chain: int, seed: int
) -> None:
    """What is drawn has parts left along every axis, and units where they are counted."""
    ground = Ground(graph, with_every_format(load_preset(preset)), chain)
    facts, grid = ground.layer.facts, ground.grid()
    assume(is_bounded(facts))
    rng = np.random.default_rng(seed)
    numbers = drawn(ground, rng, 12, is_compiled=is_compiled)
    own = np.array([granules(facts, ground.layer.engine)[n] for n in ground.names])
    units = np.array([0 * own + (unit or own) for unit in (1, *ROUNDINGS)])
    rounding = rng.integers(0, len(units), 12)
    tiles, may = np.zeros((12, len(ground.names)), np.int64), np.zeros(12, np.bool_)
    flags = [
        np.array([name in some for name in ground.names])
        for some in (facts.whole, facts.single, facts.exact)
    ]
    size, look = (compiled(loop) if is_compiled else loop for loop in (sized, within))
    size(numbers, units[rounding], grid.extents, *flags, tiles, may)
    expected, is_real = ground.tiled(numbers, rounding)
    assert may.tolist() == is_real.tolist()
    assert tiles[may].tolist() == expected[may].tolist()

    has_room = np.zeros(12, np.bool_)
    look(numbers, grid.most, grid.units, grid.extents, has_room)
    for row, found in zip(numbers, has_room.tolist(), strict=True):
        used = row[WAYS].prod(axis=1)
        assert found == bool((used <= grid.units).all() and (row <= grid.most).all())


def test_more_parts_than_steps_are_none() -> None:
    """Nor more ways than a stage has units in all."""
    numbers = np.ones((4, 2, 1, 2), np.int64)
    numbers[1, TRIPS, 0, 0], numbers[2, WAYS, 0], numbers[3, WAYS, 0, 0] = 8, (2, 3), 0
    may = np.zeros(4, np.bool_)
    within(numbers, np.full((2, 1, 2), 8), np.array([4]), np.array([7, 7]), may)
    assert may.tolist() == [True, False, False, False]


@given(st.integers(0, 1 << 30), st.sampled_from([1, 2]), st.integers(1, 4))
def test_a_step_changes_little_and_alike_compiled(seed: int, stages: int, axes: int) -> None:
    """At most two numbers, or those of one axis, or how tiles are rounded; a factor that goes
    elsewhere leaves no fewer parts in all."""
    rng = np.random.default_rng(seed)
    before = rng.integers(1, 9, (64, 2, stages, axes))
    chances = rng.random((64, 8))
    anew = rng.integers(1, 9, (64, 2, stages))
    found = []
    for loop in (step, compiled(step)):
        moved, rounding = before.copy(), np.zeros(64, np.int64)
        loop(chances, anew, 6, moved, rounding)
        found.append((moved, rounding))
    (moved, rounding), (other, others) = found
    assert (moved == other).all()
    assert (rounding == others).all()
    for old, new, turned, chance in zip(before, moved, rounding, chances, strict=True):
        places = np.argwhere(old != new)
        if len({axis for *_, axis in places.tolist()}) > 1:
            assert len(places) == 2
        kind = int(chance[0] * 16)
        assert turned == 0 or kind == 0
        if kind >= 8:
            assert new.prod() >= old.prod()
            assert new.prod() <= old.prod() * max(ceil(max(old.flat) / 2), 3)

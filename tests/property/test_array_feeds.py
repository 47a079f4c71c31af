"""Random arrays and products against an array that is stepped cell by cell, and its ports."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from math import prod

import numpy as np
from array_oracle import Fed, instruction, keep_sums, keep_weights, moved
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.cost.folds import Extents, Folding, granule
from worker.compiler.machine.dataflow import Dataflow, Stationary

small = st.integers(1, 9)
side = st.integers(1, 4)


def folding(fed: Fed, depth: int) -> Folding:
    return Folding(
        fed.flow, granule(fed.array, fed.flow), fed.speed, fed.feed, fed.drain, *fed.sizes, depth
    )


@given(small, small, small, side, side, st.sampled_from(["weight", "output"]))
def test_a_systolic_array_stepped_cell_by_cell(
    m: int, n: int, k: int, rows: int, columns: int, kept: str
) -> None:
    rng = np.random.default_rng(m * 1000 + n * 100 + k)
    x, w = rng.integers(-9, 9, (m, k)), rng.integers(-9, 9, (k, n))
    stepped = keep_weights if kept == "weight" else keep_sums
    result, cycles = stepped(x, w, rows, columns)
    assert (result == x @ w).all()
    flow = Dataflow(Stationary(kept))
    fed = Fed(flow, (rows, columns), float(rows * columns), 0.0, 0.0, (1, 1, 4))
    assert folding(fed, k).cycles(Extents(m, n, k), 1) == cycles
    # And SCALE-Sim's closed form, a fold of which is a whole array.
    tall, wide, length = (k, n, m) if kept == "weight" else (m, n, k)
    count = -(-tall // rows) * -(-wide // columns)
    assert cycles == count * (2 * rows + columns + length - 2)


@st.composite
def arrays(draw: st.DrawFn) -> Fed:
    array = tuple(draw(st.lists(side, min_size=1, max_size=3)))
    kept = draw(st.sampled_from([kept for kept in Stationary if kept is not Stationary.ROW]))
    is_systolic = len(array) == 2 and draw(st.booleans())
    plain = Dataflow(kept, is_systolic=False)
    cells = granule(array, plain)
    tall = {"weight": cells.depth, "input": cells.depth, "output": cells.rows}[kept]
    wide = {"weight": cells.columns, "input": cells.rows, "output": cells.columns}[kept]
    hold: tuple[int, ...] = ()
    if not is_systolic and draw(st.booleans()):
        hold = (tall * draw(side), wide * draw(side))
    rates = st.sampled_from([0.0, 0.5, 1.0, 3.0, 16.0, 1000.0])
    flow = Dataflow(
        kept, is_systolic=is_systolic, is_double_buffered=draw(st.booleans()),
        is_pipelined=is_systolic and draw(st.booleans()), hold=hold,
        load_bytes_per_cycle=draw(rates), accumulator_bytes=draw(st.sampled_from([0, 40, 1000])),
    )  # fmt: skip
    sizes = tuple(draw(st.lists(st.sampled_from([1, 2, 4]), min_size=3, max_size=3)))
    speed = prod(array) * draw(st.sampled_from([0.25, 1.0, 4.0]))
    return Fed(flow, array, speed, draw(rates), draw(rates), sizes)  # type: ignore[arg-type]


@given(arrays(), small, small, small, st.integers(1, 3), st.booleans())
def test_folds_and_ports_counted_one_by_one(
    fed: Fed, m: int, n: int, k: int, batch: int, is_part: bool
) -> None:
    found = folding(fed, k + is_part).cycles(Extents(m, n, k), batch)
    assert found == instruction(fed, m, n, k, batch, is_part=is_part)


@given(arrays(), small, small, small, st.integers(1, 3), st.booleans())
def test_bytes_counted_one_by_one(
    fed: Fed, m: int, n: int, k: int, batch: int, is_part: bool
) -> None:
    found = folding(fed, k + is_part).moved(Extents(m, n, k), batch)
    assert found == moved(fed, m, n, k, batch, is_part=is_part)


@given(arrays(), small, small, small, st.sampled_from(["feed", "drain", "load"]))
def test_a_slower_port_never_helps(fed: Fed, m: int, n: int, k: int, which: str) -> None:
    size = Extents(m, n, k)
    if which == "load":
        if not fed.flow.load_bytes_per_cycle:
            return
        own = fed.flow.load_bytes_per_cycle / 2
        slow = fed._replace(flow=replace(fed.flow, load_bytes_per_cycle=own))
    elif which == "feed":
        slow = fed._replace(feed=fed.feed / 2)
    else:
        slow = fed._replace(drain=fed.drain / 2)
    assert folding(fed, k).cycles(size, 1) <= folding(slow, k).cycles(size, 1)


def parts(extent: int, cuts: list[int]) -> list[int]:
    """An extent cut at some places."""
    places = sorted({0, extent, *(c for c in cuts if c < extent)})
    return [b - a for a, b in pairwise(places)]


@given(arrays(), small, small, small, st.lists(st.lists(small, max_size=3), min_size=3, max_size=3))
def test_no_cut_into_instructions_takes_less_than_the_least(
    fed: Fed, m: int, n: int, k: int, cuts: list[list[int]]
) -> None:
    array = folding(fed, k)
    boxes = product(*(parts(e, c) for e, c in zip((m, n, k), cuts, strict=True)))
    found = [array.cycles(Extents(*box), 1) for box in boxes]
    first, *others = array.split(Extents(m, n, k))
    least = array.least(Extents(m, n, k))
    assert least.price(first) * prod(others) + least.once <= sum(found) * (1 + 1e-9)


@given(arrays(), side, side, side)
def test_the_least_is_reached_where_arrays_are_filled(fed: Fed, m: int, n: int, k: int) -> None:
    """One instruction of whole folds, ports aside: nothing is left but the loads around it."""
    fed = fed._replace(feed=0.0, drain=0.0, flow=replace(fed.flow, load_bytes_per_cycle=0.0))
    fed = fed._replace(speed=float(prod(fed.array)))
    array = folding(fed, 0)
    tall, wide = array.hold
    first, then, stream = array.split(Extents(m, n, k))
    long = array.split(array.cells)[2]
    sizes = {"first": first * tall, "then": then * wide, "stream": stream * long}
    order = {"weight": ("stream", "then", "first"), "input": ("then", "stream", "first"),
             "output": ("first", "then", "stream")}[fed.flow.stationary]  # fmt: skip
    size = Extents(*(sizes[name] for name in order))
    array = folding(fed, size.depth)
    one = array.cycles(size, 1)
    least = array.least(size)
    found = least.price(sizes["first"]) * sizes["then"] * sizes["stream"] + least.once
    spare = max(array.skew, sizes["stream"]) + array.shift if fed.flow.is_double_buffered else 0
    assert found - 1e-6 <= one <= found + spare + 1e-6

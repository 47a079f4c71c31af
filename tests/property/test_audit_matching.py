"""How the audit lists iterations and pairs them with instructions, by brute force."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.audit.match import matched
from worker.compiler.audit.parts import parts_of
from worker.compiler.schedule.nodes import Compute, LoopKind
from worker.compiler.schedule.walk import Frame, Leaf


@given(st.data(), st.integers(1, 40))
def test_parts_are_all_iterations_in_order(data: st.DataObject, most: int) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(LoopKind)), max_size=5))
    trips = [data.draw(st.integers(1, 5)) for _ in kinds]
    frames = tuple(
        Frame(f"v{k}", trip, kind, 1, f"0/{k}")
        for k, (trip, kind) in enumerate(zip(trips, kinds, strict=True))
    )
    lanes = tuple(f for f in frames if f.kind is LoopKind.LANES and data.draw(st.booleans()))
    leaf = Leaf(0, "0", Compute("op0", (), "mme"), frames, 0, (), ())
    listed = [f for f in frames if f not in lanes]
    order = [f for f in listed if f.kind is not LoopKind.CORES]
    num_cores = prod(f.trip for f in listed if f.kind is LoopKind.CORES)
    order += [f for f in listed if f.kind is LoopKind.CORES]
    wanted = list(product(*(range(f.trip) for f in (*order, *lanes))))
    found: list[tuple[int, ...]] = []
    first = 0
    for part in parts_of(leaf, lanes, most):
        whole = (*part.shape, *part.lanes)
        columns = [np.broadcast_to(part.coords[f.var], whole).ravel() for f in (*order, *lanes)]
        found += zip(*(c.tolist() for c in columns), strict=True) if columns else [()]
        steps = np.broadcast_to(part.step, part.shape).ravel().tolist()
        assert steps == [(first + k) // num_cores for k in range(len(steps))]
        assert part.first == first
        assert part.num_cores == num_cores
        assert part.total == prod(f.trip for f in listed)
        assert prod(whole) <= max(most, prod(f.trip for f in lanes))
        first += prod(part.shape)
    assert found == wanted


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=12),
)
def test_first_come_first_served(
    listed: list[tuple[int, int]], offered: list[tuple[int, int]]
) -> None:
    which, left = matched(np.array(listed).T, np.array(offered, dtype=np.int64).reshape(-1, 2).T)
    free = list(enumerate(offered))
    wanted = []
    for each in listed:
        found = next((entry for entry in free if entry[1] == each), None)
        wanted.append(-1 if found is None else found[0])
        if found is not None:
            free.remove(found)
    assert which.tolist() == wanted
    assert left.tolist() == [k for k, at in enumerate(wanted) if at < 0]

"""The walks over what a program touches, against the definitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from wait_reference import all_waits, asked, news, signals

from worker.compiler.jit import compiled
from worker.compiler.lower.order import conflicts, sync
from worker.compiler.lower.order.conflicts import latest_conflicts
from worker.compiler.lower.order.sync import synchronise
from worker.compiler.lower.rows.storage import StorageExtents, Storages
from worker.compiler.lower.rows.touches import Touches

STORAGES, SCOPES, BYTES = 5, 4, 3


@dataclass
class Numbered:
    """All that the walks ask of `Storages`."""

    extents: StorageExtents
    count: int = STORAGES


@dataclass
class Case:
    touches: Touches
    storages: Storages
    stream: list[int]
    order: list[int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Instructions that touch storages, and an order of them."""
    touch = st.tuples(st.integers(0, STORAGES - 1), st.integers(0, 15))
    touched = draw(st.lists(st.lists(touch, max_size=3), min_size=1, max_size=30))
    streams = st.sampled_from([0, 1, 16])  # two of them share a list
    stream = draw(st.lists(streams, min_size=len(touched), max_size=len(touched)))
    order = draw(st.permutations(range(len(touched))))
    rows = [
        (draw(st.sampled_from([-1, 0, 0, 0, 1])), draw(st.integers(0, SCOPES - 1)),
         draw(st.integers(0, BYTES)), draw(st.integers(0, BYTES)))
        for _ in range(STORAGES)
    ]  # fmt: skip
    memory, scope, one, two = np.array(rows, dtype=np.int64).T
    extents = StorageExtents(
        memory.astype(np.int32),
        scope.astype(np.int32),
        np.minimum(one, two),
        np.maximum(one, two) + 1,
    )
    pairs = np.array([t for found in touched for t in found], dtype=np.int64).reshape(-1, 2)
    touches = Touches(
        np.cumsum([0, *map(len, touched)]),
        pairs[:, 0].astype(np.int32),
        pairs[:, 1].astype(np.int8),
    )
    return Case(touches, cast("Storages", Numbered(extents)), stream, list(order))


def found(
    case: Case, order: list[int] | None, *, repeats: bool = False
) -> tuple[list[set[int]], list[list[int]]]:
    """Waits and signals of each instruction, by the walk; tokens as they are numbered there."""
    at = None if order is None else np.array(order, dtype=np.int64)
    stream = np.array(case.stream, dtype=np.int32)
    tokens = synchronise(case.touches, case.storages, stream, at, repeats=repeats)
    waits = np.split(tokens.wait_token, tokens.wait_ptr[1:-1])
    sent = np.split(tokens.signal_token, tokens.signal_ptr[1:-1])
    assert all(sorted(set(w.tolist())) == w.tolist() for w in waits)
    return [set(w.tolist()) for w in waits], [s.tolist() for s in sent]


@given(cases(), st.booleans(), st.booleans())
def test_the_waits_that_may_hold_an_instruction_back(
    case: Case, is_given: bool, repeats: bool
) -> None:
    order = case.order if is_given else list(range(case.touches.count))
    waits, sent = found(case, order if is_given else None, repeats=repeats)
    want = all_waits(case.touches, case.storages.extents, order)
    if not repeats:
        want = news(case.touches, case.stream, order, want)
    number = {token: k for k, token in enumerate(sorted(set().union(*want)))}
    assert waits == [{number[token] for token in tokens} for tokens in want]
    assert sent == [[number[t] for t in signals(case.touches, i) if t in number] for i in order]


def conflicting(case: Case, first: int, second: int) -> bool:
    """Whether what the second waits for is what the first does."""
    tokens = asked(case.touches, case.storages.extents, second)
    return bool(tokens & set(signals(case.touches, first)))


@given(cases())
def test_the_latest_that_an_instruction_conflicts_with(case: Case) -> None:
    latest = latest_conflicts(case.touches, case.storages)
    assert latest.tolist() == [
        max((p for p in range(place) if conflicting(case, p, place)), default=-1)
        for place in range(case.touches.count)
    ]


@COSTLY
@given(cases())
def test_compiled_walks_are_the_same(case: Case) -> None:
    def results() -> list[Any]:
        return [
            found(case, case.order, repeats=False),
            found(case, None, repeats=True),
            latest_conflicts(case.touches, case.storages).tolist(),
        ]

    plain = results()
    with pytest.MonkeyPatch.context() as patch:
        for module in (sync, conflicts):
            patch.setattr(module, "loop_for", lambda loop, _: compiled(loop))
        assert results() == plain

"""A column of few tokens is looked up as a whole one would be."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.lower.order.folding import SparseColumn


@given(st.lists(st.one_of(st.just(-1), st.integers(0, 5)), min_size=1, max_size=40), st.data())
def test_as_a_whole_column(values: list[int], data: st.DataObject) -> None:
    whole = np.array(values, dtype=np.int32)
    own = np.flatnonzero(whole >= 0)
    column = SparseColumn(own, whole[own])
    assert column.whole(len(values)).tolist() == values
    picked = data.draw(st.sets(st.integers(0, len(values) - 1)))
    rows = np.array(sorted(picked), dtype=np.int64)
    assert column.of(rows).tolist() == whole[rows].tolist()
    steps = np.diff(whole[rows])
    turns = [k for k in range(2, len(rows)) if steps[k - 1] != steps[k - 2]]
    assert column.turns(rows).tolist() == turns

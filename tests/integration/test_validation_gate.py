"""The gate: every published figure of a single operator is where its row says."""

from __future__ import annotations

import pytest

from worker.validation.figures import Network
from worker.validation.measure import measure_operator
from worker.validation.outcome import Validation
from worker.validation.published import shipped


@pytest.mark.parametrize("name", [r.id for r in shipped().rows if not isinstance(r.work, Network)])
def test_a_single_operator(name: str) -> None:
    (row,) = (row for row in shipped().rows if row.id == name)
    found = measure_operator(row)
    assert not found.verdict.is_failure, found.sentence()
    assert found.measured is not None
    if found.measured.floor is not None:
        assert found.floor_ratio is not None
        assert found.ratio is not None
        assert found.floor_ratio <= found.ratio


def test_the_mean_over_all_of_them() -> None:
    published = shipped()
    rows = tuple(row for row in published.rows if not isinstance(row.work, Network))
    found = Validation(tuple(map(measure_operator, rows)), published.mean, whole=True)
    assert found.geometric_mean is not None
    assert not found.mean_verdict.is_failure, found.failures

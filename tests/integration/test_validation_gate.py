"""The gate: every published figure of a single operator is where its row says."""

from __future__ import annotations

from worker.validation.figures import Network
from worker.validation.measure import measure_operator
from worker.validation.outcome import Validation
from worker.validation.published import shipped


def test_every_operator_and_the_mean_over_all_of_them() -> None:
    """Measured once each, by one process: that is most of its minute."""
    published = shipped()
    rows = tuple(row for row in published.rows if not isinstance(row.work, Network))
    found = Validation(tuple(map(measure_operator, rows)), published.mean, whole=True)
    assert found.outcomes
    for each in found.outcomes:
        assert not each.verdict.is_failure, each.sentence()
        assert each.measured is not None
        if each.measured.floor is not None:
            assert each.floor_ratio is not None
            assert each.ratio is not None
            assert each.floor_ratio <= each.ratio
    assert found.geometric_mean is not None
    assert not found.mean_verdict.is_failure, found.failures

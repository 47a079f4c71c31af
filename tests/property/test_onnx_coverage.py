"""ONNX's backend node tests: nothing crashes, nothing is wrong, and the page says so."""

from __future__ import annotations

import pytest

from benchmarks.onnx_coverage import (
    PAGE,
    Case,
    Verdict,
    difference,
    node_cases,
    render,
    run_case,
    sample,
)


@pytest.fixture(scope="module")
def cases() -> tuple[Case, ...]:
    return node_cases()


def test_a_case_of_every_operator_gives_the_expected_outputs(cases: tuple[Case, ...]) -> None:
    outcomes = [run_case(case) for case in sample(cases)]
    assert [o for o in outcomes if o.verdict is Verdict.WRONG] == []
    assert sum(o.verdict is Verdict.PASS for o in outcomes) > 120


@pytest.mark.campaign
def test_the_page_is_what_the_command_writes(cases: tuple[Case, ...]) -> None:
    assert render(run_case(case) for case in cases) == PAGE.read_text()


def test_a_difference_is_noticed() -> None:
    import numpy as np

    one = np.ones(3, np.float32)
    assert difference(one, one, 1e-3, 1e-7) == ""
    assert difference(one, one + 0.1, 1e-3, 1e-7) == "largest difference 0.1"
    assert difference(one.astype(np.int8), one.astype(np.int8) * 2, 0, 0).startswith("3 of 3")
    assert difference(one, one[:2], 1e-3, 1e-7).startswith("shape")

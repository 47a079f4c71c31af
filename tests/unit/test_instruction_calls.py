"""Declared instructions price what runs as their calls: cycles, pattern and rule all move it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from instruction_chips import CONV_RELU, Document, chip, cv, priced

from worker.compiler.cost.calls import CallRate
from worker.compiler.machine.intrinsic import CallSize


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def of(
        document: Document, stride: int = 1, *, folded: bool = False
    ) -> tuple[int, str, str | None]:
        return priced(tmp_path, document, stride, folded=folded)

    return of


Run = Callable[..., tuple[int, str, "str | None"]]


def test_cycles_of_an_instruction_are_those_of_the_kernel(run: Run) -> None:
    fast, text, named = run(chip(cv(10)))
    slower, _, _ = run(chip(cv(100)))
    assert named == "cv"
    assert "intrinsic=cv" in text
    assert slower > fast


def test_an_instruction_worse_than_the_engine_is_left_alone(run: Run) -> None:
    plain, _, _ = run(chip(patterns=()))
    avoided, text, named = run(chip(cv(1_000_000)))
    assert named == "cv"
    assert "intrinsic=" not in text
    assert avoided == plain


def test_without_the_pattern_nothing_is_run_by_its_instruction(run: Run) -> None:
    other = {**CONV_RELU, "name": "other", "intrinsic": None}
    plain, _, _ = run(chip(patterns=()))
    found, text, named = run(chip(cv(10), patterns=(other,)))
    assert (named, "intrinsic=" in text) == (None, False)
    assert found == plain


def test_without_a_table_an_instruction_serves_all_of_its_kind(run: Run) -> None:
    called, text, named = run(chip(cv(10), patterns=()))
    assert (named, "intrinsic=cv" in text) == (None, True)
    assert called < run(chip(cv(100), patterns=()))[0]


def test_a_folded_activation_is_priced_by_the_rows_instruction(run: Run) -> None:
    fast, text, named = run(chip(cv(10)), folded=True)
    slower, _, _ = run(chip(cv(100)), folded=True)
    assert (named, "intrinsic=cv" in text) == ("cv", True)
    assert fast < slower
    assert fast == run(chip(cv(10)))[0]


def test_a_rule_keeps_what_it_excludes_from_the_instruction(run: Run) -> None:
    """Strides of 2 where the pattern allows 1."""
    _, text, named = run(chip(cv(10)), stride=2)
    assert (named, "intrinsic=" in text) == (None, False)


def test_the_best_of_a_table_of_sizes_and_a_formula_of_edges() -> None:
    """A box of 20 x 8 x 4: calls of 16 x 8 x 4 leave an edge of 4 rows, of which a formula in m
    takes a quarter."""
    box = (20, 8, 4)
    constant = CallSize((16, 8, 4), (("", 10.0),))
    small = CallSize((4, 8, 4), (("", 3.0),))
    formula = CallSize((16, 8, 4), (("", 2.0), ("m", 0.5)))
    for sizes, cycles in (
        ((constant,), 20), ((constant, small), 15), ((formula,), 10 + 4)
    ):  # fmt: skip
        rate = CallRate("mm", sizes, ((0,), (1,), (2,), ()))
        assert rate.cycles(box) == cycles
        assert rate.cycles(box) >= 20 * 8 * 4 / rate.peak


def test_an_operator_is_written_with_its_instruction(run: Run) -> None:
    assert " by cv" in run(chip(cv(10)))[1]

"""Waivers: what they cover, until when, and what is said when they are gone or of no use."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from service.gate.file import Waiver
from service.gate.verdict import Check, Finding, Result
from service.gate.waivers import covers, waived

LAST = date(2026, 6, 30)
FAILED = Finding(
    Check.REGRESSION, Result.FAILED, "net on chip is slower", "/regressions/0", "net", "chip",
    "latency_ms", ("layer4/conv2", "layer4/relu"), "port:DDR.read",
)  # fmt: skip


def waiver(**fields: object) -> Waiver:
    return Waiver.model_validate(
        {"owner": "Ada", "reason": "the new layout", "expires": LAST, **fields}
    )


@pytest.mark.parametrize(
    ("fields", "is_covered"),
    [
        ({}, True),
        ({"check": "regression"}, True),
        ({"check": "budget"}, False),
        ({"model": "n*"}, True),
        ({"model": "other"}, False),
        ({"hardware": "chip"}, True),
        ({"hardware": "chip2"}, False),
        ({"figure": "latency_ms"}, True),
        ({"figure": "energy_mj"}, False),
        ({"node": "layer4/*"}, True),
        ({"node": "*/relu"}, True),
        ({"node": "layer5/*"}, False),
        ({"cause": "port:*"}, True),
        ({"cause": "engine:*"}, False),
        ({"model": "net", "figure": "energy_mj"}, False),  # everything named has to fit
    ],
)
def test_what_a_waiver_covers(fields: dict[str, object], is_covered: bool) -> None:
    assert covers(waiver(**fields), FAILED) is is_covered
    (found, *_) = waived([FAILED], [waiver(**fields)], LAST)
    assert found.result is (Result.WAIVED if is_covered else Result.FAILED)


def test_a_waiver_of_nodes_covers_no_whole_run() -> None:
    whole = Finding(Check.FAILING, Result.FAILED, "fails", "/changes/failing", "net", "chip")
    assert not covers(waiver(node="*"), whole)
    assert covers(waiver(), whole)


def test_it_holds_on_its_last_day_and_fails_the_day_after_with_its_owner() -> None:
    (held,) = waived([FAILED], [waiver()], LAST)
    assert held.result is Result.WAIVED
    assert held.message == ("net on chip is slower; waived by Ada until 2026-06-30: the new layout")
    (gone,) = waived([FAILED], [waiver()], LAST + timedelta(days=1))
    assert gone.result is Result.FAILED
    assert gone.message == (
        "net on chip is slower; the waiver of Ada expired on 2026-06-30: the new layout"
    )


def test_a_valid_waiver_counts_beside_an_expired_one() -> None:
    longer = waiver(owner="Grace", expires=LAST + timedelta(days=9))
    (found,) = waived([FAILED], [waiver(), longer], LAST + timedelta(days=1))
    assert found.result is Result.WAIVED
    assert "waived by Grace until 2026-07-09" in found.message


def test_a_waiver_that_covers_nothing_is_said_and_fails_nothing() -> None:
    passed = Finding(Check.BUDGET, Result.PASSED, "fine", "/budgets/0", "net", "chip")
    (same, note) = waived([passed], [waiver()], LAST)
    assert same is passed
    assert (note.check, note.result, note.pointer) == (Check.WAIVER, Result.NOTED, "/waivers/0")
    assert note.message == "the waiver of Ada (the new layout) covers no failure: remove it"


def test_warnings_need_no_waiver() -> None:
    warned = Finding(Check.NEW, Result.WARNED, "new", "/changes/new", "net", "chip")
    (same, note) = waived([warned], [waiver()], LAST)
    assert same is warned
    assert note.result is Result.NOTED

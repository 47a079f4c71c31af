"""The campaign over random nets: a few cells run, are judged, and are not run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import random_nets
from benchmarks.random_nets import (
    PER_NET,
    PRESETS,
    WAYS,
    cell_of,
    judged,
    load_rows,
    main,
    run_cell,
)

SOUND: dict[str, Any] = {
    "verification": {"passed": True, "max_rel_err": 1e-7, "detail": ""},
    "warnings": [{"code": "HOST_FALLBACK", "message": "1 of 9"}],
    "summary": {"kernels": 3},
}


def test_every_way_and_preset_meets_every_net() -> None:
    cells = [cell_of(number, 7) for number in range(2 * PER_NET)]
    assert len(set(cells)) == len(cells)
    assert {cell[0] for cell in cells} == {7, 8}
    assert {cell[1:] for cell in cells[:PER_NET]} == {(w, p) for w in WAYS for p in PRESETS}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"verification": SOUND["verification"] | {"passed": False, "detail": "y"}}, "y"),
        ({"verification": SOUND["verification"] | {"passed": None}}, "verification"),
        ({"verification": SOUND["verification"] | {"max_rel_err": None}}, "nothing was compared"),
        ({"warnings": [{"code": "STRATEGY_FALLBACK", "message": "it broke"}]}, "it broke"),
    ],
)
def test_what_is_no_pass_is_a_failure(change: dict[str, Any], says: str) -> None:
    assert "failure" not in judged(SOUND)
    assert says in judged(SOUND | change)["failure"]


def test_a_cell_runs_once_and_a_failed_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "rows.jsonl"
    arguments = ["--count", "1", "--seed", "1", "--jobs", "1", "--results", str(results)]
    with monkeypatch.context() as patch:
        patch.setattr(random_nets, "random_model", lambda seed: 1 / 0)
        assert main(arguments) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert main(arguments) == 0
    (row,) = load_rows(results).values()
    assert row["kernels"] > 0
    assert "1 compiles from seed 1, 0 failed" in capsys.readouterr().out
    assert main(arguments) == 0
    assert len(results.read_text().splitlines()) == 2


def test_a_sample_looks_inside_where_what_is_handed_over_proves_nothing_after_all() -> None:
    """The result of this net moves by less than what its own error allows, which is known only
    when it has been judged."""
    row = run_cell((20261132, "sample", "a100"))
    assert "failure" not in row
    assert row["kernels"] == 1

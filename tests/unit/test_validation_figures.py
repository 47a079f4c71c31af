"""The file of published figures, its refusals, and the verdicts on ratios."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import yaml

from worker.compiler.errors import CompilerError, InputError
from worker.validation.figures import Cause, Network, Role
from worker.validation.outcome import Measured, Outcome, Validation, Verdict
from worker.validation.page import document, page
from worker.validation.published import chosen, hardware_of, machine_of, read_figures, shipped

GOOD: dict[str, Any] = {
    "schema_version": 1,
    "mean": {"band": [0.8, 1.25], "causes": ["search"]},
    "rows": [
        {
            "id": "one",
            "source": {"citation": "A. Author, A Paper, 2020", "evidence": "P"},
            "machine": "eyeriss",
            "work": {"kind": "gemm", "m": 4, "n": 4, "k": 4, "dtype": "i16"},
            "figure": 2.0,
            "unit": "ms",
            "role": "held out",
            "band": [0.5, 2],
            "causes": ["feeds not timed", "search"],
        },
        {
            "id": "two",
            "source": {"citation": "A. Author, A Paper, 2020", "evidence": "P"},
            "machine": {"name": "mine", "inherits": "eyeriss", "num_cores": 1},
            "work": {"kind": "network", "model": "resnet50", "samples": 2},
            "figure": 100,
            "unit": "fps",
            "role": "calibration",
            "band": [0.5, 2],
            "miss": 3.0,
            "causes": ["search"],
        },
    ],
}


def edited(path: str, value: object) -> str:
    """The good document with one field set (None: left out)."""
    found = deepcopy(GOOD)
    *way, last = [int(part) if part.isdigit() else part for part in path.split("/")[1:]]
    at: Any = found
    for part in way:
        at = at[part]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return yaml.safe_dump(found)


def test_the_document_is_read() -> None:
    one, two = read_figures(yaml.safe_dump(GOOD)).rows
    assert one.causes == (Cause.FEEDS, Cause.SEARCH)
    assert two.role is Role.CALIBRATION
    assert two.machine_name == "mine"
    assert isinstance(two.work, Network)
    assert two.work.samples == 2


@pytest.mark.parametrize(
    ("path", "value", "pointer", "word"),
    [
        ("/schema_version", 2, "/schema_version", "<= 1"),
        ("/mean", None, "", "mean"),
        ("/mean/miss", 1.0, "/mean/miss", "within the band"),
        ("/rows", [], "/rows", "length >= 1"),
        ("/rows/0/id", "Not Good", "/rows/0/id", "regex"),
        ("/rows/1/id", "one", "/rows/1/id", "twice"),
        ("/rows/0/source/citation", "", "/rows/0/source/citation", "length >= 3"),
        ("/rows/0/source/evidence", "Z", "/rows/0/source/evidence", "'Z'"),
        ("/rows/0/figure", 0, "/rows/0/figure", "> 0"),
        ("/rows/0/figure", "fast", "/rows/0/figure", "`str`"),
        ("/rows/0/unit", "parsecs", "/rows/0/unit", "parsecs"),
        ("/rows/0/unit", "fps", "/rows/0/unit", "not measured in fps"),
        ("/rows/1/unit", "mW", "/rows/1/unit", "not measured in mW"),
        ("/rows/0/band", [2, 0.5], "/rows/0/band", "low to high"),
        ("/rows/0/band", [2], "/rows/0/band", "length 2"),
        ("/rows/1/miss", 1.5, "/rows/1/miss", "within the band"),
        ("/rows/0/causes", [], "/rows/0/causes", "length >= 1"),
        ("/rows/0/causes", ["bad luck"], "/rows/0/causes/0", "bad luck"),
        ("/rows/0/causes", ["search", "search"], "/rows/0/causes", "twice"),
        ("/rows/0/work/kind", "fft", "/rows/0/work/kind", "fft"),
        ("/rows/0/work/m", 0, "/rows/0/work/m", ">= 1"),
        ("/rows/0/work/extra", 1, "/rows/0/work", "extra"),
        ("/rows/0/machine", "eyeris", "/rows/0/machine", "eyeris"),
        ("/rows/1/machine/num_cores", 0, "/rows/1/machine/num_cores", "0"),
    ],
)
def test_damage_is_refused_with_its_place(
    path: str, value: object, pointer: str, word: str
) -> None:
    with pytest.raises(CompilerError) as caught:
        read_figures(edited(path, value))
    problem = caught.value.to_problem()
    assert caught.value.place.pointer == pointer
    assert word in f"{caught.value.message} {problem}"
    expected = "TW-SPEC" if "/machine" in path else "TW-VALID-001"
    assert caught.value.code.startswith(expected)


def test_an_unknown_row_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InputError) as caught:
        chosen(read_figures(yaml.safe_dump(GOOD)).rows, ["three"])
    assert (caught.value.code, caught.value.limit) == ("TW-VALID-002", ["one", "two"])


def outcome(ours: float, **changes: Any) -> Outcome:
    found = deepcopy(GOOD)
    found["rows"][0].update(changes)
    row = read_figures(yaml.safe_dump(found)).rows[0]
    return Outcome(row, Measured(ours, "by hand", ours, "one"))


@pytest.mark.parametrize(
    ("ours", "changes", "ratio", "verdict"),
    [
        (2.0, {}, 1.0, Verdict.WITHIN),
        (4.0, {}, 2.0, Verdict.WITHIN),
        (4.1, {}, 2.05, Verdict.OUTSIDE),
        (0.9, {}, 0.45, Verdict.OUTSIDE),
        (6.0, {"miss": 3.0}, 3.0, Verdict.MISS),
        (6.5, {"miss": 3.0}, 3.25, Verdict.MISS),
        (6.7, {"miss": 3.0}, 3.35, Verdict.OUTSIDE),
        (5.4, {"miss": 3.0}, 2.7, Verdict.OUTSIDE),
        (3.0, {"miss": 3.0}, 1.5, Verdict.MET),
        (1.0, {"unit": "TOPS"}, 2.0, Verdict.WITHIN),
        (8.0, {"unit": "TOPS"}, 0.25, Verdict.OUTSIDE),
    ],
)
def test_verdicts(ours: float, changes: dict[str, Any], ratio: float, verdict: Verdict) -> None:
    found = outcome(ours, **changes)
    assert found.ratio == pytest.approx(ratio)
    assert found.verdict is verdict


def test_a_row_outside_its_band_fails_in_words() -> None:
    mean = read_figures(yaml.safe_dump(GOOD)).mean
    found = Validation((outcome(9.0),), mean, whole=True)
    row, whole = found.failures
    assert row == ("one: OUTSIDE: ratio 4.5, band 0.5 to 2; causes: feeds not timed, search")
    assert whole == "geometric mean: OUTSIDE: ratio 4.5, band 0.8 to 1.25; causes: search"
    assert document(found)["passed"] is False
    assert "| OUTSIDE |" in page(found)


def test_a_miss_that_is_reached_fails_until_it_is_taken_out() -> None:
    mean = read_figures(yaml.safe_dump(GOOD)).mean
    found = Validation((outcome(2.0, miss=3.0),), mean, whole=True)
    assert found.failures == (
        "one: MET: ratio 1, band 0.5 to 2, stated miss 3; causes: feeds not timed, search",
    )


def test_the_mean_is_of_single_operators_times_alone_and_of_the_whole_file() -> None:
    mean = read_figures(yaml.safe_dump(GOOD)).mean
    two, half = outcome(4.0), outcome(1.0)
    power = outcome(40.0, unit="mW")
    found = Validation((two, half, power), mean, whole=True)
    assert found.geometric_mean == pytest.approx(1.0)
    assert Validation((two, half), mean, whole=False).geometric_mean is None


def test_what_did_not_run_is_neither_within_nor_a_failure() -> None:
    row = read_figures(yaml.safe_dump(GOOD)).rows[1]
    missing = Outcome(row, None, "no model")
    found = Validation((missing,), read_figures(yaml.safe_dump(GOOD)).mean, whole=True)
    assert missing.verdict is Verdict.NOT_RUN
    assert found.failures == ()
    assert "1 not run" in page(found)


def test_the_shipped_figures_keep_the_rules_that_they_state() -> None:
    published = shipped()
    assert {row.role for row in published.rows} == set(Role)
    for row in published.rows:
        if isinstance(row.work, Network):
            narrow = row.machine_name in ("ethos-u65", "nvdla-large-20")
            assert row.band == ((0.769, 1.3) if narrow else (0.667, 1.5))
        else:
            assert row.band == ((0.6, 1) if row.unit == "mW" else (0.5, 2))
        assert machine_of(hardware_of(row)).name == row.machine_name

"""`tilewright explore`: a range of chips, the front, winners; stopped and gone on with."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from onnx_models import conv_net, saved
from typer.testing import CliRunner

from service.cli.main import app
from worker.explore.chips import COSTS
from worker.explore.front import front

RANGE = (
    "--vary", "GBUF.capacity_bytes=16,8KiB,32KiB",
    "--vary", "DRAM.read_bytes_per_cycle+DRAM.write_bytes_per_cycle=x0.5,x1,x2",
    "--vary", "DRAM.read_energy_pj_per_byte=50,100",
)  # fmt: skip


def explored(model: Path, folder: Path, *more: str) -> Result:
    return CliRunner().invoke(
        app,
        ["explore", str(model), "--hardware", "kapla-edge", "-o", str(folder),
         "--data-dir", str(folder.parent / "data"), *more],
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The model, and the folder of an exploration that has ended."""
    parent = tmp_path_factory.mktemp("explored")
    model = saved(conv_net(), parent)
    result = explored(model, parent / "out", *RANGE, "--winners", "2")
    assert result.exit_code == 0, result.output
    return model, parent / "out"


def document_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "explore.json").read_bytes())
    return found


def test_every_chip_has_a_row_and_the_front_is_theirs(made: tuple[Path, Path]) -> None:
    found = document_in(made[1])
    rows = found["rows"]
    assert len(rows) == 3 * 3 * 2
    assert len({tuple(row["values"]) for row in rows}) == len(rows)
    small = [row for row in rows if row["values"][0] == 16]
    assert all(row["misfits"] and "latency_s" not in row for row in small)
    priced = [row for row in rows if "latency_s" in row]
    assert len(priced) == len(rows) - len(small)
    kept = front([[row[name] for name in COSTS] for row in priced])
    assert [row for row in priced if row["is_on_front"]] == [priced[k] for k in kept]
    assert kept
    # More of a rate is never slower, less energy a byte never dearer, and tiles are the same.
    by_values = {tuple(row["values"]): row for row in priced}
    for (size, read, write, pj), row in by_values.items():
        faster = by_values.get((size, 2 * read, 2 * write, pj))
        assert faster is None or faster["cycles"] <= row["cycles"] * 1.02
        if pj == 50:
            dearer = by_values[size, read, write, 100]
            assert row["cycles"] == dearer["cycles"]
            assert row["energy_pj"] < dearer["energy_pj"]


def test_tables_and_page_say_the_same(made: tuple[Path, Path]) -> None:
    found = document_in(made[1])
    with (made[1] / "explore.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(found["rows"])
    for line, row in zip(table, found["rows"], strict=True):
        assert line["is_on_front"] == str(int(row["is_on_front"]))
        assert line["latency_s"] == str(row.get("latency_s", ""))
        assert bool(line["why"]) == ("misfits" in row)
    page = (made[1] / "explore.html").read_text()
    assert page.count("<svg") == len(COSTS) - 1
    assert "<script" not in page


def test_winners_are_compiled_for_their_chip_and_near_their_estimates(
    made: tuple[Path, Path],
) -> None:
    found = document_in(made[1])
    fastest = min(row["latency_s"] for row in found["rows"] if "latency_s" in row)
    assert found["winners"][0]["latency_s"] == fastest
    assert len(found["winners"]) == 2
    for row in found["winners"]:
        assert row["is_on_front"]
        report = json.loads((made[1] / row["folder"] / "report.json").read_bytes())
        assert row["simulated_latency_s"] == report["summary"]["latency_s"]
        assert row["latency_s"] == pytest.approx(row["simulated_latency_s"], rel=0.15)
        assert row["energy_pj"] == pytest.approx(row["simulated_energy_pj"], rel=0.15)
        chip = json.loads((made[1] / row["folder"] / "hardware.json").read_bytes())
        sizes = {level["name"]: level["capacity_bytes"] for level in chip["levels"]}
        assert sizes["GBUF"]["value"] == row["values"][0]


def test_what_was_stopped_goes_on_and_ends_the_same(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    model, whole = made
    lines = (whole / "explored.jsonl").read_text().splitlines(keepends=True)
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "explored.jsonl").write_text("".join(lines[:5]) + lines[5][:9])  # cut while writing
    result = explored(model, folder, *RANGE, "--winners", "2")
    assert result.exit_code == 0, result.output
    assert "4 of 18 chips are known" in result.stderr
    assert "14 of 18 chips estimated" in result.stdout
    assert document_in(folder) == document_in(whole)
    assert (folder / "explored.jsonl").read_text() == "".join(lines)


@pytest.mark.parametrize("kept", [0, 1])
def test_stopped_before_the_first_row(made: tuple[Path, Path], tmp_path: Path, kept: int) -> None:
    """Nothing, or the head alone: a further run, and one after that, read the same rows."""
    model, whole = made
    lines = (whole / "explored.jsonl").read_text().splitlines(keepends=True)
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "explored.jsonl").write_text("".join(lines[:kept]))
    for known in (0, 18):
        result = explored(model, folder, *RANGE, "--winners", "0")
        assert result.exit_code == 0, result.output
        assert f"{18 - known} of 18 chips estimated" in result.stdout
        assert (folder / "explored.jsonl").read_text() == "".join(lines)
        assert document_in(folder)["rows"] == document_in(whole)["rows"]


def test_a_document_that_is_no_chip_is_refused(made: tuple[Path, Path], tmp_path: Path) -> None:
    spec = tmp_path / "bad.yaml"
    spec.write_text("schema_version: 1\nname: bad\nlevels: 5\nengines: [7]\n")
    result = CliRunner().invoke(
        app, ["explore", str(made[0]), "--hardware", str(spec), "--vary", "A.capacity_bytes=4"]
    )
    assert result.exit_code == 3, result.output
    assert "TW-SPEC" in result.output
    assert not isinstance(result.exception, TypeError)


def test_rows_of_something_else_are_not_taken(made: tuple[Path, Path]) -> None:
    before = (made[1] / "explored.jsonl").read_bytes()
    result = explored(made[0], made[1], "--vary", "GBUF.capacity_bytes=8KiB")
    assert result.exit_code != 0
    assert "TW-CLI-001" in result.output
    assert (made[1] / "explored.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--vary", "GBUF.size=4"), "has no 'size'"),
        ((*RANGE, "--front", "beauty"), "beauty is none of"),
        ((), "--vary"),
    ],
)
def test_bad_ranges_are_refused_before_anything_runs(
    made: tuple[Path, Path], tmp_path: Path, more: tuple[str, ...], said: str
) -> None:
    result = explored(made[0], tmp_path / "out", *more)
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert not (tmp_path / "out").exists()


def test_a_range_in_which_nothing_fits_says_so(made: tuple[Path, Path], tmp_path: Path) -> None:
    result = explored(made[0], tmp_path / "out", "--vary", "GBUF.capacity_bytes=16,32")
    assert result.exit_code == 4, result.output
    assert "2 have no figures" in result.stdout

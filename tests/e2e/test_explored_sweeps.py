"""A sweep that estimates first, by workers that run, beside `tilewright explore`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from api_fixtures import Serve
from onnx_models import conv_net, saved
from typer.testing import CliRunner

from service.cli.main import app
from service.jobs import exploring
from worker.explore.chips import COSTS

VARY = [
    "GBUF.capacity_bytes=16,8KiB,32KiB",
    "DRAM.read_bytes_per_cycle+DRAM.write_bytes_per_cycle=x0.5,x1,x2",
    "DRAM.read_energy_pj_per_byte=50,100",
]
FIGURES = (*COSTS, "cycles", "gap")
COMPARED = ["latency_s", "energy_pj", "area_mm2"]
WINNERS = 2


def estimated(rows: list[dict[str, Any]]) -> dict[tuple[float, ...], tuple[Any, ...]]:
    """What is said of each machine, by its values."""
    return {
        tuple(row["values"]): (row["is_on_front"], *(row.get(name) for name in FIGURES))
        for row in rows
    }


def test_the_front_is_that_of_the_command(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly: figures of every machine, the front, which are compiled, and what these take."""
    monkeypatch.setattr(exploring, "MACHINES_OF_PART", 7)
    model, folder = saved(conv_net(), tmp_path), tmp_path / "out"
    run = CliRunner().invoke(
        app,
        ["explore", str(model), "--hardware", "kapla-edge", "-o", str(folder), "--data-dir",
         str(tmp_path / "data"), "--front", ",".join(COMPARED), "--winners", str(WINNERS),
         *(word for text in VARY for word in ("--vary", text))],
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    expected = json.loads((folder / "explore.json").read_bytes())

    served = serve("worker.job.job:run_job", memory_base_bytes=2 << 30)
    body = {
        "models": [served.model(model.read_bytes(), "net")["id"]], "base": "kapla-edge",
        "vary": VARY, "explore": {"costs": COMPARED, "winners": WINNERS},
        "options": {"strategy": "naive", "verify": "none"},
    }  # fmt: skip
    made = served.client.submit_sweep(body)
    events = list(served.client.sweep_events(str(made["id"])))
    done: Any = served.client.sweep(str(made["id"]))
    assert done["state"] == "succeeded", done["failures"]
    assert done["explore"] | {"base": ""} == {
        "base": "", "vary": VARY, "costs": COMPARED, "winners": WINNERS, "machines": 18,
        "estimated": 18, "without_figures": 6,
    }  # fmt: skip
    found: Any = served.client.sweep_results(str(made["id"]))
    parts = [item for item in found["items"] if item["part"] is not None]
    assert [(item["part"]["first"], item["part"]["count"]) for item in parts] == [
        (0, 7), (7, 7), (14, 4),
    ]  # fmt: skip
    rows = [row for item in parts for row in item["estimates"]]
    assert estimated(rows) == estimated(expected["rows"])
    misfits = [row["why"] for row in rows if row["latency_s"] is None]
    assert len(misfits) == 6
    assert all("needs" in reason for reason in misfits)

    winners = [item for item in found["items"] if item["part"] is None]
    assert [item["values"] for item in winners] == [row["values"] for row in expected["winners"]]
    for item, row in zip(winners, expected["winners"], strict=True):
        assert item["latency_s"] == row["simulated_latency_s"]
        assert item["energy_pj"] == row["simulated_energy_pj"]
        assert item["estimate"]["latency_s"] == row["latency_s"]
        assert item["estimate"]["is_on_front"]
        document = served.http.get(f"/v1/hardware/{item['hardware']}").json()["document"]
        levels = {level["name"]: level for level in document["levels"]}
        assert levels["GBUF"]["capacity_bytes"]["value"] == item["values"][0]
    assert done["progress"]["total"] == done["progress"]["succeeded"] == 5

    # A stream has told the same, part by part.
    told = {}
    for event in events:
        if event.type == "item":
            told[event.body["number"]] = event.body
    last: Any = next(e.body for e in reversed(events) if e.type == "progress")
    front = {
        tuple(told[number]["estimates"][place]["values"])
        for number, place in last["estimated_front"]
    }
    assert front == {tuple(row["values"]) for row in expected["rows"] if row["is_on_front"]}

    table = list(csv.DictReader(io.StringIO(served.client.sweep_csv(str(made["id"])))))
    assert [row["state"] for row in table] == ["estimated"] * 18 + ["succeeded"] * WINNERS
    assert sum(row["state"] == "estimated" and row["is_on_front"] == "1" for row in table) == (
        len(front)
    )  # fmt: skip

"""docs/sweeps.md: its commands run, its routes, settings and client methods are those there are."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from document_commands import commands
from typer.testing import CliRunner

from service.api.app import ROUTERS
from service.cli.main import app
from service.client import Client
from service.settings import Settings
from worker.compiler.machine import canonical_document, preset_document
from worker.explore.fields import parse_field

PAGE = Path(__file__, "../../../docs/sweeps.md").resolve().read_text(encoding="utf-8")


def test_the_commands_work_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("TILEWRIGHT_SERVER", raising=False)
    lines = [command.line for command in commands(PAGE)]
    assert len(lines) == 5
    said = []
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "tilewright"
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        said.append(result.stdout)
    found = json.loads(Path("chips/sweep.json").read_bytes())
    small, large = found["items"]
    assert [row["values"] for row in (small, large)] == [[32768], [65536]]
    assert small["latency_s"] > large["latency_s"] > 0  # the smaller buffer costs time
    assert large["is_on_front"]
    assert "succeeded" in said[2]
    assert "3 machines estimated, 0 of them without figures; 1 of each front" in said[3]
    part, winner = json.loads(Path("explored/sweep.json").read_bytes())["items"]
    assert len(part["estimates"]) == 3
    # Of all strategies, beside an estimate of one.
    assert winner["latency_s"] <= 1.15 * winner["estimate"]["latency_s"]
    shown = Path("explored/sweep.html").read_text()
    assert "The front of estimates" in shown
    assert shown.count("<svg") == 4
    # What if: the example's headline names the field that was varied, and what it did.
    assert "2 of 2 items have results" in said[4]
    assert "slower by" in said[4]
    assert "/levels/GBUF/capacity_bytes: 65,536 -> 32,768" in said[4]


def test_routes_settings_and_methods_are_those_there_are() -> None:
    routes = {
        f"{method} {route.path}"  # type: ignore[attr-defined]
        for module in ROUTERS for route in module.router.routes
        for method in route.methods  # type: ignore[attr-defined]
        if "/v1/sweeps" in route.path  # type: ignore[attr-defined]
    }  # fmt: skip
    said = re.findall(r"^\| `((?:GET|POST|DELETE) /v1/sweeps[^`?]*)` \|", PAGE, re.MULTILINE)
    assert set(said) == routes
    rows = re.findall(r"^\| `TILEWRIGHT_(\w+)` \| (\d+) \|", PAGE, re.MULTILINE)
    ours = {n: f.default for n, f in Settings.model_fields.items() if "sweep" in n}
    assert {name.lower(): int(default) for name, default in rows} == ours
    [listed] = re.findall(r"^The Python client has (.*)\.$", PAGE, re.MULTILINE)
    methods = re.findall(r"`(\w+)`", listed)
    assert {*methods} == {name for name in dir(Client) if "sweep" in name}


def test_fields_are_written_as_the_table_has_them() -> None:
    chip = canonical_document(preset_document("kapla-16x16"))
    found = re.findall(r"^\| `([^`]+=[^`]+)` \|", PAGE, re.MULTILINE)
    assert len(found) == 4
    for text in found:
        assert parse_field(text, chip, is_simulated=True).values

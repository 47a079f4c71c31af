"""Strategies that hang or cannot be loaded cost a job nothing but themselves, and it says so.

They take part through entry points, and jobs run where jobs do: in the sandbox's child.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import onnx
import pytest
from onnx_models import repeated_layers
from strategy_environment import environment_like_this

MODULE = """
from dataclasses import replace

from worker.compiler.strategies.naive.descriptor import DESCRIPTOR

HANGS = replace(
    DESCRIPTOR, name="hangs", version="1", implementation="rude_strategy:HANGING",
    is_last_resort=False,
)
GONE = replace(HANGS, name="gone", implementation="rude_strategy_that_is_not_there:GONE")
STALLS = replace(HANGS, name="stalls", implementation="rude_stalling:STALLING")
"""
STRATEGY = """
from worker.compiler.strategies.naive.strategy import NaiveStrategy

class Hanging(NaiveStrategy):
    name, version, spans_regions = "hangs", "1", False

    def __init__(self): ...

    def candidates(self, unit, machine, options, budget):
        while True:
            try:
                hash(unit)
            except Exception:
                pass
        yield

HANGING = Hanging()
"""
STALLING = "while True: pass"
POINTS = """[tilewright.strategies]
hangs = rude_descriptors:HANGS
gone = rude_descriptors:GONE
stalls = rude_descriptors:STALLS
broken = rude_descriptors:NO_SUCH_NAME
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a job with `auto`, in an environment where these are installed."""
    folder = tmp_path_factory.mktemp("environment")
    python = environment_like_this(folder / "env")
    packages = next((folder / "env").glob("lib/python*/site-packages"))
    for name, text in (
        ("rude_descriptors.py", MODULE),
        ("rude_strategy.py", STRATEGY),
        ("rude_stalling.py", STALLING),
        ("rude-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: rude\nVersion: 1.0\n"),
        ("rude-1.0.dist-info/entry_points.txt", POINTS),
    ):
        path = packages / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    model, out = folder / "model.onnx", folder / "out"
    onnx.save(repeated_layers(2), model)
    command = [
        str(python), "-P", "-m", "service.cli.main", "compile", str(model), "--local",
        "--hardware", "stcp920-inferred", "--verify", "full", "-o", str(out),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, check=False,
        env={**os.environ, "TILEWRIGHT_DATA_DIR": str(folder / "data"),
             "TILEWRIGHT_STRATEGY_LIMIT_S": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads((out / "report.json").read_bytes())  # type: ignore[no-any-return]


def said(report: dict[str, Any], code: str) -> list[str]:
    return [row["message"] for row in report["warnings"] if row["code"] == code]


def test_the_job_ends_well_by_the_others(report: dict[str, Any]) -> None:
    assert report["verification"]["passed"] is True
    won = report["strategies"][0]["name"]
    assert "hangs" not in won and "stalls" not in won and "gone" not in won


def test_what_hangs_loses_its_units_and_the_report_says_so(report: dict[str, Any]) -> None:
    told = said(report, "STRATEGY_FALLBACK")
    assert told
    assert all("hangs 1 failed at step" in text for text in told)
    assert all(text.endswith("; this is a bug in rude 1.0: please report it") for text in told)
    assert any("schedule: timed out after 2 s of CPU" in text for text in told)


def test_what_cannot_be_loaded_is_said(report: dict[str, Any]) -> None:
    assert list(report["toolchain"]["strategies"]) == ["graphturbo", "hangs", "naive"]
    broken, gone, stalls = said(report, "STRATEGY_ABSENT")
    assert broken.startswith(
        "takes no part: broken = rude_descriptors:NO_SUCH_NAME: AttributeError:"
    )
    assert gone == (
        "takes no part: strategy gone of rude 1.0: ModuleNotFoundError: No module named"
        " 'rude_strategy_that_is_not_there'"
    )
    assert stalls == ("takes no part: strategy stalls of rude 1.0: timed out after 2 s of CPU")

"""`tilewright hardware measure-host`, on the machine of the tests."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from click.testing import Result
from typer.testing import CliRunner

from service.cli.main import app
from worker.compiler.machine import load_machine
from worker.host_rates.measure import available_threads
from worker.host_rates.operators import operators


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["hardware", "measure-host", *map(str, words)])


def test_a_spec_with_this_machines_rates(tmp_path: Path) -> None:
    output = tmp_path / "mine.yaml"
    done = run("stcp920-inferred", "--threads", 1, "--name", "mine", "-o", output)
    assert done.exit_code == 0, done.output
    machine = load_machine(yaml.safe_load(output.read_text()))
    assert machine.name == "mine"
    # Wide: a processor of any year, beside anything.
    assert 1e8 < machine.host.flops_per_s < 1e14
    assert 1e7 < machine.host.memory_bytes_per_s < 1e13
    assert 1e-7 < machine.host.launch_overhead_s < 0.1
    assert "operators that the fit has not seen" in done.output
    assert all(operator.name in done.output for operator in operators())


def test_rows_as_json() -> None:
    done = run("eyeriss", "--threads", 1, "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    host = answer["document"]["host"]
    assert len(answer["operators"]) == len(operators())
    for row in answer["operators"][1:]:
        work = max(
            row["flops"] / host["flops_per_s"]["value"],
            row["bytes"] / host["memory_bytes_per_s"]["value"],
        )
        predicted = host["launch_overhead_s"]["value"] + work
        assert abs(predicted / row["predicted_s"] - 1) < 0.02, "but for digits that are written"


def test_more_threads_than_there_are() -> None:
    done = run("eyeriss", "--threads", available_threads() + 1)
    assert done.exit_code == 2
    assert "TW-OPT-001" in done.output

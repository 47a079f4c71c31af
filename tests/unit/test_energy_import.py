"""Energies of Accelergy's and hwcomponents' tables in a spec: values, evidence, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from service.cli.main import app
from worker.compiler.errors import SpecError
from worker.compiler.machine import canonical_document, load_machine, preset_document
from worker.compiler.machine.energy_import import (
    EngineSource,
    LevelSource,
    read_energy_table,
    with_energies,
)

ERT = {
    "ERT": {
        "version": 0.4,
        "tables": [
            {
                "name": "top.chip.Buffer[1..4]",
                "actions": [
                    {"name": "read", "arguments": {"data_delta": 0}, "energy": 1.0},
                    {"name": "read", "arguments": {"data_delta": 1}, "energy": 24.0},
                    {"name": "write", "arguments": {"data_delta": 1}, "energy": 16.0},
                    {"name": "idle", "energy": 0.5},
                ],
            },
            {"name": "top.chip.PE[1..16].Mac[1..1]", "actions": [{"name": "mac", "energy": 0.75}]},
            {"name": "top.Other", "actions": [{"name": "read", "energy": 2}]},
            {"name": "top.chip.Other", "actions": [{"name": "read", "energy": 2}]},
        ],
    }
}
COSTS = {
    "GlobalBuffer": {
        "area": 1e-6,
        "leak_power": 1e-3,
        "actions": {"read": {"energy": 3e-12}, "write": {"energy": 5e-12}},
    },
    "MAC": {"actions": {"compute": {"energy": 8.4e-14}}},
}


def spec() -> dict[str, Any]:
    return canonical_document(preset_document("kapla-edge"))


def test_a_reference_table_gives_picojoules_per_byte_and_operation() -> None:
    table = read_energy_table(ERT, "chip.yaml")
    changed = with_energies(
        spec(), table, [LevelSource("GBUF", "Buffer", 64)],
        [EngineSource("PE", "i16", "Mac", "mac")],
    )  # fmt: skip
    machine = load_machine(changed)
    buffer = machine.level("GBUF")
    assert (buffer.read_energy_pj_per_byte, buffer.write_energy_pj_per_byte) == (3.0, 2.0)
    assert machine.engine("PE").op_energy_pj["i16"] == 0.75  # type: ignore[index]
    level = next(row for row in changed["levels"] if row["name"] == "GBUF")
    assert level["read_energy_pj_per_byte"] == {
        "value": 3.0, "tag": "D",
        "note": "chip.yaml: top.chip.Buffer[1..4] read, 24 pJ per 64 bits",
    }  # fmt: skip
    before = load_machine(spec())
    assert machine.level("DRAM") == before.level("DRAM")
    assert machine.engine("PE").op_energy_pj["i8"] == before.engine("PE").op_energy_pj["i8"]  # type: ignore[index]


def test_component_costs_are_joules() -> None:
    table = read_energy_table(COSTS, "costs.json")
    changed = with_energies(
        spec(), table, [LevelSource("GBUF", "GlobalBuffer", 1)],
        [EngineSource("PE", "i8", "MAC", "compute")],
    )  # fmt: skip
    machine = load_machine(changed)
    assert machine.level("GBUF").read_energy_pj_per_byte == pytest.approx(24.0)
    assert machine.level("GBUF").write_energy_pj_per_byte == pytest.approx(40.0)
    assert machine.engine("PE").op_energy_pj["i8"] == pytest.approx(0.084)  # type: ignore[index]


def test_a_summary_is_read_as_well() -> None:
    summary = {"ERT_summary": {"table_summary": ERT["ERT"]["tables"]}}
    assert read_energy_table(summary, "s").energy("PE.Mac", "mac")[1] == 0.75


@pytest.mark.parametrize(
    ("component", "action", "said", "limit"),
    [
        ("Nothing", "read", "0 components called Nothing", None),
        ("Other", "read", "2 components called Other", ["top.Other", "top.chip.Other"]),
        ("Mac", "read", "has no energy of read", ["mac"]),
    ],
)
def test_what_a_table_lacks(component: str, action: str, said: str, limit: object) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        read_energy_table(ERT, "t").energy(component, action)
    assert caught.value.code == "TW-SPEC-005"
    assert limit is None or caught.value.limit == limit


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"ERT": {"tables": []}}, "/ERT/tables"),
        ({"ERT": {"tables": [{"name": "a"}]}}, "/ERT/tables/0"),
        ({"ERT": {"tables": [{"name": "a", "actions": ["read"]}]}}, "/ERT/tables/0/actions/0"),
        (
            {"ERT": {"tables": [{"name": "a", "actions": [{"name": "r", "energy": -1}]}]}},
            "/ERT/tables/0/actions/0/energy",
        ),
        ({"a/b": {"actions": {"read": {"energy": "much"}}}}, "/a~1b/actions/read/energy"),
        ({"a": {"actions": {"read": {"energy": float("nan")}}}}, "/a/actions/read/energy"),
        ({"levels": []}, "/levels"),
    ],
)
def test_what_is_no_table(document: dict[str, Any], pointer: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_energy_table(document, "t")
    assert (caught.value.code, caught.value.place.pointer) == ("TW-SPEC-005", pointer)


@pytest.mark.parametrize(
    ("levels", "engines", "said"),
    [
        ([LevelSource("L9", "Buffer", 8)], [], "no level L9"),
        ([LevelSource("GBUF", "Buffer", 0)], [], "moves 0 bits"),
        ([], [EngineSource("XX", "i8", "Mac", "mac")], "no engine XX"),
        ([], [EngineSource("PE", "f64", "Mac", "mac")], "no rate for f64"),
    ],
)
def test_what_a_spec_lacks(
    levels: list[LevelSource], engines: list[EngineSource], said: str
) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        with_energies(spec(), read_energy_table(ERT, "t"), levels, engines)
    assert caught.value.code == "TW-SPEC-005"


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["hardware", "import-energy", *map(str, words)])


def test_the_verb_writes_a_spec_that_compiles(tmp_path: Path) -> None:
    table, output = tmp_path / "ERT.yaml", tmp_path / "mine.yaml"
    table.write_text(yaml.safe_dump(ERT))
    done = run(
        "kapla-edge", table, "--level", "GBUF=chip.Buffer:64", "--engine", "PE.i16=PE.Mac:mac",
        "--name", "mine", "-o", output,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    machine = load_machine(yaml.safe_load(output.read_text()))
    assert machine.name == "mine"
    assert machine.level("GBUF").write_energy_pj_per_byte == 2.0


@pytest.mark.parametrize(
    ("words", "code", "ended"),
    [
        ([], "TW-OPT-001", 2),
        (["--level", "GBUF"], "TW-OPT-001", 2),
        (["--engine", "PE=Mac"], "TW-OPT-001", 2),
        (["--level", "GBUF=Nothing:8"], "TW-SPEC-005", 3),
    ],
)
def test_the_verb_refuses(words: list[str], code: str, ended: int, tmp_path: Path) -> None:
    table = tmp_path / "t.json"
    table.write_text(json.dumps(ERT))
    done = run("kapla-edge", table, *words, "--json")
    assert (done.exit_code, json.loads(done.stdout)["code"]) == (ended, code)

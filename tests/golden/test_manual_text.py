"""The manual of a small spec, as a golden file; every preset has one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from worker.compiler.machine import load_machine, load_preset, parse_document, preset_names
from worker.compiler.partition.manual import manual_document, manual_markdown

FOLDER = Path(__file__).parent / "manual"
SPEC = FOLDER / "two_targets.yaml"


def test_the_manual_of_a_spec_with_everything() -> None:
    machine = load_machine(parse_document(SPEC.read_text(encoding="utf-8")))
    text = manual_markdown(machine)
    assert text == (FOLDER / "two_targets.md").read_text(encoding="utf-8")
    assert manual_markdown(machine) == text


def test_the_document_says_what_the_text_says() -> None:
    machine = load_machine(parse_document(SPEC.read_text(encoding="utf-8")))
    text = manual_markdown(machine)
    document = manual_document(machine)
    assert isinstance(document["targets"], list)
    for target in document["targets"]:
        assert isinstance(target, dict)
        for key in ("criteria", "conversions"):
            found = target[key]
            assert isinstance(found, list)
            assert all(f"- {line}" in text for line in found)
        ops = target["ops"]
        assert isinstance(ops, list)
        for op in ops:
            assert isinstance(op, dict)
            assert "; ".join(op["conditions"]).replace("|", "\\|") in text  # type: ignore[arg-type]
        patterns = target["patterns"]
        assert isinstance(patterns, list)
        assert all(f"`{rule['structure']}`" in text for rule in patterns)  # type: ignore[index, call-overload]


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_a_manual(name: str) -> None:
    machine = load_preset(name)
    text = manual_markdown(machine)
    for target in machine.targets:
        for support in target.capabilities.ops:
            assert f"| {support.op_type} |" in text
        for rule in target.capabilities.patterns:
            assert f"- {rule.name} (priority {rule.priority}" in text
    assert json.loads(json.dumps(manual_document(machine))) == manual_document(machine)


def test_the_command_prints_it() -> None:
    shown = CliRunner().invoke(app, ["hardware", "manual", str(SPEC)])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == (FOLDER / "two_targets.md").read_text(encoding="utf-8")
    raw = CliRunner().invoke(app, ["hardware", "manual", str(SPEC), "--json"])
    machine = load_machine(parse_document(SPEC.read_text(encoding="utf-8")))
    assert json.loads(raw.stdout) == manual_document(machine)
    missing = CliRunner().invoke(app, ["hardware", "manual", "no-such-chip"])
    assert missing.exit_code == 3

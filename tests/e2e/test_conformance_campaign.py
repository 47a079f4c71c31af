"""Every shipped preset conforms: a sample of each, and all of two (`pytest -m campaign`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.compiler.machine import load_machine, preset_document, preset_names
from worker.conformance.cases import Selection
from worker.conformance.conform import check_machine
from worker.conformance.report import conformance_table

pytestmark = pytest.mark.campaign
WHOLE = ("ethos-u65", "a100")
"""An integer chip with limits and layouts, and a programmable one with every operator."""


@pytest.mark.parametrize("name", preset_names())
def test_a_sample_of_every_preset(name: str, tmp_path: Path) -> None:
    found = check_machine(load_machine(preset_document(name)), tmp_path, Selection(is_quick=True))
    assert found.passed, conformance_table(found)


@pytest.mark.campaign(smoke=False)
@pytest.mark.parametrize("name", WHOLE)
def test_all_of_a_preset(name: str, tmp_path: Path) -> None:
    machine = load_machine(preset_document(name))
    found = check_machine(machine, tmp_path)
    assert found.passed, conformance_table(found)
    claimed = {op.op_type for t in machine.targets for op in t.capabilities.ops}
    assert claimed <= {row.op_type for row in found.rows}

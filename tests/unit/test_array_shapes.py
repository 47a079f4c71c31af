"""A matrix engine's array may be a line, a rectangle or a block; each schedules every operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from compile_ports import ports_of
from onnx_models import repeated_layers, saved

from worker.compiler.cache import MemoryCache
from worker.compiler.errors import SpecError
from worker.compiler.frontend.limits import Limits
from worker.compiler.judge.figures import Figures
from worker.compiler.machine import canonical_document, load_machine, preset_document
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model


def chip(array: list[int]) -> dict[str, Any]:
    document = canonical_document(preset_document("stcp920-inferred"))
    (engine,) = (e for e in document["engines"] if e["kind"] == "matrix")
    engine["array"] = array
    return document


@pytest.mark.parametrize("array", [[], [4096], [32, 128], [16, 16, 16]])
@pytest.mark.parametrize("strategy", ["naive", "graphturbo"])
def test_every_shape_has_a_schedule(tmp_path: Path, array: list[int], strategy: str) -> None:
    """A line of MACs ended in an IndexError of every strategy."""
    options = CompileOptions(strategy=strategy)
    machine = load_machine(chip(array))
    ports = ports_of(MemoryCache(), lambda unit: Figures(unit.program.num_instructions))
    path = saved(repeated_layers(2), tmp_path)
    made = compile_model(path, "m", machine, options, ports, Limits())
    assert made.num_kernels >= 1 and made.warnings == made.warnings[:1]


def test_four_dimensions_are_refused() -> None:
    with pytest.raises(SpecError) as refused:
        load_machine(chip([2, 2, 2, 2]))
    assert refused.value.code == "TW-SPEC-001"
    assert refused.value.place.pointer.startswith("/engines/")

"""Shape inference leaves inputs and constants as they were, even where it cannot run."""

from __future__ import annotations

from pathlib import Path

import onnx_ir
import pytest
from onnx_models import conv_net, saved

from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.shapes import infer_model


def test_a_model_that_cannot_be_serialised_keeps_its_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(model: onnx_ir.Model) -> None:
        raise TypeError("an attribute that no file can hold")

    model = load_model(saved(conv_net(), tmp_path), Limits()).ir
    inputs = [value.name for value in model.graph.inputs]
    constants = {name: value.const_value for name, value in model.graph.initializers.items()}
    assert constants
    monkeypatch.setattr("onnx_ir.serde.serialize_model", refuse)
    infer_model(model)
    assert [value.name for value in model.graph.inputs] == inputs
    assert {n: v.const_value for n, v in model.graph.initializers.items()} == constants

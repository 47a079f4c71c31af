"""Control flow interpreted by the product, its bodies by ONNX Runtime: no accelerator involved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx_models import saved

from worker.compiler.control.compile import CompiledControl, compile_bodies
from worker.compiler.control.flow import ControlFlow
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.simplify import simplify
from worker.compiler.frontend.slice import host_submodel
from worker.compiler.package.control import RunBody, interpret

Array = np.ndarray[Any, Any]


def simplified(model: onnx.ModelProto, folder: Path) -> OnnxModel:
    return simplify(bind(load_model(saved(model, folder), Limits(), "m"), {}))


def session_of(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def outputs_of(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """ONNX Runtime on the whole model."""
    session = session_of(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def controls_of(model: OnnxModel) -> tuple[CompiledControl[OnnxModel], ...]:
    """Every node that can be interpreted is: a body counts as offloaded whatever is in it."""
    return compile_bodies(model, lambda body: body, lambda _: True)


def runner(control: CompiledControl[OnnxModel], calls: list[int]) -> RunBody:
    """Runs bodies in ONNX Runtime and notes which."""
    flow = flow_of(control)
    sessions = []
    for body, model in zip(flow.bodies, control.models, strict=True):
        assert model is not None
        nodes = list(model.model.ir.graph)
        text = host_submodel(model.model, nodes, body.reads, body.computes)
        sessions.append(session_of(text) if body.computes else None)

    def run(index: int, feeds: Mapping[str, Array]) -> dict[str, Array]:
        calls.append(index)
        body, session = flow.bodies[index], sessions[index]
        assert session is not None
        assert set(feeds) == set(body.reads)
        return dict(zip(body.computes, session.run(list(body.computes), dict(feeds)), strict=True))

    return run


def flow_of(control: CompiledControl[OnnxModel]) -> ControlFlow:
    assert control.flow is not None, control.reason
    return control.flow


def interpreted(
    model: onnx.ModelProto, inputs: Mapping[str, Array], folder: Path
) -> tuple[dict[str, Array], list[int]]:
    """Outputs of the model's only node, and which body ran in each iteration."""
    simple = simplified(model, folder)
    (control,) = controls_of(simple)
    calls: list[int] = []
    return interpret(flow_of(control), inputs, runner(control, calls)), calls

"""From a bound forward model to one training step, as a plain ONNX model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir

from worker.compiler.errors import ModelError
from worker.compiler.frontend.expand import expand_functions
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.model_summary import node_macs
from worker.compiler.frontend.simplify import simplify
from worker.compiler.frontend.tidy import tidy
from worker.compiler.train.derive import flows, gradients, reaching
from worker.compiler.train.emit import Emitter, dims
from worker.compiler.train.loss import add_loss
from worker.compiler.train.optimise import Carried, Outputs, optimise
from worker.compiler.train.options import Loss, TrainOptions
from worker.compiler.train.parameters import (
    Lifted,
    Mask,
    lift_parameters,
    require_slopes,
    restore,
)
from worker.compiler.train.rules.registry import REWRITTEN, RULES
from worker.compiler.train.standardise import standardise
from worker.compiler.train.write_out import write_out

_MAX_EXPANSIONS = 8
"""Functions inside functions; the schemas of ONNX have two levels."""


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A step and how it is used: every output of `carried` is an input of the next step."""

    model: OnnxModel
    loss: str
    """The first output, a scalar."""
    target: str
    """The input that the output is compared with."""
    carried: tuple[Carried, ...]
    gradients: tuple[tuple[str, str], ...]
    """(parameter, output with its gradient), where the optimizer is none."""
    parameters: Mapping[str, Any]
    """Values of the trained initializers in the user's file."""
    classes: int
    """Labels are smaller; 0 where the target is no label."""
    masks: tuple[Mask, ...]
    forward_macs: int
    """Multiply-accumulates of the forward pass."""
    step_macs: int
    """Of the whole step."""


def training_step(model: OnnxModel, options: TrainOptions) -> TrainingStep:
    """Differentiate a bound model.  Edits `model.ir`.

    Nodes of the backward pass are called after the user's node: `NODE/gradient/Op`.

    Raises:
        ModelError: TW-TRAIN-001 to -005, and what `simplify` raises.

    Cost: linear in nodes; each new node is inferred once.
    """
    lifted = lift_parameters(model, options)
    model, reasons = _differentiable(model, lifted)
    graph = model.ir.graph
    emit = Emitter(graph, model.opset)
    inputs = {v.name: v for v in graph.inputs}
    done = standardise(emit, [inputs[name] for name in lifted.statistics if name in inputs])
    graph.sort()
    output = graph.outputs[0]
    nodes = list(graph)
    forward_macs = sum(map(node_macs, nodes))
    loss, seed = add_loss(emit, output, options)
    trained = [
        v for v in graph.inputs if v.name in lifted.tensors and v.name not in lifted.statistics
    ]
    found = gradients(emit, nodes, output, seed, trained, done.closed, reasons)
    if not found:
        raise ModelError(
            "TW-TRAIN-005", f"no initializer that may be trained reaches {output.name!r}",
            actual=len(trained),
        )  # fmt: skip
    graph.outputs.clear()
    outputs = Outputs(emit)
    label = outputs.give(loss, "loss")
    given = optimise(outputs, found, lifted.tensors, options)
    for value, new in done.running.items():
        outputs.carry(value, new, "statistic", lifted.tensors[str(value.name)].numpy())
    tidy(model.ir)
    graph.sort()
    return TrainingStep(
        model=OnnxModel(model.ir, model.name, model.sha256, model.opset),
        loss=label,
        target=options.target_name,
        carried=tuple(outputs.carried),
        gradients=given,
        parameters={str(v.name): lifted.tensors[str(v.name)].numpy() for v in found},
        classes=dims(output)[options.axis] if options.loss is Loss.CROSS_ENTROPY else 0,
        masks=tuple(lifted.masks),
        forward_macs=forward_macs,
        step_macs=sum(map(node_macs, graph)),
    )


def _differentiable(model: OnnxModel, lifted: Lifted) -> tuple[OnnxModel, Mapping[str, str]]:
    """Simplify, write out what has no rule, and settle what is trained.

    Beside the model: why some nodes, by name, could not be written out.
    """
    for _ in range(_MAX_EXPANSIONS):
        reasons: dict[str, str] = {}
        model = simplify(model)
        graph = model.ir.graph
        passed = reaching(list(graph), graph.outputs[0], _inputs(graph, lifted))
        lacking = {
            n.op_type for n in passed if n.op_type not in RULES and n.op_type not in REWRITTEN
        }
        written = write_out(Emitter(graph, model.opset), passed, reasons)
        graph.sort()
        if not expand_functions(model.ir, model.opset, lacking.__contains__) and not written:
            break
    reached = {node.inputs[k] for node in passed for k in flows(node)}
    left = [v for v in _inputs(graph, lifted) if v not in reached]
    require_slopes(list(graph), graph.outputs[0], left)
    read = {v for node in graph.all_nodes() for v in node.inputs}
    unread = [v for v in graph.inputs if v.name in lifted.tensors and v not in read]
    restore(model, lifted, dict.fromkeys(str(v.name) for v in (*left, *unread)))
    return model, reasons


def _inputs(graph: onnx_ir.Graph, lifted: Lifted) -> list[onnx_ir.Value]:
    """Inputs that may be trained."""
    return [v for v in graph.inputs if v.name in lifted.tensors and v.name not in lifted.statistics]

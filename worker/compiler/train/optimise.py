"""Optimizers: the next value of each parameter, and of what is remembered for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir

from worker.compiler.train.emit import Emitter, dims
from worker.compiler.train.options import Optimizer, TrainOptions


@dataclass(frozen=True, slots=True)
class Carried:
    """An output that is an input of the next step."""

    input: str
    output: str
    kind: str
    """parameter, statistic or optimizer."""
    initial: Any
    """Values before the first step."""


@dataclass(slots=True)
class Outputs:
    """Collects the outputs of a step: each a value and a name of its own."""

    emit: Emitter
    carried: list[Carried] = field(default_factory=list)

    def give(self, value: onnx_ir.Value, name: str) -> str:
        """Make `value` an output; its name is `name`, or with a number where that is taken."""
        if value.is_graph_output() or value.is_graph_input() or value.is_initializer():
            value = self.emit.op("Identity", value)
        value.name = self.emit.fresh(name)
        self.emit.graph.outputs.append(value)
        return value.name

    def carry(self, source: onnx_ir.Value, value: onnx_ir.Value, kind: str, initial: Any) -> None:
        """Make `value` what the input `source` is in the next step."""
        output = self.give(value, f"{source.name}/next")
        self.carried.append(Carried(str(source.name), output, kind, initial))

    def remember(self, name: str, initial: np.ndarray[Any, Any]) -> tuple[onnx_ir.Value, Any]:
        """A new input for something that the optimizer keeps."""
        value = onnx_ir.Value(
            name=self.emit.fresh(name),
            shape=onnx_ir.Shape(initial.shape),
            type=onnx_ir.TensorType(onnx_ir.DataType.from_numpy(initial.dtype)),
        )
        self.emit.graph.inputs.append(value)
        return value, initial


def optimise(
    outputs: Outputs,
    gradients: Mapping[onnx_ir.Value, onnx_ir.Value],
    tensors: Mapping[str, Any],
    options: TrainOptions,
) -> tuple[tuple[str, str], ...]:
    """Append the update of every parameter, and make outputs of what it gives.

    Without an optimizer outputs are the gradients: give (parameter, output) of each.

    Source: SGD with heavy-ball momentum, v = momentum v + g, w = w - rate v; Kingma and Ba, Adam,
    algorithm 1, the powers of beta carried as scalars.
    """
    emit = outputs.emit
    powers: dict[str, tuple[onnx_ir.Value, onnx_ir.Value]] = {}
    given = []
    for parameter, gradient in gradients.items():
        emit.begin(f"{parameter.name}/update")
        initial = tensors[str(parameter.name)].numpy()
        if options.optimizer is Optimizer.NONE:
            output = outputs.give(gradient, f"{parameter.name}/gradient")
            given.append((str(parameter.name), output))
            continue
        if options.optimizer is Optimizer.SGD:
            step = _sgd(outputs, parameter, gradient, options)
        else:
            step = _adam(outputs, parameter, gradient, options, powers)
        outputs.carry(parameter, emit.op("Sub", parameter, step), "parameter", initial)
    return tuple(given)


def _sgd(
    outputs: Outputs, parameter: onnx_ir.Value, gradient: onnx_ir.Value, options: TrainOptions
) -> onnx_ir.Value:
    emit = outputs.emit
    if options.momentum is not None:
        old, zeros = outputs.remember(f"{parameter.name}/momentum", _zeros(parameter))
        kept = emit.op("Mul", old, emit.real(options.momentum, old))
        gradient = emit.op("Add", kept, gradient)
        outputs.carry(old, gradient, "optimizer", zeros)
    return emit.op("Mul", gradient, emit.real(options.rate, gradient))


def _adam(
    outputs: Outputs,
    parameter: onnx_ir.Value,
    gradient: onnx_ir.Value,
    options: TrainOptions,
    powers: dict[str, tuple[onnx_ir.Value, onnx_ir.Value]],
) -> onnx_ir.Value:
    """rate m' / (sqrt(v') + epsilon), m' and v' without their bias to zero."""
    emit = outputs.emit
    squared = emit.op("Mul", gradient, gradient)
    unbiased = []
    for letter, beta, new in (("m", "beta1", gradient), ("v", "beta2", squared)):
        factor = options.adam(beta)
        old, zeros = outputs.remember(f"{parameter.name}/{letter}", _zeros(parameter))
        kept = emit.op("Mul", old, emit.real(factor, old))
        mean = emit.op("Add", kept, emit.op("Mul", new, emit.real(1 - factor, new)))
        outputs.carry(old, mean, "optimizer", zeros)
        unbiased.append(emit.op("Div", mean, _bias(outputs, parameter, beta, factor, powers)))
    deviation = emit.op("Add", emit.op("Sqrt", unbiased[1]), emit.real(
        options.adam("epsilon"), gradient
    ))  # fmt: skip
    ratio = emit.op("Div", unbiased[0], deviation)
    return emit.op("Mul", ratio, emit.real(options.rate, ratio))


def _bias(
    outputs: Outputs,
    like: onnx_ir.Value,
    beta: str,
    factor: float,
    powers: dict[str, tuple[onnx_ir.Value, onnx_ir.Value]],
) -> onnx_ir.Value:
    """1 - beta^t of this step, t from 1; one for all parameters of a type."""
    emit = outputs.emit
    assert like.dtype is not None
    key = f"{beta}_power" if like.dtype == onnx_ir.DataType.FLOAT else f"{beta}_power_f64"
    if key not in powers:
        old, one = outputs.remember(f"adam/{key}", np.ones((), like.dtype.numpy()))
        power = emit.op("Mul", old, emit.real(factor, old))
        powers[key] = power, emit.op("Sub", emit.real(1, old), power)
        outputs.carry(old, power, "optimizer", one)
    return powers[key][1]


def _zeros(parameter: onnx_ir.Value) -> np.ndarray[Any, Any]:
    assert parameter.dtype is not None
    return np.zeros(dims(parameter), parameter.dtype.numpy())

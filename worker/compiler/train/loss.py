"""Losses: their value, and their gradient by the model's output in closed form."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir

from worker.compiler.errors import ModelError
from worker.compiler.train.emit import Emitter, dims
from worker.compiler.train.options import Loss, TrainOptions


def add_loss(
    emit: Emitter, output: onnx_ir.Value, options: TrainOptions
) -> tuple[onnx_ir.Value, onnx_ir.Value]:
    """(the loss, a scalar; its gradient, of the shape of `output`).

    Raises:
        ModelError: TW-TRAIN-002, the target's input is there with another type or shape, or the
            logits lack the axis of the classes.
    """
    emit.begin("loss")
    if options.loss is Loss.MSE:
        return _mse(emit, output, options)
    return _cross_entropy(emit, output, options)


def _mse(
    emit: Emitter, output: onnx_ir.Value, options: TrainOptions
) -> tuple[onnx_ir.Value, onnx_ir.Value]:
    shape = dims(output)
    assert output.dtype is not None
    target = _target(emit, options.target_name, shape, output.dtype)
    apart = emit.op("Sub", output, target)
    squared = emit.op("Mul", apart, apart)
    loss = emit.op("ReduceMean", squared, emit.ints(*range(len(shape))), keepdims=0)
    return loss, emit.op("Mul", apart, emit.real(2 / prod(shape), apart))


def _cross_entropy(
    emit: Emitter, output: onnx_ir.Value, options: TrainOptions
) -> tuple[onnx_ir.Value, onnx_ir.Value]:
    """Mean of -log softmax at each label; (softmax - one hot) / samples backwards."""
    shape = dims(output)
    axis = options.axis
    if not -len(shape) <= axis < len(shape):
        raise ModelError(
            "TW-TRAIN-002", f"{output.name!r} of shape {list(shape)} has no axis {axis}"
            " for classes", limit=len(shape), actual=axis,
            remedy="Name the axis of the classes as class_axis.",
        )  # fmt: skip
    axis %= len(shape)
    samples = (*shape[:axis], *shape[axis + 1 :])
    labels = _target(emit, options.target_name, samples, onnx_ir.DataType.INT64)
    line = [1] * len(shape)
    line[axis] = shape[axis]
    classes = emit.constant(np.arange(shape[axis], dtype=np.int64).reshape(line))
    at = emit.op("Unsqueeze", labels, emit.ints(axis))
    hot = emit.op("Cast", emit.op("Equal", at, classes), to=int(output.dtype or 1))
    log = emit.op("LogSoftmax", output, axis=axis)
    count = prod(samples)
    total = emit.op(
        "ReduceSum", emit.op("Mul", hot, log), emit.ints(*range(len(shape))), keepdims=0
    )
    loss = emit.op("Mul", total, emit.real(-1 / count, total))
    apart = emit.op("Sub", emit.op("Exp", log), hot)
    return loss, emit.op("Mul", apart, emit.real(1 / count, apart))


def _target(
    emit: Emitter, name: str, shape: tuple[int, ...], dtype: onnx_ir.DataType
) -> onnx_ir.Value:
    """The input of that name: the model's own, or a new one."""
    found = next((v for v in emit.graph.inputs if v.name == name), None)
    if found is None and emit.fresh(name) == name:
        made = onnx_ir.Value(name=name, shape=onnx_ir.Shape(shape), type=onnx_ir.TensorType(dtype))
        emit.graph.inputs.append(made)
        return made
    if found is None or found.dtype != dtype or dims(found) != shape:
        has = "no input" if found is None else f"{found.dtype}{list(dims(found))}"
        raise ModelError(
            "TW-TRAIN-002", f"the model's {name!r} is {has}; the loss needs an input of"
            f" {dtype}{list(shape)}", limit=f"{dtype}{list(shape)}", actual=has,
            remedy="Give the target a name that the model does not have.",
        )  # fmt: skip
    return found

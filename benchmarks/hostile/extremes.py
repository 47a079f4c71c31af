"""ONNX's node tests with one attribute or constant at an end of its range: all of them, each once.

What random mutations meet now and then: a window of 2**40 places, an axis of -2**31, a factor that
is infinite.  Equal changes of equal operators count once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, numpy_helper

from benchmarks.hostile import models
from benchmarks.hostile.child import Verdict
from benchmarks.onnx_coverage import node_cases

INTEGERS = (2**31 - 1, 2**40, 2**62, -(2**31))
FLOATS = (float("inf"), float("nan"), 1e38, -1e38, 0.0)
_MOST_ELEMENTS = 16
"""Of constants that say how an operator works, and are no data."""

Edit = Callable[[onnx.ModelProto], None]


@cache
def cases() -> tuple[tuple[str, onnx.ModelProto, Edit], ...]:
    """(what is changed, model, how), in an order that begins with some of everything."""
    found: dict[str, tuple[str, onnx.ModelProto, Edit]] = {}
    for case in node_cases():
        version = case.model.opset_import[0].version
        ranks = [len(v.type.tensor_type.shape.dim) for v in case.model.graph.input]
        kinds = "+".join(node.op_type for node in case.model.graph.node)
        for what, edit in (*_attributes(case.model), *_constants(case.model)):
            key = f"{kinds} of {ranks} in opset {version}: {what}"
            found.setdefault(key, (f"{case.name}: {what}", case.model, edit))
    order = sorted(found, key=lambda key: (zlib.crc32(key.encode()), key))
    return tuple(found[key] for key in order)


def case(number: int) -> tuple[str, Callable[[Path], Verdict]]:
    """One of them, and how to judge it."""
    what, model, edit = cases()[number]
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    edit(changed)
    preset = models.PRESETS[number % len(models.PRESETS)]
    strategy = models.STRATEGIES[number % len(models.STRATEGIES)]
    asked = {"strategy": strategy, "verify": ("sample", "full")[number // 3 % 2], "seed": number}

    def judge(folder: Path) -> Verdict:
        return models.compiled(changed.SerializeToString(), {"preset": preset}, asked, folder)

    return f"{what}; {preset} {strategy} {asked['verify']}", judge


def _attributes(model: onnx.ModelProto) -> Iterator[tuple[str, Edit]]:
    for n, node in enumerate(model.graph.node):
        for k, attribute in enumerate(node.attribute):
            name = f"{node.op_type}.{attribute.name}"
            if attribute.type == AttributeProto.INT:
                for value in INTEGERS:
                    yield f"{name} is {value}", _setting(n, k, value)
            elif attribute.type == AttributeProto.FLOAT:
                for number in FLOATS:
                    yield f"{name} is {number}", _setting(n, k, number)
            elif attribute.type == AttributeProto.INTS:
                for at in sorted({0, len(attribute.ints) - 1} & {*range(len(attribute.ints))}):
                    for value in INTEGERS:
                        yield f"{name}[{at}] is {value}", _putting(n, k, at, value)


def _setting(node: int, attribute: int, value: float) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        changed = model.graph.node[node].attribute[attribute]
        if isinstance(value, int):
            changed.i = value
        else:
            changed.f = value

    return edit


def _putting(node: int, attribute: int, at: int, value: int) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.node[node].attribute[attribute].ints[at] = value

    return edit


def _constants(model: onnx.ModelProto) -> Iterator[tuple[str, Edit]]:
    for k, tensor in enumerate(model.graph.initializer):
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if kind.kind not in "if" or not 0 < np.prod(tensor.dims, dtype=np.int64) <= _MOST_ELEMENTS:
            continue
        for value in INTEGERS if kind.kind == "i" else FLOATS:
            if kind.kind == "f" or abs(value) <= np.iinfo(kind).max:
                yield f"{tensor.name}[0] is {value}", _filling(k, value)


def _filling(number: int, value: float) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        tensor = model.graph.initializer[number]
        array = numpy_helper.to_array(tensor).copy()
        array.reshape(-1)[0] = value
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    return edit

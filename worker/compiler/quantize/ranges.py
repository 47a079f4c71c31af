"""Calibration: which values the tensors of a model take on sample inputs.

The statistics are computed inside the graph: every wanted value gets four small readers (least,
largest, a finiteness check, a strided sample), so that no intermediate has to leave the runtime
and all of them together need no more memory than the model itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir

from worker.compiler.errors import PassContractError
from worker.compiler.frontend.edit import Names, add_constant
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.work import static_shape
from worker.compiler.quantize.session import Session

Array = npt.NDArray[Any]

_SAMPLE_ELEMS = 1 << 14
"""Elements of one value kept for noise measurements, over all batches: 64 KiB."""
_LEAST_SAMPLE_ELEMS = 256
"""Per batch, however many there are."""
_CHUNK_VALUES = 1024
"""Values watched in one session: bounds the samples in flight to 64 MiB."""


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """What one value was seen to be, over all batches."""

    low: float
    high: float
    is_finite: bool
    """No element was infinite or NaN."""
    elements: int
    """Of one batch's value."""
    sample: npt.NDArray[np.float32]
    """A strided sample of all batches, flat, as many elements of each."""
    spans: tuple[tuple[float, float], ...] = ()
    """Least and largest of each batch; empty for a value without elements."""


def observe(
    model: OnnxModel,
    names: Sequence[str],
    batches: Sequence[Mapping[str, Array]],
) -> Mapping[str, Observed]:
    """Run the model on every batch and watch the float values `names`.

    Args:
        names: graph inputs or outputs of nodes of the main graph, of static shape.

    Raises:
        ModelError: TW-CAL-005, ONNX Runtime cannot run the model on a batch.
        PassContractError: a name is not a float value of static shape.

    Cost: one session per 1024 names and one run per batch and session.  Weights are not copied;
        the samples take 64 KiB per name.
    """
    if not batches:
        raise PassContractError("quantize.observe", "no calibration batch")
    wanted = tuple(dict.fromkeys(names))
    found: dict[str, Observed] = {}
    for start in range(0, len(wanted), _CHUNK_VALUES):
        chunk = wanted[start : start + _CHUNK_VALUES]
        found.update(_observe(model, chunk, batches))
    return found


def _observe(
    model: OnnxModel, names: Sequence[str], batches: Sequence[Mapping[str, Array]]
) -> dict[str, Observed]:
    watched = model.ir.clone()
    values = _values(watched, names)
    sample_elems = max(_LEAST_SAMPLE_ELEMS, _SAMPLE_ELEMS // len(batches))
    fresh = Names(watched.graph)
    elements: dict[str, int] = {}
    reader: dict[str, list[str]] = {}
    watched.graph.outputs.clear()
    for name in names:
        elements[name] = int(np.prod(static_shape(values[name]) or (), dtype=np.int64))
        if elements[name]:
            reader[name] = _add_readers(
                watched.graph, values[name], elements[name], sample_elems, fresh
            )
    seen: dict[str, list[tuple[float, float, bool, Array]]] = {name: [] for name in names}
    if reader:
        session = Session(watched)
        for batch in batches:
            results = dict(zip(session.outputs, session.run(batch), strict=True))
            for name, (low, high, check, sample) in reader.items():
                seen[name].append((
                    float(results[low]), float(results[high]),
                    float(results[check]) == 0.0, results[sample],
                ))  # fmt: skip
    return {name: _merged(rows, elements[name]) for name, rows in seen.items()}


def _values(model: onnx_ir.Model, names: Sequence[str]) -> dict[str, onnx_ir.Value]:
    wanted = set(names)
    made = (value for node in model.graph for value in node.outputs)
    found = {v.name: v for v in (*model.graph.inputs, *made) if v.name in wanted}
    for name in names:
        value = found.get(name)
        floating = value is not None and value.dtype is not None and value.dtype.is_floating_point()
        if not floating or static_shape(value) is None:
            raise PassContractError(
                "quantize.observe", f"{name!r} is not a float value of static shape"
            )
    return {name: value for name, value in found.items() if name is not None}


def _add_readers(
    graph: onnx_ir.Graph, value: onnx_ir.Value, elements: int, sample_elems: int, fresh: Names
) -> list[str]:
    """Outputs for the least, the largest, a check that is 0 when all is finite, and a sample."""
    base = value.name or ""
    made: list[onnx_ir.Node] = []

    def node(op_type: str, inputs: list[onnx_ir.Value], **attributes: int) -> onnx_ir.Value:
        new = onnx_ir.node(op_type, inputs, attributes=attributes)
        new.name = f"{base}/{op_type}_{len(made)}"
        new.outputs[0].name = fresh.fresh(f"{base}/watch_{len(made)}")
        made.append(new)
        return new.outputs[0]

    def integers(*numbers: int) -> onnx_ir.Value:
        array = np.array(numbers, np.int64)
        return add_constant(graph, fresh.fresh(f"{base}/watch_integers"), array)

    x = value
    if value.dtype != onnx_ir.DataType.FLOAT:
        x = node("Cast", [value], to=int(onnx_ir.DataType.FLOAT))
    zero = add_constant(graph, fresh.fresh(f"{base}/watch_zero"), np.array(0.0, np.float32))
    low = node("ReduceMin", [x], keepdims=0)
    high = node("ReduceMax", [x], keepdims=0)
    # x * 0 is 0 for every finite x, and NaN for infinite ones and NaN.
    check = node("ReduceSum", [node("Mul", [x, zero])], keepdims=0)
    flat = node("Reshape", [x, integers(-1)])
    step = _stride(elements, sample_elems)
    sample = node("Slice", [flat, integers(0), integers(elements), integers(0), integers(step)])
    producer = value.producer()
    if producer is not None and producer.graph is graph:
        graph.insert_after(producer, made)
    elif len(graph):
        graph.insert_before(graph[0], made)
    else:
        graph.extend(made)
    outputs = [low, high, check, sample]
    for output in outputs:
        output.type = onnx_ir.TensorType(onnx_ir.DataType.FLOAT)
    graph.outputs.extend(outputs)
    return [output.name or "" for output in outputs]


def _stride(elements: int, sample_elems: int) -> int:
    """A stride that keeps about `sample_elems` elements and falls in step with no dimension."""
    step = -(-elements // sample_elems)
    while gcd(step, elements) != 1:
        step += 1
    return step


def _merged(rows: Sequence[tuple[float, float, bool, Array]], elements: int) -> Observed:
    if not rows:  # a value without elements
        return Observed(0.0, 0.0, True, elements, np.zeros(0, np.float32))
    is_finite = all(row[2] for row in rows)
    sample = np.concatenate([row[3] for row in rows])
    low, high = min(row[0] for row in rows), max(row[1] for row in rows)
    return Observed(low, high, is_finite, elements, sample, tuple(row[:2] for row in rows))

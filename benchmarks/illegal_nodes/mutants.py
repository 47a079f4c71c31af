"""One node test with one thing changed: an attribute or a constant.  Systematic, nothing random.

Most changes make the node illegal, some leave it legal by luck; `oracles` tells which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.defs
from onnx import AttributeProto, helper, numpy_helper

from benchmarks.onnx_coverage import Case
from worker.compiler.frontend.dynamic import SHAPE_INPUTS

NODE = "the user's node"
UNCHANGED = "unchanged"
_FAR = 1000
_CONSTANTS_ALONE = 4
"""IR version from which an initializer need not be an input too."""
_INT_VALUES = (-_FAR, -1, 0, 3, _FAR)
_OTHER_TYPE = {
    AttributeProto.INT: "words", AttributeProto.STRING: 7, AttributeProto.FLOAT: "words",
    AttributeProto.INTS: "words", AttributeProto.FLOATS: "words", AttributeProto.STRINGS: 7,
    AttributeProto.TENSOR: 7,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """A model that differs from a node test in one place."""

    what: str
    model: onnx.ModelProto
    feeds: dict[str, npt.NDArray[Any]]


def base_of(case: Case) -> Mutant:
    """The case with its node named and what it passes as parameters made constants.

    Every input but the first is taken for a parameter; the first too where it decides a shape.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    (node,) = model.graph.node
    node.name = NODE
    model.ir_version = max(model.ir_version, _CONSTANTS_ALONE)
    feeds: dict[str, Any] = {}
    given = list(model.graph.input)
    del model.graph.input[:]
    for value, array in zip(given, case.inputs, strict=True):
        decides = node.input and value.name == node.input[0]
        decides = decides and 0 not in SHAPE_INPUTS.get(node.op_type, ())
        if decides or not isinstance(array, np.ndarray | np.generic):
            model.graph.input.append(value)
            feeds[value.name] = array
        else:
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), value.name))
    return Mutant(UNCHANGED, model, feeds)


def mutants_of(base: Mutant) -> Iterator[Mutant]:
    """Every mutation of every attribute its operator has, and of every constant."""
    (node,) = base.model.graph.node
    version = next(o.version for o in base.model.opset_import if o.domain in ("", "ai.onnx"))
    schema = onnx.defs.get_schema(node.op_type, version, "")
    yield _with_attribute(base, "no_such_attribute", 1)
    for name, spec in sorted(schema.attributes.items()):
        kind = AttributeProto.AttributeType.Value(spec.type.name)
        if spec.required:
            yield _with_attribute(base, name, None)
        if kind in _OTHER_TYPE:
            yield _with_attribute(base, name, _OTHER_TYPE[kind])
        present = [a for a in node.attribute if a.name == name]
        now = helper.get_attribute_value(present[0]) if present else None
        for value in _values(kind, now):
            yield _with_attribute(base, name, value)
    for place, tensor in enumerate(base.model.graph.initializer):
        yield from _changed_constant(base, place, tensor)


def _values(kind: int, now: Any) -> Iterator[Any]:
    if kind == AttributeProto.INT:
        yield from (v for v in _INT_VALUES if v != now)
    elif kind == AttributeProto.STRING:
        yield "bogus"
    elif kind in (AttributeProto.INTS, AttributeProto.FLOATS):
        if now is None:
            yield from ([_FAR] * 9, [-_FAR])
            return
        given = list(now)
        yield [*given, *(given[-1:] or [1])]
        if given:
            yield given[:-1]
            for value in (_FAR, -_FAR, 0, -1):
                yield [value, *given[1:]]
        if len(given) > 1:
            yield [given[0], given[0], *given[2:]]
    elif kind == AttributeProto.STRINGS and now:
        yield ["bogus", *[s.decode() for s in now[1:]]]
        yield [s.decode() for s in now[:-1]]


def _with_attribute(base: Mutant, name: str, value: Any) -> Mutant:
    """`base` with an attribute set, or taken away (None)."""
    model = onnx.ModelProto()
    model.CopyFrom(base.model)
    (node,) = model.graph.node
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if value is not None:
        kind = AttributeProto.INTS if value == [] else None
        node.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    said = "removed" if value is None else f"= {value!r}"
    return Mutant(f"{name} {said}", model, base.feeds)


def _changed_constant(base: Mutant, place: int, tensor: onnx.TensorProto) -> Iterator[Mutant]:
    array = numpy_helper.to_array(tensor)
    is_whole = array.dtype.kind in "iu"
    if array.size and array.dtype.kind in "iuf":
        values: tuple[float, ...] = (0, -1, _FAR, -_FAR) if is_whole else ()
        if "scale" in tensor.name.lower() and array.dtype.kind == "f":
            values = (0.0, -1.0, float("nan"), float("inf"))
        for value in values:
            if (array.dtype.kind == "u" and value < 0) or _too_far(array.dtype, value):
                continue
            other = array.copy()
            other.reshape(-1)[0] = value
            yield _with_constant(base, place, other, f"[0] = {value}")
        if is_whole and array.size > 1:
            other = array.copy()
            other.reshape(-1)[1] = other.reshape(-1)[0]
            yield _with_constant(base, place, other, "[1] = [0]")
    if array.ndim:
        if array.shape[-1]:
            yield _with_constant(base, place, array[..., :-1], "one shorter")
            yield _with_constant(
                base, place, np.concatenate([array, array[..., -1:]], -1), "one longer"
            )
        if array.ndim > 1 and array.shape[0]:
            yield _with_constant(base, place, array[:-1], "one row fewer")
            yield _with_constant(base, place, np.concatenate([array, array[-1:]]), "one row more")
        if array.shape[0]:
            yield _with_constant(base, place, np.asarray(array[0]), "one rank lower")
    yield _with_constant(base, place, array[None], "one rank higher")
    if is_whole:
        yield _with_constant(base, place, array.astype(np.float64), "as doubles")


def _too_far(dtype: np.dtype[Any], value: float) -> bool:
    if dtype.kind not in "iu":
        return False
    bounds = np.iinfo(dtype)
    return not bounds.min <= value <= bounds.max


def _with_constant(base: Mutant, place: int, array: npt.NDArray[Any], what: str) -> Mutant:
    model = onnx.ModelProto()
    model.CopyFrom(base.model)
    tensor = model.graph.initializer[place]
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
    return Mutant(f"{name} {what}", model, base.feeds)

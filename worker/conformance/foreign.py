"""Samples of operators of foreign domains: operands that suit the operators of the definition.

The body is walked forwards.  An operand that nothing has said yet is what the recipe of the first
operator that reads it would give, beside what is known there by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper

from worker.compiler.frontend.call_marks import call_attributes, opset_of_function
from worker.compiler.frontend.functions import written_out
from worker.compiler.machine.operator import foreign_name
from worker.compiler.machine.pattern import AttributeValue
from worker.conformance.form import Functions, NoForm, add_functions
from worker.conformance.recipes import RECIPES
from worker.conformance.sample import OPSET, Array, OpRecipe, Request, Sample

_ONES: Mapping[int, AttributeValue] = MappingProxyType(
    {
        onnx.AttributeProto.FLOAT: 1.0,
        onnx.AttributeProto.INTS: (1,), onnx.AttributeProto.STRING: "1",
    }
)  # fmt: skip
"""For attributes of which the body says only that a constant has them."""


class NoSample(NoForm):
    """The definition says too little for an instance; the text says where."""


def foreign_recipe(name: str, functions: Functions) -> OpRecipe | None:
    """How to make calls of a foreign operator; None where `functions` has no definition of it."""
    if name not in functions:
        return None
    return OpRecipe(partial(_sample, functions[name], functions))


def _sample(function: onnx.FunctionProto, functions: Functions, request: Request) -> Sample:
    """Operands and attributes for one call.

    Raises:
        NoSample: an operator of the body has no recipe, or none that fits what is known.
    """
    opset = opset_of_function(function) or OPSET
    defaults = {a.name: a for a in function.attribute_proto}
    kinds = {a.name: a.type for a in function.attribute_proto}
    kinds.update((a.ref_attr_name, a.type) for n in function.node for a in n.attribute)
    given: dict[str, AttributeValue] = {
        name: _of_kind(request.attributes[name], kinds.get(name))
        for name in (*function.attribute, *defaults)
        if name in request.attributes
    }
    known: dict[str, Array] = {}
    fixed: set[str] = set()
    open_values = set(function.input)
    for node in function.node:
        recipe = _recipe_of(node, functions)
        _complete(function, node, recipe, request, known, open_values, fixed, given)
        called = _bound(node, given, defaults)
        inputs = {name: known[name] for name in node.input if name in known}
        known.update(zip(node.output, _computed(called, inputs, opset, functions), strict=False))
    attributes = {k: v for k, v in given.items() if k in function.attribute or k in defaults}
    own = [known.get(name) for name in function.input]
    return Sample(
        tuple(None if array is None else _typed(array, request) for array in own), attributes,
        frozenset(k for k, name in enumerate(function.input) if name in fixed),
        len(function.output), opset,
    )  # fmt: skip


def _complete(
    function: onnx.FunctionProto,
    node: onnx.NodeProto,
    recipe: OpRecipe | None,
    request: Request,
    known: dict[str, Array],
    open_values: set[str],
    fixed: set[str],
    given: dict[str, AttributeValue],
) -> None:
    """Let the recipe of the operator choose what it reads and is not known, and attributes."""
    missing = [k for k, name in enumerate(node.input) if name in open_values]
    asked = [a for a in node.attribute if a.ref_attr_name and a.ref_attr_name not in given]
    asked = [a for a in asked if a.ref_attr_name in function.attribute]
    if not missing and not asked:
        return
    if node.op_type == "Constant" and not missing:
        for attribute in asked:
            given[attribute.ref_attr_name] = _ONES.get(attribute.type, 1)
        return
    if recipe is None:
        raise NoSample(f"nothing says what {node.op_type} of the definition reads")
    own = [attribute for attribute in node.attribute if not attribute.ref_attr_name]
    settled: dict[str, Any] = dict(call_attributes(own))
    for attribute in node.attribute:
        if attribute.ref_attr_name in given:
            settled[attribute.name] = given[attribute.ref_attr_name]
    at = next((k for k, name in enumerate(node.input) if name in known), None)
    shape = known[node.input[at]].shape if at is not None else request.shape
    try:
        sample = recipe.build(
            Request(np.dtype(np.float32), request.rng, shape, attributes=settled)
        )  # fmt: skip
    except (ValueError, IndexError) as error:
        raise NoSample(f"{node.op_type} has no instance on a tensor of shape {shape}") from error
    for k in missing:
        name = node.input[k]
        open_values.discard(name)
        array = sample.inputs[k] if k < len(sample.inputs) else None
        if recipe.is_elementary and shape is not None and at is not None:
            array = Request(np.dtype(np.float32), request.rng).values(shape)
        if array is not None:
            known[name] = array
            fixed.update((name,) if k in sample.constants else ())
    for attribute in asked:
        value = sample.attributes.get(attribute.name)
        if value is not None:
            given[attribute.ref_attr_name] = tuple(value) if isinstance(value, list) else value


def _recipe_of(node: onnx.NodeProto, functions: Functions) -> OpRecipe | None:
    if node.domain in ("", "ai.onnx"):
        return RECIPES.get(node.op_type)
    return foreign_recipe(foreign_name(node.domain, node.op_type), functions)


def _of_kind(value: AttributeValue, kind: int | None) -> AttributeValue:
    """The value as the attribute has it: rules write whole numbers without a point."""
    if kind == onnx.AttributeProto.FLOAT and isinstance(value, int):
        return float(value)
    return value


def _bound(
    node: onnx.NodeProto,
    given: Mapping[str, AttributeValue],
    defaults: Mapping[str, onnx.AttributeProto],
) -> onnx.NodeProto:
    """The node with the attributes of the call put in."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    for attribute in node.attribute:
        name = attribute.ref_attr_name
        if not name:
            made.attribute.append(attribute)
        elif name in given:
            value = given[name]
            made.attribute.append(
                helper.make_attribute(
                    attribute.name, list(value) if isinstance(value, tuple) else value
                )
            )
        elif name in defaults:
            made.attribute.append(defaults[name])
            made.attribute[-1].name = attribute.name
    return made


def _computed(
    node: onnx.NodeProto, inputs: Mapping[str, Array], opset: int, functions: Functions
) -> list[Array]:
    """What one node gives, by ONNX's own evaluator."""
    from onnx.reference import ReferenceEvaluator

    graph = helper.make_graph(
        [node], "one",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
         for n, a in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in node.output],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    if node.domain:
        add_functions(model, functions)
    try:
        found: Any = ReferenceEvaluator(written_out(model)).run(None, dict(inputs))
    except Exception as error:  # its operators raise whatever numpy raises
        text = " ".join(str(error).split())[:200]
        raise NoSample(f"{node.op_type} of the definition does not compute: {text}") from error
    return [np.asarray(value) for value in found]


def _typed(array: Array, request: Request) -> Array:
    return array.astype(request.dtype) if array.dtype.kind == "f" else array

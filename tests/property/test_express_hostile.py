"""Damaged nodes: whatever a model says, the answer is a graph or a Rejection, never a crash."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import onnx
import pytest

from benchmarks.onnx_coverage import Case, frozen_node, node_cases
from worker.compiler.frontend.express import express_region, rejection
from worker.compiler.rejection import Rejection

INTEGERS = (-(2**63), -3, -1, 0, 1, 2, 7, 2**31, 2**63 - 1)
REALS = (float("nan"), float("inf"), float("-inf"), 0.0, -1.0, 1e38)


@pytest.fixture(scope="module")
def cases() -> tuple[Case, ...]:
    """Every third case of operators that take tensors."""
    return node_cases()[::3]


def damaged(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """The model with one thing changed."""
    broken = onnx.ModelProto()
    broken.CopyFrom(model)
    node = broken.graph.node[0]
    kind = rng.randrange(5)
    if kind == 0 and node.input:
        node.input[rng.randrange(len(node.input))] = ""
    elif kind == 1 and node.input:
        del node.input[-1]
    elif kind == 2 and node.attribute:
        _damage_attribute(node.attribute[rng.randrange(len(node.attribute))], rng)
    elif kind == 3 and broken.graph.input:
        shape = broken.graph.input[0].type.tensor_type.shape
        dims = [d.dim_value for d in shape.dim]
        rng.shuffle(dims)
        del shape.dim[:]
        for extent in dims[rng.randrange(2) :]:
            shape.dim.add(dim_value=extent)
    elif broken.graph.input:
        tensor = rng.choice(list(broken.graph.input)).type.tensor_type
        tensor.elem_type = rng.choice([1, 2, 3, 7, 8, 9, 10, 11, 16, 17])
    return broken


def _damage_attribute(attribute: onnx.AttributeProto, rng: random.Random) -> None:
    match attribute.type:
        case onnx.AttributeProto.INT:
            attribute.i = rng.choice(INTEGERS)
        case onnx.AttributeProto.FLOAT:
            attribute.f = rng.choice(REALS)
        case onnx.AttributeProto.STRING:
            attribute.s = rng.choice([b"", b"nonsense", "ü".encode()])
        case onnx.AttributeProto.INTS:
            if attribute.ints and rng.random() < 0.7:
                attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(INTEGERS)
            else:
                attribute.ints.append(rng.choice(INTEGERS))
        case onnx.AttributeProto.FLOATS:
            attribute.floats.append(rng.choice(REALS))


def variants(case: Case, rng: random.Random) -> Iterator[tuple[Any, int]]:
    for _ in range(3):
        model = damaged(case.model, rng)
        opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        yield frozen_node(model, case.inputs), rng.choice([opset, 9, 13, 18, 21])


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.campaign)])
def test_damaged_nodes_are_expressed_or_refused(cases: tuple[Case, ...], seed: int) -> None:
    rng = random.Random(seed)
    refused = 0
    for case in cases:
        for node, opset in variants(case, rng):
            why = rejection(node, opset)
            if why is None:
                express_region([node], [o.name for o in node.outputs if o.name], opset)
            else:
                assert isinstance(why, Rejection)
                assert why.sentence
                refused += 1
    assert refused > 100

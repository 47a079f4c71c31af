"""Every gradient rule against two oracles that know nothing of it.

The loss is  <s, f(w)>  for a seeded s, so that a step's gradients are  J^T s.  Where f is linear in
w, all values are small integers and  <J^T s, d> = <s, f(d) - f(0)>  must hold to the last bit; else
central differences in float64 must agree.  Both run the forward model in ONNX's own evaluator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from gradient_cases import LINEAR, SMOOTH, Case
from onnx import helper
from recurrent_cases import RECURRENT
from training_steps import Array, model_of, run, step_of, with_parameters


def measured(case: Case) -> tuple[list[onnx.NodeProto], str]:
    """The nodes of a case, and a scalar <s, f>."""
    last = case.nodes[-1].output[0] if case.output is None else case.output
    nodes = [
        *case.nodes,
        helper.make_node("Mul", [last, "s"], ["scaled"], name="scaled"),
        helper.make_node("ReduceSum", ["scaled"], ["z"], name="z", keepdims=0),
    ]
    return nodes, last


def shape_of(case: Case, last: str) -> Sequence[int]:
    model = model_of(case.nodes, case.inputs, {**case.parameters, **case.constants}, last)
    return run(model, case.inputs)[last].shape


def built(case: Case, rng: np.random.Generator) -> tuple[onnx.ModelProto, dict[str, Array]]:
    nodes, last = measured(case)
    shape = shape_of(case, last)
    s = rng.integers(-3, 4, shape).astype(np.float64)
    inputs = {**case.inputs, "s": s}
    parameters = {**case.parameters, **case.constants}
    return model_of(nodes, inputs, parameters, "z", known={last: shape}), inputs


def gradients(
    model: onnx.ModelProto, case: Case, inputs: Mapping[str, Array], folder: Path
) -> dict[str, Array]:
    """J^T s: half the square of 0.5 away from the target has the slope 1."""
    options: dict[str, Any] = {"loss": "mse", "optimizer": "none"}
    options["freeze"] = [
        name for name, value in case.constants.items() if value.dtype == np.float64
    ]
    step, proto = step_of(model, folder, **options)
    target = run(model, inputs)["z"] - 0.5
    made = run(proto, {**inputs, **case.parameters, "target": target})
    return {parameter: made[output] for parameter, output in step.gradients}


@pytest.mark.parametrize("case", LINEAR, ids=lambda case: case.name)
def test_a_linear_operators_gradient_is_its_adjoint(case: Case, tmp_path: Path) -> None:
    rng = np.random.default_rng(case.seed)
    model, inputs = built(case, rng)
    found = gradients(model, case, inputs, tmp_path)
    assert sorted(found) == sorted(case.parameters)
    for name, value in case.parameters.items():
        direction = rng.integers(-3, 4, value.shape).astype(np.float64)
        there = run(with_parameters(model, {name: direction}), inputs)["z"]
        nowhere = run(with_parameters(model, {name: np.zeros_like(value)}), inputs)["z"]
        assert found[name].shape == value.shape
        assert np.vdot(found[name], direction) == there - nowhere, name


@pytest.mark.parametrize("case", (*SMOOTH, *RECURRENT), ids=lambda case: case.name)
def test_a_smooth_operators_gradient_is_its_slope(case: Case, tmp_path: Path) -> None:
    rng = np.random.default_rng(case.seed)
    model, inputs = built(case, rng)
    found = gradients(model, case, inputs, tmp_path)
    assert sorted(found) == sorted(case.parameters)
    for name, value in case.parameters.items():
        for _ in range(10):
            direction = rng.standard_normal(value.shape)
            step = 1e-5
            sides = [
                run(with_parameters(model, {name: value + sign * step * direction}), inputs)["z"]
                for sign in (1, -1)
            ]
            slope = (sides[0] - sides[1]) / (2 * step)
            size = np.abs(found[name] * direction).sum() + 1
            assert abs(np.vdot(found[name], direction) - slope) <= 1e-7 * size, name


def test_every_rule_has_a_case() -> None:
    from worker.compiler.train.rules.registry import REWRITTEN, RULES
    from worker.compiler.train.write_out import WRITTEN_OUT

    tried = {node.op_type for case in (*LINEAR, *SMOOTH, *RECURRENT) for node in case.nodes}
    assert sorted({*RULES, *REWRITTEN, *WRITTEN_OUT} - tried) == []

"""Corrections against brute force and ONNX Runtime."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir
import pytest
from quantize_nets import (
    I8,
    NETS,
    U8,
    Net,
    built,
    calibrated,
    inputs,
    loaded,
    noise_db,
    placed,
    run_model,
    serialised,
)

from worker.compiler.errors import OptionError
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.machine.machine import Conversion
from worker.compiler.quantization import DEFAULT, Correction, Quantization, Ranges
from worker.compiler.quantize.convert import convert
from worker.compiler.quantize.measured import convert_as_asked
from worker.compiler.quantize.rounding import rounded, second_moments
from worker.compiler.quantize.walk import Walk
from worker.compiler.quantize.windows import matrix_of, rows_of, weights_of

ALL = Quantization(corrections=tuple(Correction))


def _error(integers: npt.NDArray[Any], weights: npt.NDArray[Any], moments: Any) -> float:
    e = integers - weights
    return float(np.einsum("ij,jk,ik->", e, moments, e))


# rounding


@pytest.mark.parametrize("seed", range(8))
def test_rounding_is_near_the_best_of_all_and_never_worse_than_the_nearest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.uniform(-3, 3, (1, 7))
    rows = rng.standard_normal((200, 2)) @ rng.standard_normal((2, 7))
    moments = second_moments(rows)
    found = rounded(weights, moments, -127, 127)
    nearest = np.rint(weights)
    every = itertools.product(*((np.floor(w) - 1, np.floor(w), np.ceil(w), np.ceil(w) + 1)
                                for w in weights[0]))  # fmt: skip
    best = min(_error(np.array([way]), weights, moments) for way in every)
    assert best - 1e-9 <= _error(found, weights, moments) <= _error(nearest, weights, moments)
    assert _error(found, weights, moments) <= 0.5 * (_error(nearest, weights, moments) + best)


def test_integers_stay_in_their_range_and_dead_elements_stay_nearest() -> None:
    rng = np.random.default_rng(0)
    weights = rng.uniform(-200, 200, (3, 5))
    rows = rng.standard_normal((50, 5))
    found = rounded(weights, second_moments(rows), -127, 127)
    assert np.abs(found).max() <= 127
    nothing = rounded(weights, np.zeros((5, 5)), -127, 127)
    assert np.array_equal(nothing, np.clip(np.rint(weights), -127, 127))


def test_few_rows_say_little_of_correlations() -> None:
    rows = np.random.default_rng(0).standard_normal((4, 400))
    moments = second_moments(rows)
    beside = moments - np.diag(np.diagonal(moments))
    assert np.abs(beside).max() < 0.05 * np.diagonal(moments).min()


# what weights meet


@pytest.mark.parametrize(
    ("attributes", "shape", "kernel"),
    [
        ({}, (2, 4, 9, 8), (6, 4, 3, 2)),
        ({"group": 2, "strides": [2, 1], "pads": [1, 0, 2, 1]}, (2, 4, 9, 8), (6, 2, 3, 3)),
        ({"group": 4, "dilations": [2, 2]}, (1, 4, 9, 8), (4, 1, 3, 3)),
        ({"pads": [2, 1]}, (2, 3, 11), (5, 3, 4)),
    ],
    ids=["plain", "groups", "depthwise", "one-dimensional"],
)
def test_rows_times_weights_are_the_convolution(
    tmp_path: Path, attributes: dict[str, Any], shape: tuple[int, ...], kernel: tuple[int, ...]
) -> None:
    net = Net(*shape)
    model = loaded(net.model(net.op("Conv", "x", net.weights(*kernel), **attributes)), tmp_path)
    batch = inputs(model)[0]
    node = next(iter(model.ir.graph))
    weights = node.inputs[1].const_value.numpy()  # type: ignore[union-attr]
    y = run_model(model, batch)["v0"]
    for most in (10_000, 7):
        operand, result = rows_of(node, batch["x"], y, weights, most)
        matrix = matrix_of(node, weights).reshape(len(operand), -1, operand.shape[2])
        made = np.concatenate([x @ w.T for x, w in zip(operand, matrix, strict=True)], axis=1)
        np.testing.assert_allclose(made, result, atol=1e-5)
        assert len(result) <= most
    assert np.array_equal(weights_of(node, matrix_of(node, weights), weights), weights)


@pytest.mark.parametrize("name", list(NETS))
def test_a_walk_gives_every_value_of_a_run(tmp_path: Path, name: str) -> None:
    model = loaded(built(NETS[name]), tmp_path)
    values = [node.outputs[0] for node in model.ir.graph]
    batches = inputs(model, 2)
    walk = Walk(model.ir, values, batches)
    clone = model.ir.clone()
    made = [node.outputs[0] for node in clone.graph]
    clone.graph.outputs.clear()
    clone.graph.outputs.extend(made)
    whole = OnnxModel(clone, model.name, model.sha256, model.opset)
    for k, value in enumerate(values):
        for found, batch in zip(walk.step(k), batches, strict=True):
            assert np.array_equal(found, run_model(whole, batch)[value.name or ""])


# whole models


def _correlated(model: OnnxModel, count: int, seed: int) -> list[dict[str, Any]]:
    """Smooth images, as samples are: neighbours are alike, and their mean is not zero."""
    rng = np.random.default_rng(seed)
    found = []
    for batch in inputs(model, count, seed):
        x = np.cumsum(np.cumsum(batch["x"], axis=-1), axis=-2) * 0.2 + rng.uniform(0.5, 1.0)
        found.append({"x": x.astype(np.float32)})
    return found


@pytest.mark.parametrize("choice", [I8, U8], ids=["i8", "u8"])
@pytest.mark.parametrize("name", ["chain", "residual", "depthwise", "head", "attention"])
def test_corrections_keep_more_of_fresh_samples(
    tmp_path: Path, name: str, choice: Conversion
) -> None:
    model = loaded(built(NETS[name]), tmp_path)
    seen, fresh = _correlated(model, 8, 1), _correlated(model, 16, 2)
    places = placed(model)
    kept = []
    for chosen in (DEFAULT, ALL):
        found = convert(
            model, places, {"npu": choice}, calibrated(model, seen), chosen, lambda: seen
        )
        (output,) = [o.name or "" for o in model.ir.graph.outputs]
        exact, rough = (
            np.concatenate([run_model(m, b)[output].ravel() for b in fresh])
            for m in (model, found.model)
        )
        kept.append(noise_db(exact, rough))
    assert kept[1] > kept[0] - 0.2
    assert [c.node for c in found.quantised.corrected]


def test_a_bias_takes_the_mean_error_upon_itself(tmp_path: Path) -> None:
    """One convolution of a constant: its whole error is mean, and gone."""
    net = Net(1, 3, 8, 8)
    model = loaded(net.model(net.conv("x", 3, 4)), tmp_path)
    batches = [{"x": np.full((1, 3, 8, 8), 0.7371 * k, np.float32)} for k in (1, 1, 1)]
    errors = []
    for corrections in ((), (Correction.BIAS,)):
        chosen = Quantization(corrections=corrections)
        found = convert(
            model, placed(model), {"npu": I8}, calibrated(model, batches), chosen, lambda: batches
        )
        nodes = {n.name: n for n in found.model.ir.graph}
        conv = nodes["conv0"].outputs[0]
        inner = Walk(found.model.ir, [conv], batches).step(0)[0]
        exact = run_model(model, batches[0])["v0"]
        errors.append(np.abs((inner - exact).mean(axis=(0, 2, 3))).max())
    assert errors[1] < 1e-4 < errors[0]


def test_the_same_samples_give_the_same_bytes_and_change_constants_only(tmp_path: Path) -> None:
    model = loaded(built(NETS["residual"]), tmp_path)
    batches = _correlated(model, 4, 1)

    def made(chosen: Quantization) -> OnnxModel:
        return convert(
            model, placed(model), {"npu": I8}, calibrated(model, batches), chosen, lambda: batches
        ).model

    assert serialised(made(ALL)) == serialised(made(ALL))
    plain, corrected = made(DEFAULT), made(ALL)
    assert [n.name for n in plain.ir.graph] == [n.name for n in corrected.ir.graph]
    assert serialised(plain) != serialised(corrected)


def test_weights_of_several_operators_stay_and_the_report_says_so(tmp_path: Path) -> None:
    net = Net(1, 3, 8, 8)
    shared = net.weights(3, 3, 3, 3)
    y = net.op("Conv", "x", shared, pads=[1, 1, 1, 1])
    model = loaded(net.model(net.op("Conv", y, shared, pads=[1, 1, 1, 1])), tmp_path)
    batches = _correlated(model, 4, 1)
    found = convert(
        model, placed(model), {"npu": I8}, calibrated(model, batches), ALL, lambda: batches
    )
    assert ("NOT_CORRECTED", "conv0, conv1: its weights serve several operators") in found.warnings


# measured choices


def test_auto_takes_the_ranges_that_keep_most(tmp_path: Path) -> None:
    net = Net(1, 3, 16, 16)
    model = loaded(net.model(net.conv("x", 3, 4)), tmp_path)
    batches = inputs(model, 8)
    for batch in batches:
        batch["x"][0, 0, 0, 0] = 60.0
    found = convert_as_asked(
        model, placed(model), {"npu": I8}, lambda: batches, Quantization(ranges=Ranges.AUTO)
    )
    best = {}
    for ranges in (r for r in Ranges if r is not Ranges.AUTO):
        other = convert_as_asked(
            model, placed(model), {"npu": I8}, lambda: batches, Quantization(ranges=ranges)
        )
        rows = [(run_model(model, b)["v0"], run_model(other.model, b)["v0"]) for b in batches]
        best[ranges] = noise_db(*(np.stack(side) for side in zip(*rows, strict=True)))
    assert found.quantised.ranges is not None
    assert best[found.quantised.ranges] > max(best.values()) - 0.5


def _least_db(model: OnnxModel, other: onnx_ir.Model, batches: list[dict[str, Any]]) -> float:
    rounded_model = OnnxModel(other, model.name, model.sha256, model.opset)
    rows = [(run_model(model, b), run_model(rounded_model, b)) for b in batches]
    return min(
        noise_db(*(np.stack([row[k][o.name or ""] for row in rows]) for k in (0, 1)))
        for o in model.ir.graph.outputs
    )


def test_the_operators_that_cost_most_stay_float_until_the_budget_holds(tmp_path: Path) -> None:
    model = loaded(built(NETS["residual"]), tmp_path)
    batches = inputs(model, 8)

    def found(least: float | None) -> Any:
        return convert_as_asked(
            model, placed(model), {"npu": I8}, lambda: batches, Quantization(min_sqnr=least)
        )

    free = found(None)
    kept = _least_db(model, free.model.ir, batches)
    assert found(kept - 1.0).quantised.sensitivities == ()
    bound = found(kept + 3.0)
    assert _least_db(model, bound.model.ir, batches) >= kept + 3.0
    left = bound.quantised.sensitivities
    assert 0 < len(left) < len(free.converted_nodes)
    assert [row.sqnr_db for row in left] == sorted(row.sqnr_db for row in left)
    assert not {row.node for row in left} & set(bound.converted_nodes)
    assert "KEPT_FLOAT" in dict(bound.warnings)
    nothing = found(150.0)
    assert nothing.converted_nodes == ()


def test_named_nodes_stay_float_and_unknown_names_are_refused(tmp_path: Path) -> None:
    model = loaded(built(NETS["chain"]), tmp_path)
    batches = inputs(model, 2)

    def asked(**options: Any) -> Any:
        return convert_as_asked(
            model, placed(model), {"npu": I8}, lambda: batches, Quantization(**options)
        )

    assert "conv2" not in asked(keep_float=("conv2",)).converted_nodes
    with pytest.raises(OptionError, match="'conv9'") as refused:
        asked(keep_float=("conv9",))
    assert refused.value.place.pointer == "/options/quantization/keep_float"


def test_a_model_of_integers_stays_as_it_is(tmp_path: Path) -> None:
    net = Net(1, 4, dtype=onnx.TensorProto.FLOAT)
    quantised = [f"q{k}" for k in range(3)]
    net.nodes.append(onnx.helper.make_node("DynamicQuantizeLinear", ["x"], quantised, name="dyn"))
    net.constants.append(
        onnx.numpy_helper.from_array(np.arange(12, dtype=np.int8).reshape(4, 3), "w")
    )
    product = net.op("Cast", net.op("MatMulInteger", "q0", "w", "q2"), to=1)
    model = loaded(net.model(net.op("Relu", net.op("Mul", product, "q1"))), tmp_path)
    found = convert_as_asked(
        model, placed(model), {"npu": I8}, lambda: inputs(model, 2), Quantization()
    )
    assert found.model is model
    assert "computes in integers itself (MatMulInteger)" in dict(found.warnings)["NOT_CONVERTED"]


def test_options_without_integers_are_refused(tmp_path: Path) -> None:
    model = loaded(built(NETS["chain"]), tmp_path)
    with pytest.raises(OptionError, match="nothing is quantised") as refused:
        convert_as_asked(model, placed(model), {}, lambda: inputs(model), ALL)
    assert refused.value.place.pointer == "/options/quantization"

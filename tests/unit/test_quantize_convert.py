"""Conversion of small nets: form, names, numerics, boundaries, and what is left alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
import pytest
from onnx import TensorProto, numpy_helper
from quantize_nets import (
    BF16,
    F16,
    I8,
    NETS,
    U8,
    Net,
    built,
    calibrated,
    inputs,
    loaded,
    noise_db,
    output_sqnr,
    placed,
    run_model,
    serialised,
)

from worker.compiler.errors import ModelError, PassContractError
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.qdq import cluster_rejection, find_clusters
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import Conversion
from worker.compiler.partition.plan import HOST
from worker.compiler.quantization import DEFAULT, Quantization, Ranges
from worker.compiler.quantize.boundary import BoundaryKind, Converted
from worker.compiler.quantize.convert import convert
from worker.compiler.quantize.insert import INSERTED


def _whole(model: OnnxModel, choice: Conversion, count: int = 2) -> Converted:
    """Everything on one target, calibrated on the inputs that are measured later."""
    return convert(model, placed(model), {"npu": choice}, calibrated(model, inputs(model, count)))


def _ops(model: OnnxModel) -> Counter[str]:
    return Counter(node.op_type for node in model.ir.graph)


def _check(model: OnnxModel) -> None:
    onnx.checker.check_model(onnx.load_model_from_string(serialised(model)), full_check=True)
    for node in model.ir.graph:
        for value in node.outputs:
            if value.name:
                assert value.dtype is not None
                assert model.is_static(value)


@pytest.mark.parametrize("choice", [I8, U8], ids=["i8", "u8"])
@pytest.mark.parametrize("name", list(NETS))
def test_converted_nets_run_and_stay_close(tmp_path: Path, name: str, choice: Conversion) -> None:
    model = loaded(built(NETS[name]), tmp_path)
    found = _whole(model, choice)
    _check(found.model)
    assert found.converted_nodes
    for batch in inputs(model, 2):
        exact, quantised = run_model(model, batch), run_model(found.model, batch)
        assert list(exact) == list(quantised)
        for key, want in exact.items():
            assert quantised[key].dtype == want.dtype
            assert noise_db(want, quantised[key]) > 30.0


@pytest.mark.parametrize("name", list(NETS))
def test_every_converted_core_is_an_integer_cluster(tmp_path: Path, name: str) -> None:
    model = loaded(built(NETS[name]), tmp_path)
    found = _whole(model, I8)
    nodes = list(found.model.ir.graph)
    clusters = find_clusters(nodes, [v.name or "" for v in found.model.ir.graph.outputs])
    assert [r for c in clusters if (r := cluster_rejection(nodes, c, 21))] == []
    covered = {nodes[k].name for cluster in clusters for k in cluster.nodes}
    assert set(found.converted_nodes) <= covered


@pytest.mark.parametrize("choice", [I8, U8, F16], ids=["i8", "u8", "f16"])
def test_the_users_nodes_and_outputs_keep_names_and_order(
    tmp_path: Path, choice: Conversion
) -> None:
    model = loaded(built(NETS["residual"]), tmp_path)
    before = serialised(model)
    found = _whole(model, choice)
    assert serialised(model) == before
    kept = [n for n in found.model.ir.graph if INSERTED not in n.metadata_props]
    assert [n.name for n in kept] == [n.name for n in model.ir.graph]
    inserted = [n for n in found.model.ir.graph if INSERTED in n.metadata_props]
    assert all(n.metadata_props[INSERTED] == "1" for n in inserted)
    owners = {n.name for n in model.ir.graph}
    assert all((n.name or "").rsplit("/", 1)[0] in owners for n in inserted)
    names = [n.name for n in found.model.ir.graph]
    assert len(set(names)) == len(names)
    assert [v.name for v in found.model.ir.graph.outputs] == [
        v.name for v in model.ir.graph.outputs
    ]
    assert [v.dtype for v in found.model.ir.graph.outputs] == [
        v.dtype for v in model.ir.graph.outputs
    ]


def test_one_quantisation_per_value_and_one_dequantisation_per_reader(tmp_path: Path) -> None:
    model = loaded(built(NETS["residual"]), tmp_path)
    found = _whole(model, I8)
    # values: x, three results of conv(+relu), the sum: 5 Q.  DQ: readers conv, conv, add, conv,
    # add, output = 6; weights and biases of three convs = 6
    assert _ops(found.model) == Counter(
        {"Conv": 3, "Relu": 3, "Add": 1, "QuantizeLinear": 5, "DequantizeLinear": 12}
    )


def test_an_activation_stays_in_the_cluster_of_its_convolution(tmp_path: Path) -> None:
    model = loaded(built(NETS["depthwise"]), tmp_path)
    for node in _whole(model, I8).model.ir.graph:
        if node.op_type == "Clip":
            source = node.inputs[0]
            assert source is not None
            producer = source.producer()
            assert producer is not None
            assert producer.op_type == "Conv"


def test_weights_are_i8_per_channel_and_biases_count_the_accumulator(tmp_path: Path) -> None:
    net = Net(1, 3, 8, 8)
    conv = net.conv("x", 3, 4)
    proto = net.model(conv)
    weights, bias = (numpy_helper.to_array(t) for t in reversed(proto.graph.initializer))
    model = loaded(proto, tmp_path)
    graph = onnx.load_model_from_string(serialised(_whole(model, I8).model)).graph
    arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    made = {n.output[0]: n for n in graph.node}
    (core,) = (n for n in graph.node if n.op_type == "Conv")
    data, w, b = (made[name] for name in core.input)
    assert (w.attribute[0].name, w.attribute[0].i) == ("axis", 0)
    scale = np.abs(weights).max(axis=(1, 2, 3)) / 127
    np.testing.assert_allclose(arrays[w.input[1]], scale, rtol=1e-6)
    assert arrays[w.input[0]].dtype == np.int8
    assert np.abs(arrays[w.input[0]]).max() == 127
    step = arrays[data.input[1]] * arrays[w.input[1]]
    assert arrays[b.input[0]].dtype == np.int32
    np.testing.assert_array_equal(arrays[b.input[1]], step)
    np.testing.assert_array_equal(arrays[b.input[0]], np.rint(bias.astype(np.float64) / step))


def test_replaced_float_weights_are_gone(tmp_path: Path) -> None:
    model = loaded(built(NETS["chain"]), tmp_path)
    found = _whole(model, I8)
    floats = [
        v.name
        for v in found.model.ir.graph.initializers.values()
        if v.const_value is not None
        and v.const_value.dtype.is_floating_point()
        and not (v.name or "").endswith("/scale")
    ]
    assert floats == []


def test_per_channel_scales_beat_one_scale_where_channels_differ(tmp_path: Path) -> None:
    net = Net(1, 3, 8, 8)
    spread = np.array([1.0, 0.1, 0.01, 0.001])[:, None, None, None]
    proto = net.model(net.op("Conv", "x", net.weights(4, 3, 3, 3, spread=spread)))
    want = numpy_helper.to_array(proto.graph.initializer[0])
    model = loaded(proto, tmp_path)
    decibels = []
    for per_channel in (True, False):
        found = _whole(model, replace(I8, per_channel=per_channel))
        arrays = {
            t.name: numpy_helper.to_array(t)
            for t in onnx.load_model_from_string(serialised(found.model)).graph.initializer
        }
        scale = arrays["c0/scale"]
        assert scale.shape == ((4,) if per_channel else ())
        rows = arrays["c0/quantized"] * (scale[:, None, None, None] if per_channel else scale)
        decibels.append([noise_db(want[k], rows[k]) for k in range(4)])
    assert decibels[0][0] == pytest.approx(decibels[1][0], abs=3.0)
    assert min(decibels[0]) > 35.0
    assert decibels[1][3] < 10.0


@pytest.mark.parametrize("name", ["chain", "residual", "head"])
def test_power_of_two_scales_everywhere(tmp_path: Path, name: str) -> None:
    model = loaded(built(NETS[name]), tmp_path)
    choice = replace(I8, symmetric=True, power_of_two=True, per_channel=False)
    found = _whole(model, choice)
    for key, value in found.model.ir.graph.initializers.items():
        if key.endswith("/scale") and "zero" not in key:
            assert value.const_value is not None
            mantissa, _ = np.frexp(value.const_value.numpy())
            assert (mantissa == 0.5).all()
    batch = inputs(model, 2)[0]
    exact, quantised = run_model(model, batch), run_model(found.model, batch)
    assert all(noise_db(exact[k], quantised[k]) > 20.0 for k in exact)


def test_moved_data_keeps_its_parameters(tmp_path: Path) -> None:
    net = Net(1, 3, 8, 8)
    y = net.op("MaxPool", net.conv("x", 3, 8), kernel_shape=[2, 2], strides=[2, 2])
    y = net.op("Reshape", net.op("Transpose", y, perm=[0, 2, 3, 1]),
               net.constant(np.array([1, -1], np.int64)))  # fmt: skip
    model = loaded(net.model(y), tmp_path)
    scales = {b.scale for b in _whole(model, I8).boundaries if b.kind is BoundaryKind.DEQUANTIZE}
    graph = _whole(model, I8).model.ir.graph
    made = set()
    for node in graph:
        if node.op_type == "QuantizeLinear" and "v" in (node.inputs[0].name or ""):  # type: ignore[union-attr]
            scale = node.inputs[1]
            assert scale is not None and scale.const_value is not None
            made.add(float(scale.const_value.numpy()))
    assert len(made) == 1
    assert scales == made


def test_joined_inputs_share_a_scale_unless_it_costs_more_than_a_bit(tmp_path: Path) -> None:
    model = loaded(built(NETS["joined"]), tmp_path)
    graph = _whole(model, I8).model.ir.graph
    (concat,) = (n for n in graph if n.op_type == "Concat")
    scales = []
    for value in (*concat.inputs, graph.initializers[f"{concat.outputs[0].name}/scale"]):
        assert value is not None
        producer = value.producer()
        source = value if producer is None else producer.inputs[1]
        assert source is not None and source.const_value is not None
        scales.append(float(source.const_value.numpy()))
    stem, side, wide, result = scales
    assert wide == result
    assert stem < result / 2 and side < result / 2


def test_idle_rearrangements_stay_float(tmp_path: Path) -> None:
    net = Net(1, 3, 8, 8)
    y = net.op("Transpose", net.op("Softmax", "x", axis=1), perm=[0, 2, 3, 1])
    model = loaded(net.model(net.op("Softmax", y, axis=1)), tmp_path)
    found = convert(model, placed(model), {"npu": I8}, lambda names: pytest.fail(str(names)))
    assert found.model is model
    assert found.converted_nodes == ()
    assert {w[0] for w in found.warnings} == {"NOT_CONVERTED"}
    assert any("Softmax has no integer form" in w[1] for w in found.warnings)


@pytest.mark.parametrize("op", ["Reciprocal", "Log", "Div"])
def test_operators_singular_at_zero_stay_float(tmp_path: Path, op: str) -> None:
    net = Net(1, 3, 8, 8)
    y = net.op("Sigmoid", net.conv("x", 3, 3))
    y = net.op("Div", "x", y) if op == "Div" else net.op(op, y)
    model = loaded(net.model(y), tmp_path)
    found = _whole(model, I8)
    assert f"{op.lower()}2" not in found.converted_nodes
    assert any(f"{op} has no integer form" in text for _, text in found.warnings)


def test_a_mask_is_not_given_a_scale(tmp_path: Path) -> None:
    net = Net(1, 4, 4)
    mask = np.triu(np.full((4, 4), np.finfo(np.float32).min, np.float32), 1)
    scores = net.op("MatMul", "x", net.weights(4, 4))
    y = net.op("MatMul", net.op("Softmax", net.op("Add", scores, net.constant(mask))),
               net.weights(4, 4))  # fmt: skip
    model = loaded(net.model(y), tmp_path)
    for choice, reason in ((I8, "a mask has no useful scale"), (F16, "beyond f16's 65504")):
        found = _whole(model, choice)
        assert "add1" not in found.converted_nodes
        assert {"matmul0", "matmul3"} <= set(found.converted_nodes)
        assert any(reason in text and "add1" in text for _, text in found.warnings)
        batch = inputs(model, 2)[0]
        assert noise_db(*(run_model(m, batch)["v3"] for m in (model, found.model))) > 30.0


def test_values_that_are_not_finite_are_refused_with_their_node(tmp_path: Path) -> None:
    net = Net(1, 4)
    model = loaded(net.model(net.op("Sqrt", "x")), tmp_path)
    with pytest.raises(ModelError, match="sqrt0") as refused:
        _whole(model, I8)
    assert refused.value.code == "TW-CAL-004"
    assert refused.value.place.node == "sqrt0"


def test_constant_activations_and_zero_weights_convert(tmp_path: Path) -> None:
    net = Net(1, 3, 8, 8)
    dead = np.array([1.0, 0.0, 1e-30])[:, None, None, None]
    bias = net.constant(np.array([0.1, 0.25, -0.5]))
    y = net.op("Conv", "x", net.weights(3, 3, 3, 3, spread=dead), bias)
    zero = net.op("Mul", y, net.constant(np.zeros((1, 3, 1, 1))))
    model = loaded(net.model(y, zero), tmp_path)
    found = _whole(model, I8)
    batch = inputs(model, 2)[0]
    exact, quantised = run_model(model, batch), run_model(found.model, batch)
    assert not quantised["v1"].any()
    step = next(b.scale for b in found.boundaries if b.value == "v0")
    assert step is not None
    assert np.abs(exact["v0"] - quantised["v0"])[0, 1:].max() <= 0.51 * step


def test_boundaries_are_measured(tmp_path: Path) -> None:
    net = Net(1, 3, 8, 8)
    y = net.conv("x", 3, 4)
    model = loaded(net.model(net.op("Softmax", y, axis=1)), tmp_path)
    batches = inputs(model, 2)
    found = convert(model, placed(model), {"npu": I8}, calibrated(model, batches))
    enters, leaves = found.boundaries
    assert (enters.value, enters.producer_node, enters.kind) == ("x", "", BoundaryKind.QUANTIZE)
    assert (leaves.value, leaves.producer_node, leaves.kind) == (
        "v0", "conv0", BoundaryKind.DEQUANTIZE,
    )  # fmt: skip
    assert (enters.elements, enters.bytes_before, enters.bytes_after) == (192, 768, 192)
    assert (leaves.elements, leaves.bytes_before, leaves.bytes_after) == (256, 256, 1024)
    x = np.concatenate([b["x"].ravel() for b in batches])
    assert enters.scale is not None and enters.zero_point is not None
    rounded = np.clip(np.rint(x / np.float32(enters.scale)) + enters.zero_point, -128, 127)
    want = noise_db(x, (rounded - enters.zero_point) * np.float32(enters.scale))
    assert enters.sqnr_db == pytest.approx(want, abs=0.3)
    assert (enters.sqnr_reason, enters.dtype, enters.target) == ("", DType.I8, "npu")


def test_a_boundary_without_noise_says_so(tmp_path: Path) -> None:
    net = Net(1, 4)
    model = loaded(net.model(net.op("Relu", "x")), tmp_path)
    feeds = [{"x": np.array([[0.0, 0.0, 255.0, 17.0]], np.float32)}]
    found = convert(model, placed(model), {"npu": I8}, calibrated(model, feeds))
    assert {(b.sqnr_db, b.sqnr_reason) for b in found.boundaries} == {
        (None, "exact: the noise is zero")
    }


def test_a_percentile_clips_outliers_for_the_sake_of_the_rest(tmp_path: Path) -> None:
    net = Net(1, 3, 32, 32)
    model = loaded(net.model(net.conv("x", 3, 4)), tmp_path)
    batch = inputs(model)[0]
    batch["x"][0, 0, 0, 0] = 400.0
    noise = []
    clipped = Quantization(ranges=Ranges.PERCENTILE, percentile=98.0)
    for chosen in (DEFAULT, clipped):
        found = convert(model, placed(model), {"npu": I8}, calibrated(model, [batch]), chosen)
        exact, quantised = run_model(model, batch)["v0"], run_model(found.model, batch)["v0"]
        noise.append(float(np.median(np.abs(exact - quantised))))
    assert noise[1] < noise[0] / 5


def test_too_much_noise_is_a_warning(tmp_path: Path) -> None:
    model = loaded(built(NETS["chain"]), tmp_path)
    found = _whole(model, replace(I8, min_sqnr_db=60.0))
    noisy = [text for code, text in found.warnings if code == "LOW_SQNR"]
    assert len(noisy) == len(found.boundaries) == 2
    assert "asks for 60 dB" in noisy[0]
    assert not _whole(model, replace(I8, min_sqnr_db=10.0)).warnings


def test_a_model_in_qdq_form_stays_as_it_is(tmp_path: Path) -> None:
    model = loaded(built(NETS["residual"]), tmp_path)
    once = _whole(model, I8).model
    for choice in (I8, U8, F16, BF16):
        again = convert(once, placed(once), {"npu": choice}, lambda names: pytest.fail(str(names)))
        assert again.model is once
        assert again.boundaries == ()
        assert again.converted_nodes == ()


def test_a_partly_quantised_model_is_completed(tmp_path: Path) -> None:
    model = loaded(built(NETS["residual"]), tmp_path)
    rows = placed(model, ["npu"] * 4 + [HOST] * 3)
    batches = inputs(model, 2)
    half = convert(model, rows, {"npu": I8}, calibrated(model, batches)).model
    whole = convert(half, placed(half), {"npu": I8}, calibrated(half, batches))
    _check(whole.model)
    nodes = list(whole.model.ir.graph)
    clusters = find_clusters(nodes, [v.name or "" for v in whole.model.ir.graph.outputs])
    assert Counter(c.op_type for c in clusters) == Counter({"Conv": 3, "Add": 1})
    batch = batches[0]
    assert noise_db(*(run_model(m, batch)["v6"] for m in (model, whole.model))) > 30.0


@pytest.mark.parametrize("name", list(NETS))
def test_f16_regions_cast_at_their_edges(tmp_path: Path, name: str) -> None:
    model = loaded(built(NETS[name]), tmp_path)
    found = _whole(model, F16)
    _check(found.model)
    assert found.converted_nodes == tuple(n.name for n in model.ir.graph)
    assert _ops(found.model)["Cast"] == 2
    assert [b.kind for b in found.boundaries] == [BoundaryKind.CAST] * 2
    assert all(b.scale is None and (b.sqnr_db or 0) > 65 for b in found.boundaries)
    measured, *_ = output_sqnr(model, found.model, inputs(model, 2))
    assert measured.db is not None and measured.db > 50.0


def test_operators_without_a_runnable_form_stay_as_they_are(tmp_path: Path) -> None:
    net = Net(4, 4)
    index = net.constant(np.zeros((4, 4), np.int64))
    y = net.op("ScatterElements", net.op("Relu", "x"), index, "x", reduction="add")
    model = loaded(net.model(y), tmp_path)
    found = _whole(model, F16)
    assert found.converted_nodes == ("relu0",)
    assert any("scattered" in text for _, text in found.warnings)
    assert run_model(found.model, inputs(model)[0])["v1"].shape == (4, 4)

    wide = Net(1, 3, 8, 8)
    scales = wide.constant(np.array([1, 1, 2, 2], np.float32))
    grown = wide.op("Resize", wide.conv("x", 3, 4), "", scales, mode="linear")
    model = loaded(wide.model(wide.conv(grown, 4, 4)), tmp_path)
    found = _whole(model, I8)
    assert found.converted_nodes == ("conv0", "conv2")
    assert any("Resize has no integer form" in text for _, text in found.warnings)


def test_a_value_read_inside_a_body_keeps_its_name(tmp_path: Path) -> None:
    net = Net(1, 3, 8, 8)
    y = net.conv("x", 3, 4)
    net.op("ReduceSum", "x", keepdims=0)
    net.op("Greater", "v1", net.constant(np.array(0.0)))

    def body(op: str) -> onnx.GraphProto:
        result = onnx.helper.make_tensor_value_info(f"{op}_y", TensorProto.FLOAT, [1, 4, 8, 8])
        return onnx.helper.make_graph(
            [onnx.helper.make_node(op, [y], [f"{op}_y"])], op, [], [result]
        )

    out = net.op("If", "v2", then_branch=body("Relu"), else_branch=body("Neg"))
    model = loaded(net.model(out), tmp_path)
    for choice in (I8, F16):
        found = convert(
            model, placed(model, ["npu", HOST, HOST, HOST]), {"npu": choice},
            calibrated(model, inputs(model, 2)),
        )  # fmt: skip
        _check(found.model)
        assert found.converted_nodes == ("conv0",)
        assert found.boundaries[-1].value == y
        for batch in inputs(model, 2):
            exact, quantised = run_model(model, batch)[out], run_model(found.model, batch)[out]
            assert noise_db(exact, quantised) > 30.0


def test_constants_that_overflow_f16_keep_their_node(tmp_path: Path) -> None:
    net = Net(1, 3, 8, 8)
    y = net.op("Mul", net.conv("x", 3, 4), net.constant(np.array([1e-6, 1e5], np.float32)[:1]))
    y = net.op("Add", net.op("Mul", y, net.constant(np.array([1e5]))), y)
    model = loaded(net.model(net.op("Relu", y)), tmp_path)
    found = _whole(model, F16)
    assert set(found.converted_nodes) == {"conv0", "mul1", "add3", "relu4"}
    assert any(
        "mul2: its constant" in text and "100000" in text and "65504" in text
        for _, text in found.warnings
    )
    assert np.isfinite(run_model(found.model, inputs(model)[0])["v4"]).all()


def test_bf16_regions_are_valid_onnx(tmp_path: Path) -> None:
    """No ONNX Runtime computes convolutions in bf16 on a CPU; ONNX's own rules are checked."""
    model = loaded(built(NETS["residual"]), tmp_path)
    found = _whole(model, BF16)
    assert found.model.opset == 22
    assert found.model.ir.opset_imports[""] == 22
    onnx.checker.check_model(onnx.load_model_from_string(serialised(found.model)), full_check=True)
    assert len(found.converted_nodes) == 7
    inner = {
        v.dtype.name for n in found.model.ir.graph if INSERTED not in n.metadata_props
        for v in n.outputs if v.dtype is not None
    }  # fmt: skip
    assert inner == {"BFLOAT16"}
    assert all(40 < (b.sqnr_db or 0) < 60 for b in found.boundaries)


def test_an_f16_model_becomes_integers_between_casts(tmp_path: Path) -> None:
    model = loaded(built(NETS["residual"], dtype=TensorProto.FLOAT16), tmp_path)
    found = _whole(model, I8)
    _check(found.model)
    assert found.converted_nodes == tuple(n.name for n in model.ir.graph)
    nodes = list(found.model.ir.graph)
    clusters = find_clusters(nodes, [v.name or "" for v in found.model.ir.graph.outputs])
    assert len(clusters) == 4
    assert [r for c in clusters if (r := cluster_rejection(nodes, c, 21))] == []
    batch = inputs(model, 2)[0]
    exact, quantised = run_model(model, batch)["v6"], run_model(found.model, batch)["v6"]
    assert quantised.dtype == np.float16
    assert noise_db(exact, quantised) > 30.0
    assert {b.bytes_before // b.elements for b in found.boundaries} == {1, 2}


def test_targets_with_different_formats_meet_in_float(tmp_path: Path) -> None:
    model = loaded(built(NETS["residual"]), tmp_path)
    rows = placed(model, ["a", "a", "b", "b", "c", "a", HOST])
    batches = inputs(model, 2)
    choices = {"a": I8, "b": U8, "c": F16}
    found = convert(model, rows, choices, calibrated(model, batches))
    _check(found.model)
    assert len(found.converted_nodes) == 6
    kinds = Counter((b.target, b.kind) for b in found.boundaries)
    assert kinds[("a", BoundaryKind.QUANTIZE)] == 2  # x, and what c hands to the sum
    assert kinds[("a", BoundaryKind.DEQUANTIZE)] == 2
    assert kinds[("b", BoundaryKind.QUANTIZE)] == kinds[("b", BoundaryKind.DEQUANTIZE)] == 1
    assert kinds[("c", BoundaryKind.CAST)] == 2
    exact, quantised = (run_model(m, batches[0])["v6"] for m in (model, found.model))
    assert noise_db(exact, quantised) > 30.0


@pytest.mark.parametrize("choice", [I8, F16], ids=["i8", "f16"])
def test_op_types_and_sources_restrict_a_conversion(tmp_path: Path, choice: Conversion) -> None:
    model = loaded(built(NETS["head"]), tmp_path)
    found = _whole(model, replace(choice, op_types=("Conv", "Relu")))
    assert set(found.converted_nodes) == {"conv0", "relu1"}
    assert any("converts only Conv, Relu" in text for _, text in found.warnings)
    assert _whole(model, replace(choice, sources=(DType.BF16,))).converted_nodes == ()


@pytest.mark.parametrize("choice", [I8, U8, F16], ids=["i8", "u8", "f16"])
@pytest.mark.parametrize("name", ["joined", "attention"])
def test_two_runs_give_the_same_bytes(tmp_path: Path, name: str, choice: Conversion) -> None:
    first, second = (
        serialised(_whole(loaded(built(NETS[name]), tmp_path), choice).model) for _ in range(2)
    )
    assert first == second


def test_a_placement_of_another_model_is_refused(tmp_path: Path) -> None:
    model = loaded(built(NETS["chain"]), tmp_path)
    with pytest.raises(PassContractError, match="placement"):
        convert(model, placed(model)[:-1], {"npu": I8}, calibrated(model, inputs(model)))


def test_a_calibration_that_leaves_out_a_value_is_refused(tmp_path: Path) -> None:
    model = loaded(built(NETS["chain"]), tmp_path)
    nothing: Any = {}
    with pytest.raises(PassContractError, match="was not calibrated"):
        convert(model, placed(model), {"npu": I8}, lambda names: nothing)

"""Cross-layer equalisation: same bits in floats, less noise in integers, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from quantize_nets import I8, Net, inputs, loaded, noise_db, placed, run_model

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.quantization import Correction, Quantization, Ranges
from worker.compiler.quantize.equalise import equalised
from worker.compiler.quantize.measured import convert_as_asked

EQUALISE = Quantization(corrections=(Correction.EQUALISE,))
SPREAD = np.geomspace(1.0, 300.0, 8)


def convolutions(net: Net, groups: int = 1) -> str:
    """Channels that differ in size by 300 between two convolutions."""
    spread = SPREAD.reshape(-1, 1, 1, 1)
    made = net.op("Conv", "x", net.weights(8, 3, 3, 3, spread=spread), net.constant(0.1 * SPREAD))
    y = net.op("MaxPool", net.op("Relu", made), kernel_shape=[2, 2])
    shape = (8, 8 // groups, 3, 3)
    back = 1.0 / SPREAD.reshape(groups, -1)
    laid = np.repeat(back, 8 // groups, axis=0).reshape(8, 8 // groups, 1, 1)
    return net.op("Conv", y, net.weights(*shape, spread=laid), group=groups)


def depthwise(net: Net) -> str:
    return convolutions(net, groups=8)


def halves(net: Net) -> str:
    return convolutions(net, groups=2)


def added(net: Net) -> str:
    """Products of matrices of rank 3, their biases behind them."""
    y = net.op("MatMul", "x", net.weights(6, 8, spread=SPREAD))
    y = net.op("LeakyRelu", net.op("Add", y, net.constant(0.2 * SPREAD)))
    return net.op("MatMul", y, net.weights(8, 5, spread=1.0 / SPREAD[:, None]))


def gemms(net: Net) -> str:
    y = net.op("Gemm", "x", net.weights(8, 6, spread=SPREAD[:, None]), net.constant(0.1 * SPREAD),
               transB=1)  # fmt: skip
    slope = net.constant(np.array([0.25]))
    return net.op(
        "Gemm", net.op("PRelu", y, slope), net.weights(8, 4, spread=1.0 / SPREAD[:, None])
    )


CASES: dict[str, tuple[Callable[[Net], str], tuple[int, ...]]] = {
    "convolutions": (convolutions, (1, 3, 12, 12)),
    "depthwise": (depthwise, (1, 3, 12, 12)),
    "groups": (halves, (1, 3, 12, 12)),
    "matrices": (added, (1, 7, 6)),
    "gemms": (gemms, (3, 6)),
}


def model_of(name: str, folder: Path) -> OnnxModel:
    build, shape = CASES[name]
    net = Net(*shape)
    return loaded(net.model(build(net)), folder)


def names(model: OnnxModel) -> frozenset[str]:
    return frozenset(node.name or "" for node in model.ir.graph)


def output(model: OnnxModel, batch: dict[str, Any]) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = run_model(model, batch)[model.ir.graph.outputs[0].name or ""]
    return found


@pytest.mark.parametrize("name", list(CASES))
def test_the_floats_keep_their_bits_and_the_integers_more(name: str, tmp_path: Path) -> None:
    model = model_of(name, tmp_path)
    batches, fresh = inputs(model, 12)[:8], inputs(model, 12)[8:]
    other, done = equalised(model, names(model), batches, per_channel=True)
    assert [(e.channels > 3, e.span >= 16.0) for e in done] == [(True, True)]
    for batch in fresh:
        assert np.array_equal(output(other, batch), output(model, batch))

    def kept(how: Quantization) -> float:
        found = convert_as_asked(model, placed(model), {"npu": I8}, lambda: batches, how)
        rows = [(output(model, b), output(replace(model, ir=found.model.ir), b)) for b in fresh]
        return noise_db(*(np.stack(side) for side in zip(*rows, strict=True)))

    assert kept(EQUALISE) > kept(Quantization()) + 6.0


def test_the_model_given_stays(tmp_path: Path) -> None:
    model = model_of("convolutions", tmp_path)
    before = onnx.ModelProto.SerializeToString(to_proto(model), deterministic=True)
    equalised(model, names(model), inputs(model, 2), per_channel=True)
    assert onnx.ModelProto.SerializeToString(to_proto(model), deterministic=True) == before


def to_proto(model: OnnxModel) -> onnx.ModelProto:
    import onnx_ir

    return onnx_ir.serde.serialize_model(model.ir)


def clipped(net: Net) -> str:
    y = net.op(
        "Clip", net.conv("x", 3, 8), net.constant(np.array(0.0)), net.constant(np.array(6.0))
    )
    return net.conv(y, 8, 4)


def seen_outside(net: Net) -> str:
    return net.conv(net.op("Relu", net.conv("x", 3, 8)), 8, 4)


def twice(net: Net) -> str:
    y = net.op("Relu", net.conv("x", 3, 8))
    return net.op("Add", net.conv(y, 8, 4), net.conv(y, 8, 4))


@pytest.mark.parametrize(
    ("build", "outputs"),
    [(clipped, ()), (seen_outside, ("v1",)), (twice, ())],
    ids=["clip", "read by the user", "read twice"],
)
def test_what_cannot_take_a_factor_stays(
    build: Callable[[Net], str], outputs: tuple[str, ...], tmp_path: Path
) -> None:
    net = Net(1, 3, 8, 8)
    last = build(net)
    model = loaded(net.model(last, *outputs), tmp_path)
    found, done = equalised(model, names(model), inputs(model, 2), per_channel=True)
    assert found is model
    assert done == ()


def test_operators_that_stay_float_are_no_pair(tmp_path: Path) -> None:
    model = model_of("convolutions", tmp_path)
    every = names(model)
    for left in every:
        found, _ = equalised(model, every - {left}, inputs(model, 2), per_channel=True)
        assert found is model


def test_a_channel_whose_constants_would_not_stay_exact_is_left(tmp_path: Path) -> None:
    net = Net(1, 3, 8, 8)
    first = net.rng.standard_normal((8, 3, 3, 3)) * SPREAD.reshape(-1, 1, 1, 1)
    first[7, 0, 0, 0] = 1e-45  # the least there is: halved it would vanish
    y = net.op("Relu", net.op("Conv", "x", net.constant(first)))
    last = net.op("Conv", y, net.weights(4, 8, 1, 1, spread=1.0 / SPREAD.reshape(1, -1, 1, 1)))
    model = loaded(net.model(last), tmp_path)
    batches = inputs(model, 4)
    found, (done,) = equalised(model, names(model), batches, per_channel=True)
    assert done.channels >= 3
    weights = {
        node.name: node.inputs[1].const_value.numpy()  # type: ignore[union-attr]
        for m in (model, found) for node in m.ir.graph if node.op_type == "Conv"
    }  # fmt: skip
    assert weights["conv0"][7, 0, 0, 0] > 0.0
    for batch in batches:
        assert np.array_equal(output(found, batch), output(model, batch))


def test_it_is_left_where_samples_keep_no_more(tmp_path: Path) -> None:
    net = Net(1, 3, 12, 12)
    model = loaded(net.model(seen_outside(net)), tmp_path)
    batches = inputs(model, 8)
    how = Quantization(ranges=Ranges.AUTO, corrections=(Correction.EQUALISE,))
    found = convert_as_asked(model, placed(model), {"npu": I8}, lambda: batches, how)
    plain = convert_as_asked(
        model, placed(model), {"npu": I8}, lambda: batches, Quantization(ranges=Ranges.AUTO)
    )
    rows = [
        [output(replace(model, ir=f.model.ir), b) for b in batches] for f in (found, plain)
    ]  # fmt: skip
    want = np.stack([output(model, b) for b in batches])
    assert noise_db(want, np.stack(rows[0])) > noise_db(want, np.stack(rows[1])) - 0.5

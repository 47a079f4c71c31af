"""Observed ranges against numpy on the values themselves, and the checks of calibration files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import pytest
from onnx import TensorProto
from quantize_nets import I8, Net, built, inputs, loaded, pools, residual, run_model

from worker.compiler.errors import ModelError, PassContractError
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.quantization import DEFAULT
from worker.compiler.quantize.calibration import load_calibration
from worker.compiler.quantize.clipping import range_of
from worker.compiler.quantize.holding import split_samples
from worker.compiler.quantize.ranges import observe


def _all_values(model: OnnxModel, feeds: dict[str, Any]) -> dict[str, Any]:
    """Every value of the model, read as an output of its own."""
    clone = model.ir.clone()
    values = [v for node in clone.graph for v in node.outputs]
    clone.graph.outputs.clear()
    clone.graph.outputs.extend(values)
    found = run_model(OnnxModel(clone, model.name, model.sha256, model.opset), feeds)
    return {**found, **feeds}


@pytest.mark.parametrize("build", [residual, pools])
def test_ranges_are_those_of_the_values(tmp_path: Path, build: Any) -> None:
    model = loaded(built(build), tmp_path)
    batches = inputs(model, 3)
    values = [_all_values(model, batch) for batch in batches]
    names = list(values[0])
    seen = observe(model, names, batches)
    assert list(seen) == names
    for name in names:
        arrays = [v[name] for v in values]
        assert seen[name].low == min(float(a.min()) for a in arrays)
        assert seen[name].high == max(float(a.max()) for a in arrays)
        assert seen[name].elements == arrays[0].size
        assert seen[name].is_finite
        assert seen[name].spans == tuple((float(a.min()), float(a.max())) for a in arrays)
        assert set(seen[name].sample.tolist()) <= {x for a in arrays for x in a.ravel().tolist()}
        assert seen[name].sample.size >= min(3 * 256, sum(a.size for a in arrays)) // 2


def test_a_large_value_is_sampled_evenly(tmp_path: Path) -> None:
    net = Net(4, 64, 256)
    model = loaded(net.model(net.op("Neg", "x")), tmp_path)
    x = np.tile(np.arange(256, dtype=np.float32), (4, 64, 1))
    seen = observe(model, ["v0"], [{"x": x}])["v0"]
    assert 1 << 13 <= seen.sample.size <= 1 << 14
    counts = np.bincount((-seen.sample).astype(int), minlength=256)
    assert counts.min() > 0 and counts.max() <= 2 * counts.min()


def test_half_precision_values_are_observed(tmp_path: Path) -> None:
    model = loaded(built(residual, dtype=TensorProto.FLOAT16), tmp_path)
    batch = inputs(model)[0]
    seen = observe(model, ["x"], [batch])["x"]
    assert (seen.low, seen.high) == (float(batch["x"].min()), float(batch["x"].max()))


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Reciprocal"])
def test_infinite_values_and_nan_are_seen(tmp_path: Path, op: str) -> None:
    net = Net(1, 3)
    model = loaded(net.model(net.op("Relu", net.op(op, "x"))), tmp_path)
    x = np.array([[0.0, 1.0, -2.0]], np.float32)
    seen = observe(model, ["x", "v0"], [{"x": x}])
    assert seen["x"].is_finite
    assert not seen["v0"].is_finite
    assert not all(np.isfinite(range_of(seen["v0"], DEFAULT, I8)))


def test_a_value_without_elements_has_the_range_of_zero(tmp_path: Path) -> None:
    net = Net(2, 3)
    zero = net.constant(np.array([0], np.int64))
    model = loaded(net.model(net.op("Relu", net.op("Slice", "x", zero, zero))), tmp_path)
    seen = observe(model, ["v0"], inputs(model))["v0"]
    assert (seen.low, seen.high, seen.elements, seen.is_finite) == (0.0, 0.0, 0, True)


def test_the_model_is_not_changed(tmp_path: Path) -> None:
    model = loaded(built(residual), tmp_path)
    before = onnx_ir.serde.serialize_model(model.ir).SerializeToString(deterministic=True)
    observe(model, ["x", "v2"], inputs(model))
    after = onnx_ir.serde.serialize_model(model.ir).SerializeToString(deterministic=True)
    assert after == before


def test_only_float_values_of_the_graph_can_be_observed(tmp_path: Path) -> None:
    model = loaded(built(residual), tmp_path)
    with pytest.raises(PassContractError, match="'nowhere'"):
        observe(model, ["nowhere"], inputs(model))
    with pytest.raises(PassContractError, match="no calibration batch"):
        observe(model, ["x"], [])


def test_the_runtime_refusing_an_input_is_a_typed_error(tmp_path: Path) -> None:
    model = loaded(built(residual), tmp_path)
    with pytest.raises(ModelError) as refused:
        observe(model, ["v0"], [{"x": np.zeros((1, 2, 8, 8), np.float32)}])
    assert refused.value.code == "TW-CAL-005"
    assert "ONNX Runtime" in refused.value.message


# calibration files


def _two_inputs(folder: Path) -> OnnxModel:
    net = Net(2, 3)
    proto = net.model(net.op("Add", "x", "b"))
    proto.graph.input.append(proto.graph.input[0])
    proto.graph.input[1].name = "b"
    return loaded(proto, folder)


def _file(folder: Path, **arrays: Any) -> Path:
    path = folder / "calibration.npz"
    np.savez(path, **arrays)
    return path


def test_one_batch_stacked_batches_and_numbered_batches_are_the_same(tmp_path: Path) -> None:
    model = _two_inputs(tmp_path)
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    b = np.ones((2, 3), np.float32)
    stacked = load_calibration(_file(tmp_path, x=x, b=b), model)
    numbered = load_calibration(_file(tmp_path, **{"x:1": x[1], "x:0": x[0], "b": b}), model)
    for found in (stacked, numbered):
        assert len(found) == 2
        for k in range(2):
            assert np.array_equal(found[k]["x"], x[k])
            assert np.array_equal(found[k]["b"], b)
    single = load_calibration(_file(tmp_path, x=x[0], b=b), model)
    assert len(single) == 1
    many = {f"x:{k}": x[0] + k for k in range(11)}
    ordered = load_calibration(_file(tmp_path, b=b, **many), model)
    assert [float(batch["x"][0, 0]) for batch in ordered] == [float(k) for k in range(11)]


@pytest.mark.parametrize(
    ("arrays", "code", "words"),
    [
        ({"x": (2, 3)}, "TW-CAL-002", "no array for input 'b'"),
        ({"x": (2, 3), "b": (2, 3), "c": (1,)}, "TW-CAL-002", "no input 'c'; it has x, b"),
        ({"x": (2, 4), "b": (2, 3)}, "TW-CAL-003", "[2, 4]"),
        ({"x": (0, 2, 3), "b": (2, 3)}, "TW-CAL-003", "[0, 2, 3]"),
        ({"x": (3, 2, 3), "b": (2, 2, 3)}, "TW-CAL-003", "has 2 batches, others have 3"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    tmp_path: Path, arrays: dict[str, tuple[int, ...]], code: str, words: str
) -> None:
    model = _two_inputs(tmp_path)
    path = _file(tmp_path, **{k: np.zeros(shape, np.float32) for k, shape in arrays.items()})
    with pytest.raises(ModelError) as refused:
        load_calibration(path, model)
    assert refused.value.code == code
    assert words in refused.value.message
    assert refused.value.limit is not None
    assert refused.value.actual is not None


def test_every_wrong_array_is_reported(tmp_path: Path) -> None:
    model = _two_inputs(tmp_path)
    path = _file(tmp_path, x=np.zeros((2, 3)), b=np.zeros((5, 5), np.float32))
    with pytest.raises(ModelError) as refused:
        load_calibration(path, model)
    assert [f.pointer for f in refused.value.findings] == ["/x", "/b"]
    assert (refused.value.limit, refused.value.actual) == ("float32", "float64")


def test_samples_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    model = _two_inputs(tmp_path)
    x = np.zeros((3, 2, 3), np.float32)
    x[2, 1, 0] = np.nan
    with pytest.raises(ModelError, match=r"'x' is not a number at \[2, 1, 0\]") as refused:
        load_calibration(_file(tmp_path, x=x, b=np.zeros((2, 3), np.float32)), model)
    assert refused.value.code == "TW-CAL-006"
    assert [f.pointer for f in refused.value.findings] == ["/x"]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 16, 17, 63, 64, 65, 1000])
def test_held_out_samples_are_spread_and_never_calibrate(count: int) -> None:
    calibrating, held = split_samples(range(count))
    assert sorted((*calibrating, *held)) == list(range(count))
    assert len(held) <= 16
    assert bool(held) == (count > 1)
    assert not held or len(calibrating) >= len(held)
    gaps = {int(gap) for gap in np.diff(held)}
    assert len(gaps) <= 1
    assert all(gap >= 4 for gap in gaps)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 damaged"])
def test_a_file_that_is_no_archive_of_arrays_is_refused(tmp_path: Path, content: bytes) -> None:
    model = _two_inputs(tmp_path)
    path = tmp_path / "calibration.npz"
    path.write_bytes(content)
    with pytest.raises(ModelError) as refused:
        load_calibration(path, model)
    assert refused.value.code == "TW-CAL-001"


def test_pickled_objects_and_bare_arrays_are_refused(tmp_path: Path) -> None:
    model = _two_inputs(tmp_path)
    objects = _file(tmp_path, x=np.array([{"a": 1}], dtype=object))
    bare = tmp_path / "x.npy"
    np.save(bare, np.zeros((2, 3), np.float32))
    for path in (objects, bare):
        with pytest.raises(ModelError) as refused:
            load_calibration(path, model)
        assert refused.value.code == "TW-CAL-001"

"""Calls of a vendor's library for products of many types, zero points and shapes."""

from __future__ import annotations

import json
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from vendor_libraries import SYMBOL, counted, most, vendor_library

from tilewright import Machine
from worker.compiler.cache import MemoryCache
from worker.compiler.options import CompileOptions
from worker.compiler.package.runtime import load_bundle
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress

C_TYPE = {"i8": "int8_t", "u8": "uint8_t", "i32": "int32_t", "f32": "float"}
NUMPY = {"i8": np.int8, "u8": np.uint8, "f32": np.float32}
EXTENTS = (16, 8, 32)


def _function(a: str, b: str, c: str) -> str:
    return f"PRODUCT({a}, {C_TYPE[a]}, {b}, {C_TYPE[b]}, {c}, {C_TYPE[c]})"


def _hardware(cycles: int) -> dict[str, Any]:
    document = Machine("stcp920-inferred").document
    call = {"name": "mm", "op": "matmul", "extents": list(EXTENTS), "cycles": cycles}
    for engine in document["engines"]:
        if engine["kind"] == "matrix":
            engine["intrinsics"] = [{**call, "call": SYMBOL}]
        if "macs_per_cycle" in engine:  # the instruction is far faster, so that it is what runs
            engine["macs_per_cycle"] = dict.fromkeys(engine["macs_per_cycle"], 4)
    return document


def _values(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    if kind == "f32":
        return rng.normal(size=shape).astype(np.float32)
    info = np.iinfo(NUMPY[kind])
    return rng.integers(info.min, info.max + 1, shape).astype(NUMPY[kind])


def _model(
    path: Path, kinds: tuple[str, str], shapes: tuple[tuple[int, ...], tuple[int, ...]],
    zeros: tuple[int, int] | None,
) -> Path:  # fmt: skip
    """x by a constant: MatMulInteger with zero points, or MatMul."""
    weights = {"w": _values(kinds[1], shapes[1], 1)}
    names = ["x", "w"]
    if zeros is not None:
        weights["za"] = np.array(zeros[0], NUMPY[kinds[0]])
        weights["zb"] = np.array(zeros[1], NUMPY[kinds[1]])
        names += ["za", "zb"]
    elem = {"i8": TensorProto.INT8, "u8": TensorProto.UINT8, "f32": TensorProto.FLOAT}[kinds[0]]
    out = TensorProto.FLOAT if zeros is None else TensorProto.INT32
    kind = "MatMul" if zeros is None else "MatMulInteger"
    graph = helper.make_graph(
        [helper.make_node(kind, names, ["y"], name="product")], "g",
        [helper.make_tensor_value_info("x", elem, shapes[0])],
        [helper.make_tensor_value_info("y", out, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def _linked(
    folder: Path, model: Path, products: str, cycles: int = 2
) -> tuple[dict[str, Any], Path]:
    library = vendor_library(folder / "lib", products=products)
    link = sha256(library.read_bytes()).hexdigest()
    options = CompileOptions.from_json({"strategy": "naive", "verify": "full", "link": link,
                                        "partition": "greedy"})  # fmt: skip
    request = JobRequest(
        model, "net", _hardware(cycles), options, folder / "build", link_path=library
    )
    run_job(request, folder / "out", MemoryCache(), NoProgress())
    return json.loads((folder / "out" / "report.json").read_bytes()), library


CASES = {
    "u8 by i8, zero points": (("u8", "i8"), ((40, 70), (70, 24)), (7, -3)),
    "i8 by i8, extreme zero points": (("i8", "i8"), ((33, 65), (65, 17)), (-128, 127)),
    "u8 by u8, extreme zero points": (("u8", "u8"), ((20, 300), (300, 9)), (255, 255)),
    "i8 by u8, batched": (("i8", "u8"), ((3, 18, 40), (3, 40, 12)), (1, 128)),
    "i8 by i8, one row": (("i8", "i8"), ((1, 70), (70, 24)), (3, 2)),
    "u8 by i8, vectors": (("u8", "i8"), ((70,), (70, 24)), (3, 2)),
    "f32, a matrix by a vector": (("f32", "f32"), ((40, 70), (70,)), None),
    "f32, sums of two": (("f32", "f32"), ((40, 2), (2, 24)), None),
    "f32": (("f32", "f32"), ((40, 70), (70, 24)), None),
    "f32, batched, larger than a block": (("f32", "f32"), ((2, 200, 270), (2, 270, 24)), None),
}


@pytest.mark.parametrize("name", CASES)
def test_a_product_is_what_its_operator_says(tmp_path: Path, name: str) -> None:
    kinds, shapes, zeros = CASES[name]
    model = _model(tmp_path / "net.onnx", kinds, shapes, zeros)
    total = "i32" if zeros is not None else "f32"
    report, library = _linked(tmp_path, model, _function(*kinds, total))
    assert report["verification"]["passed"] is True
    assert report["toolchain"]["library"]["symbols"] == [f"{SYMBOL}_{'_'.join(kinds)}_{total}"]
    macs = int(np.prod(shapes[0])) * (shapes[1][-1] if len(shapes[1]) > 1 else 1)
    assert counted(tmp_path / "build") >= macs
    assert all(a <= b for a, b in zip(most(tmp_path / "build"), EXTENTS, strict=True))

    bundle = tmp_path / "out" / "net.twb"
    runner = load_bundle(bundle, tmp_path / "run", link=library).runner
    fed = {"x": _values(kinds[0], shapes[0], 5)}
    found = runner.run(fed)["y"]
    assert counted(tmp_path / "run") == macs  # each product of two elements once
    if zeros is not None:
        # Not ONNX Runtime's: without VNNI it saturates the sums of u8 by i8.
        w = numpy_helper.to_array(onnx.load(model).graph.initializer[0]).astype(np.int64)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(
            found, (fed["x"].astype(np.int64) - zeros[0]) @ (w - zeros[1])
        )
    else:
        (wanted,) = onnxruntime.InferenceSession(model).run(None, fed)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_zero_point_for_each_column_comes_computed(tmp_path: Path) -> None:
    """No call can take one off for each column: the factor comes as i32, zero points taken off."""
    weights = {
        "w": _values("i8", (48, 24), 1), "za": np.array(9, np.uint8),
        "zb": _values("i8", (24,), 2),
    }  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w", "za", "zb"], ["y"], name="product")], "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, (32, 48))],
        [helper.make_tensor_value_info("y", TensorProto.INT32, (32, 24))],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    model = tmp_path / "net.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), model
    )
    report, library = _linked(tmp_path, model, _function("u8", "i32", "i32"))
    assert report["toolchain"]["library"]["symbols"] == [f"{SYMBOL}_u8_i32_i32"]
    runner = load_bundle(tmp_path / "out" / "net.twb", tmp_path / "run", link=library).runner
    fed = {"x": _values("u8", (32, 48), 5)}
    w = weights["w"].astype(np.int64) - weights["zb"]
    wanted = (fed["x"].astype(np.int64) - 9) @ w
    np.testing.assert_array_equal(runner.run(fed)["y"], wanted)


def test_that_nothing_calls_it_is_told(tmp_path: Path) -> None:
    """An instruction slower than the array runs nothing."""
    model = _model(tmp_path / "net.onnx", ("f32", "f32"), ((40, 70), (70, 24)), None)
    report, _ = _linked(tmp_path, model, _function("f32", "f32", "f32"), cycles=10**6)
    assert report["verification"]["passed"] is True
    (warning,) = [row for row in report["warnings"] if row["code"] == "NOT_CALLED"]
    assert warning["message"].startswith("no kernel calls vendor_mm 1.0")
    with zipfile.ZipFile(tmp_path / "out" / "net.twb") as archive:
        manifest = json.loads(archive.read("manifest.json"))
    assert "library" not in manifest["toolchain"]

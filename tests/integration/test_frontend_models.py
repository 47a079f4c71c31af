"""Real exported graphs: simplified outputs equal the original's, and all shapes are known."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from worker.compiler.frontend.bind import bind, symbols_of
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.simplify import simplify
from worker.compiler.frontend.slice import host_submodel

ALL_STATIC = ["mobilenet_v2", "bsrn_x4", "nerf_p4096", "resnet18_qdq_int8"]
PARTLY_DYNAMIC = ["control_flow", "ssdlite320_nms"]


def _run(model: bytes, feeds: dict[str, Any]) -> list[Any]:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


@pytest.mark.parametrize("name", ALL_STATIC + PARTLY_DYNAMIC)
def test_skeleton(shared_models: Path, tmp_path: Path, name: str) -> None:
    spec = importlib.util.spec_from_file_location("materialize", shared_models / "materialize.py")
    assert spec is not None and spec.loader is not None
    recipe: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    original = recipe.materialize(str(shared_models / f"{name}.skel.onnx.gz"))
    feeds = {t.name: onnx.numpy_helper.to_array(t) for t in recipe.sample_inputs(original, name)}
    file = tmp_path / "m.onnx"
    file.write_bytes(original.SerializeToString())
    loaded = load_model(file, Limits())
    found = simplify(
        bind(loaded, dict.fromkeys(symbols_of(loaded), next(iter(feeds.values())).shape[0]))
    )
    graph = found.ir.graph
    if name in ALL_STATIC:
        assert all(found.is_static(v) for n in graph for v in n.outputs if v.name)
    whole = host_submodel(found, list(graph), list(feeds), [v.name or "" for v in graph.outputs])
    for got, want in zip(_run(whole, feeds), _run(file.read_bytes(), feeds), strict=True):
        assert got.shape == want.shape
        scale = float(np.abs(want).max()) if want.size else 1.0
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * max(scale, 1e-30))

"""A head with shared weights on several resolutions, its results side by side in one tensor.

The results of a resolution are rows of positions: a tile of some rows and some columns is no box of
the tensor, and storing it as one writes over the columns of its neighbours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import saved

from worker.compiler.cache import MemoryCache
from worker.compiler.errors import VerifyError
from worker.compiler.frontend.limits import Limits
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.compiler.schedule.nodes import Init, Node, Place
from worker.compiler.schedule.text import parse_schedule
from worker.compiler.schedule.verify import verify
from worker.job.ports import open_ports
from worker.job.request import NoProgress
from worker.verification.drive import verify_model

ON = load_preset("stcp920-inferred")
FALLBACK = "STRATEGY_FALLBACK"
SIZES = (28, 14, 7)
CHANNELS = 256


def shared_head() -> onnx.ModelProto:
    """Convolution to one channel, Relu, rows of positions; once per resolution, then joined."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((1, CHANNELS, 3, 3)).astype(np.float32) / 48
    nodes: list[onnx.NodeProto] = []
    inputs, rows, plain = [], [], []
    for size in SIZES:
        shape = [1, CHANNELS, size, size]
        inputs.append(helper.make_tensor_value_info(f"x{size}", TensorProto.FLOAT, shape))
        nodes += [
            helper.make_node("Conv", [f"x{size}", "w"], [f"c{size}"], pads=[1, 1, 1, 1]),
            helper.make_node("Transpose", [f"c{size}"], [f"t{size}"], perm=[0, 2, 3, 1]),
            helper.make_node("Reshape", [f"t{size}", "flat"], [f"r{size}"]),
            helper.make_node("Relu", [f"r{size}"], [f"p{size}"]),
        ]
        rows.append(f"r{size}")
        plain.append(f"p{size}")
    nodes += [helper.make_node("Concat", rows, ["scores"], axis=1),
              helper.make_node("Concat", plain, ["kept"], axis=1)]  # fmt: skip
    total = sum(size * size for size in SIZES)
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, total, 1])
        for name in ("scores", "kept")
    ]
    given = [numpy_helper.from_array(weights, "w"),
             numpy_helper.from_array(np.array([1, -1, 1], np.int64), "flat")]  # fmt: skip
    graph = helper.make_graph(nodes, "head", inputs, outputs, given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def checked(path: Path, folder: Path, variant: str) -> Any:
    options = CompileOptions.from_json(
        {
            "strategy": "graphturbo",
            "strategy_options": {"graphturbo": {"variant": variant}},
            "verify": "full",
        }
    )
    ports = open_ports(ON, options, MemoryCache(), NoProgress())
    model = compile_model(path, "m", ON, options, ports, Limits())
    found = verify_model(path, model, options, folder / "build")
    assert found.passed is True, found.detail
    return model


@pytest.mark.parametrize("variant", ["full", "astitch", "layerwise"])
def test_every_resolution_keeps_all_its_columns(tmp_path: Path, variant: str) -> None:
    model = checked(saved(shared_head(), tmp_path), tmp_path, variant)
    assert not [text for code, text in model.warnings if code == FALLBACK]


@pytest.mark.campaign
def test_the_head_that_showed_it(tmp_path: Path) -> None:
    shared = Path(__file__).resolve().parents[3] / "shared" / "models" / "found"
    path = shared / "shared_head_five_levels.onnx"
    if not path.exists():
        pytest.skip("the model is not beside this checkout")
    model = checked(path, tmp_path, "full")
    assert not [text for code, text in model.warnings if code == FALLBACK]


HEAD = """schedule naive cycles=1
graph
  input x: f32[4,8,3]
  tensor y: f32[32]
  op sums (i:4:parallel, j:8:parallel, k:3:reduce) write y[8*i + j] reduce=add = $0 from n {}
    read x[i, j, k]
  output y
"""
TREE = """tree
  loop time v0 2
    place y L1 [4*v0:%d] init=identity
      seq
        loop time v1 4
          place x L1 [v1:1, 4*v0:4, 0:3]
            seq
              move x DDR : L1 [v1:1, 4*v0:4, 0:3]
              compute sums VME [v1:1, 4*v0:4, 0:3]
        move y L1 : DDR [4*v0:%d]
"""


def places(node: Node) -> list[Place]:
    found = [node] if isinstance(node, Place) else []
    for child in getattr(node, "parts", ()) or filter(None, [getattr(node, "body", None)]):
        found += places(child)
    return found


def test_a_drain_of_a_box_with_holes_is_refused() -> None:
    """Columns 0..3 of all four rows span 28 positions, of which the tile computes 16."""
    schedule = parse_schedule(HEAD + TREE % (28, 28))
    assert [p.init for p in places(schedule.root) if p.tensor == "y"] == [Init.IDENTITY]
    with pytest.raises(VerifyError, match=r"y in .* is not written before its use") as refused:
        verify(schedule, ON)
    assert refused.value.rule == "resident"


def test_the_same_tile_row_by_row_is_fine() -> None:
    tree = """tree
  loop time v0 2
    loop time v1 4
      place y L1 [8*v1 + 4*v0:4] init=identity
        seq
          place x L1 [v1:1, 4*v0:4, 0:3]
            seq
              move x DDR : L1 [v1:1, 4*v0:4, 0:3]
              compute sums VME [v1:1, 4*v0:4, 0:3]
          move y L1 : DDR [8*v1 + 4*v0:4]
"""
    verify(parse_schedule(HEAD + tree), ON)

"""Positions in a sequence whose makers say its length; in others they are data's business."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.errors import ModelError
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.simplify import simplify

FLOAT = TensorProto.FLOAT
MAKERS = {
    "construct": [helper.make_node("SequenceConstruct", ["x", "x", "x"], ["s"])],
    "inserted": [
        helper.make_node("SequenceConstruct", ["x", "x"], ["a"]),
        helper.make_node("SequenceInsert", ["a", "x"], ["b"]),
        helper.make_node("Identity", ["b"], ["s"]),
    ],
    "split": [helper.make_node("SplitToSequence", ["x"], ["s"], axis=1)],
    "split by two": [helper.make_node("SplitToSequence", ["x", "two"], ["s"], axis=0)],
}


def ingest(folder: Path, nodes: list[onnx.NodeProto], position: int) -> None:
    used = {name for node in nodes for name in node.input}
    values = {"p": np.array(position, np.int64), "two": np.array(2, np.int64)}
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", FLOAT, [5, 3])]
        + ([helper.make_tensor_sequence_value_info("s", FLOAT, None)] if "s" in used and all(
            "s" not in node.output for node in nodes) else []),
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(v, k) for k, v in values.items() if k in used],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    simplify(bind(load_model(path, Limits()), {}))


def user(kind: str) -> list[onnx.NodeProto]:
    """A node that uses position `p` of the sequence `s`, and what makes its result the output."""
    if kind == "SequenceAt":
        return [helper.make_node(kind, ["s", "p"], ["y"], name="user")]
    given = ["s", "x", "p"] if kind == "SequenceInsert" else ["s", "p"]
    return [
        helper.make_node(kind, given, ["t"], name="user"),
        helper.make_node("SequenceLength", ["t"], ["y"]),
    ]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("kind", ["SequenceAt", "SequenceErase", "SequenceInsert"])
def test_a_position_outside_is_refused_at_its_node(tmp_path: Path, maker: str, kind: str) -> None:
    nodes = [*MAKERS[maker], *user(kind)]
    last = 3 if kind == "SequenceInsert" else 2
    for position in (-3, 0, last):
        ingest(tmp_path, nodes, position)
    for position in (-4, last + 1, 1000):
        with pytest.raises(ModelError) as refused:
            ingest(tmp_path, nodes, position)
        assert (refused.value.code, refused.value.place.node) == ("TW-MODEL-021", "user")


def test_of_a_sequence_that_is_an_input_nothing_is_known(tmp_path: Path) -> None:
    ingest(tmp_path, user("SequenceAt"), 1000)

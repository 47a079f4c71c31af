"""What nodes would make is counted before it is made; what the host refuses names its node."""

from __future__ import annotations

import resource
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.cache import MemoryCache
from worker.compiler.errors import CompilerError, ModelError
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.simplify import simplify
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.package.host_module import HostModule
from worker.compiler.partition.annotate import annotate
from worker.compiler.pipeline import compile_model
from worker.compiler.rejection import ReasonCode
from worker.job.ports import open_ports
from worker.job.request import NoProgress

FLOAT = TensorProto.FLOAT


def doubled(times: int) -> list[onnx.NodeProto]:
    names = ["x", *(f"d{k}" for k in range(times - 1)), "y"]
    return [
        helper.make_node("Concat", [a, a], [b], name=f"double{k}", axis=0)
        for k, (a, b) in enumerate(pairwise(names))
    ]


def node(kind: str, *given: str, **attributes: object) -> list[onnx.NodeProto]:
    return [helper.make_node(kind, list(given), ["y"], name="vast", **attributes)]


SHAPES = {
    "sizes": np.array([2**20, 2**20, 2**20], np.int64),
    "stretched": np.array([2**40, 2, 3], np.int64),
    "repeats": np.array([2**30, 2**30], np.int64),
    "pads": np.array([0, 0, 2**40, 0], np.int64),
    "start": np.array(0, np.int64), "limit": np.array(2**50, np.int64),
    "step": np.array(1, np.int64),
}  # fmt: skip
CASES = {
    "concat": doubled(60),
    "expand": node("Expand", "x", "stretched"),
    "tile": node("Tile", "x", "repeats"),
    "pad": node("Pad", "x", "pads"),
    "constant": node("ConstantOfShape", "sizes"),
    "range": node("Range", "start", "limit", "step"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_vast_tensor_is_refused_at_its_node(tmp_path: Path, name: str) -> None:
    given = [numpy_helper.from_array(array, key) for key, array in SHAPES.items()]
    used = {n for each in CASES[name] for n in each.input}
    kind = TensorProto.INT64 if name == "range" else FLOAT
    graph = helper.make_graph(
        CASES[name], "g", [helper.make_tensor_value_info("x", FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", kind, None)],
        [tensor for tensor in given if tensor.name in used],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path = tmp_path / "vast.onnx"
    path.write_bytes(model.SerializeToString())
    machine, options = load_preset("kapla-edge"), CompileOptions()
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    with pytest.raises(ModelError) as refused:
        compile_model(path, "m", machine, options, ports, Limits())
    assert refused.value.code in ("TW-MODEL-007", "TW-MODEL-014"), refused.value
    assert refused.value.place.node in ("vast", *(f"double{k}" for k in range(60)))
    assert time.process_time() - started < 3.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024


def doublings(times: int) -> onnx.ModelProto:
    image = helper.make_tensor_value_info("image", FLOAT, [4, 3, 4, 4])
    conv = helper.make_node("Conv", ["image", "w"], ["x"], name="conv")
    graph = helper.make_graph(
        [conv, *doubled(times)], "g", [image], [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(np.ones((6, 3, 3, 3), np.float32), "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("strategy", ["naive", "auto"])
def test_what_fits_no_home_memory_is_not_searched_for_tiles(tmp_path: Path, strategy: str) -> None:
    """The search took minutes and 4 GB before the link refused the program.

    Ten seconds of CPU are usual, and twice as many under coverage on a slow machine: the limit
    tells those from minutes, and no more.
    """
    path = tmp_path / "vast.onnx"
    path.write_bytes(doublings(28).SerializeToString())
    machine = load_preset("stcp920-inferred")
    options = CompileOptions.from_json({"strategy": strategy})
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    started = time.process_time()
    with pytest.raises(CompilerError) as refused:
        compile_model(path, "m", machine, options, ports, Limits())
    assert refused.value.code == "TW-PLAN-001"
    assert time.process_time() - started < 60.0
    annotated = annotate(simplify(bind(load_model(path, Limits()), {})), machine, {}).placement
    last = annotated[-1]
    assert last.reason_code is ReasonCode.DOES_NOT_FIT, last
    assert "needs 51539607552 bytes of DDR, which has 17179869184" in last.reason
    assert annotated[0].reason_code is ReasonCode.OFFLOADED


def test_ranges_are_not_observed_at_any_price(tmp_path: Path) -> None:
    """Calibration by random inputs ran the model, whatever it took."""
    path = tmp_path / "vast.onnx"
    path.write_bytes(doublings(25).SerializeToString())
    machine, options = load_preset("nvdla-large"), CompileOptions()
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    with pytest.raises(ModelError) as refused:
        compile_model(path, "m", machine, options, ports, Limits())
    assert refused.value.code == "TW-CAL-005"
    assert "bytes of values at a time, more than" in refused.value.message


def test_what_the_host_cannot_run_names_the_users_node() -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], name="/head/pick", axis=0)]
    graph = helper.make_graph(
        nodes, "host",
        [helper.make_tensor_value_info("x", FLOAT, [4]),
         helper.make_tensor_value_info("i", TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("y", FLOAT, [2])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    module = HostModule([model.SerializeToString()], threads=1)
    feeds = {"x": np.zeros(4, np.float32), "i": np.array([0, 9], np.int64)}
    with pytest.raises(CompilerError) as refused:
        module.run(0, ["y"], feeds)
    assert refused.value.code == "TW-RUN-003"
    assert refused.value.place.node == "/head/pick"
    broken = model.SerializeToString().replace(b"Gather", b"Gothar")
    with pytest.raises(CompilerError) as refused:
        HostModule([broken], threads=1)
    assert refused.value.code == "TW-RUN-003"
    assert refused.value.place.node == "/head/pick"


def part(kind: str, inputs: list[tuple[str, int, list[int]]], **attributes: object) -> bytes:
    """A host part of a node with a neighbour whose name is a part of its own name."""
    nodes = [
        helper.make_node(kind, [name for name, _, _ in inputs], ["m"], name="/a/b", **attributes),
        helper.make_node("Relu", ["m"], ["y"], name="/a"),
    ]
    graph = helper.make_graph(
        nodes, "host", [helper.make_tensor_value_info(*given) for given in inputs],
        [helper.make_tensor_value_info("y", inputs[0][1], None)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.mark.parametrize(
    ("model", "feeds"),
    [
        (part("MatMul", [("x", FLOAT, [2, 3]), ("z", FLOAT, [2, 3])]), None),
        (part("MatMul", [("x", FLOAT, []), ("z", TensorProto.INT64, [3])]), None),
        (part("Erf", [("x", TensorProto.DOUBLE, [3])]), None),
        (
            part("Reshape", [("x", FLOAT, [4]), ("z", TensorProto.INT64, [1])]),
            {"x": np.zeros(4, np.float32), "z": np.array([3])},
        ),
    ],
    ids=["shapes", "types", "no implementation", "run"],
)
def test_every_kind_of_refusal_names_the_node(
    model: bytes, feeds: dict[str, np.ndarray] | None
) -> None:
    with pytest.raises(CompilerError) as refused:
        module = HostModule([model], threads=1)
        module.run(0, ["y"], feeds or {})
    assert refused.value.code == "TW-RUN-003"
    assert refused.value.place.node == "/a/b", refused.value


def test_a_part_of_several_nodes_lists_them_when_none_is_named() -> None:
    module = HostModule([part("Erf", [("x", FLOAT, [3])])], threads=1)
    with pytest.raises(CompilerError) as refused:
        module.run(0, ["y"], {"x": np.zeros(4, np.float32)})
    assert refused.value.place.node is None
    assert "/a/b, /a" in refused.value.message

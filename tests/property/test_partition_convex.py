"""Parts of random models under random sides: convex, maximal, few, in a runnable order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
from counted_work import growth
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx_models import saved

from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import OnnxModel, load_model
from worker.compiler.machine import load_preset
from worker.compiler.partition.flow import captured_values
from worker.compiler.partition.partition import partition
from worker.compiler.partition.plan import HOST, Partitioning
from worker.compiler.rejection import ReasonCode, Rejection

MACHINE = load_preset("a100")


def graph_of(edges: list[tuple[int, int]]) -> onnx.ModelProto:
    """Node k adds two earlier values; value 0 is the model's input."""
    nodes = [
        helper.make_node("Add", [f"v{a}", f"v{b}"], [f"v{k + 1}"], name=f"n{k}")
        for k, (a, b) in enumerate(edges)
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "random",
        [value("v0", TensorProto.FLOAT, [4])],
        [value(f"v{len(edges)}", TensorProto.FLOAT, [4])],
        # shapes are given, since simplification could merge equal nodes
        value_info=[value(f"v{k}", TensorProto.FLOAT, [4]) for k in range(1, len(edges))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@st.composite
def models(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[bool]]:
    count = draw(st.integers(1, 10))
    edges = [(draw(st.integers(0, k)), draw(st.integers(0, k))) for k in range(count)]
    return edges, draw(st.lists(st.booleans(), min_size=count, max_size=count))


def cut(edges: list[tuple[int, int]], on_host: list[bool]) -> Partitioning:
    refused = {
        f"n{k}": Rejection(ReasonCode.DOES_NOT_FIT, "chosen by the test")
        for k, host in enumerate(on_host)
        if host
    }
    with tempfile.TemporaryDirectory() as folder:
        model = load_model(saved(graph_of(edges), Path(folder)), Limits(), "m")
        return partition(model, MACHINE, refused)


@given(models())
def test_parts_are_convex_and_run_in_order(
    drawn: tuple[list[tuple[int, int]], list[bool]],
) -> None:
    edges, on_host = drawn
    parts = cut(edges, on_host).parts
    part_of = {k: p for p, part in enumerate(parts) for k in part.nodes}
    assert sorted(part_of) == list(range(len(edges)))
    for part in parts:
        assert all(part.is_host is on_host[k] for k in part.nodes)
        assert list(part.nodes) == sorted(part.nodes)
    # sources never run later: with whole parts as steps this is convexity as well
    for k, sources in enumerate(edges):
        assert all(part_of[s - 1] <= part_of[k] for s in sources if s)


@given(models())
def test_host_parts_are_as_few_as_the_order_allows(
    drawn: tuple[list[tuple[int, int]], list[bool]],
) -> None:
    edges, on_host = drawn
    found = cut(edges, on_host)
    region_of = {k: r for r, part in enumerate(found.regions) for k in part.nodes}

    def steps(k: int) -> tuple[str, int]:
        return ("region", region_of[k]) if k in region_of else ("host", k)

    before: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for k, sources in enumerate(edges):
        own = before.setdefault(steps(k), set())
        own.update(steps(s - 1) for s in sources if s and steps(s - 1) != steps(k))

    def host_parts(step: tuple[str, int], is_host_after: bool) -> int:
        """Host parts needed up to `step` when the next one on the path is host or not."""
        is_host = step[0] == "host"
        own = int(is_host and not is_host_after)
        return own + max((host_parts(b, is_host) for b in before[step]), default=0)

    least = max(host_parts(step, False) for step in before)
    assert sum(part.is_host for part in found.parts) == least


@given(models())
def test_values_that_cross_are_exactly_the_ports(
    drawn: tuple[list[tuple[int, int]], list[bool]],
) -> None:
    edges, on_host = drawn
    parts = cut(edges, on_host).parts
    for part in parts:
        inside = set(part.nodes)
        read = {s for k in inside for s in edges[k] if s == 0 or s - 1 not in inside}
        assert set(part.inputs) == {f"v{s}" for s in read}
        used = {s - 1 for k in range(len(edges)) if k not in inside for s in edges[k] if s}
        given_out = {k for k in inside if k in used or k == len(edges) - 1}
        assert set(part.outputs) == {f"v{k + 1}" for k in given_out}


def test_values_captured_by_nested_sub_graphs_are_inputs(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info

    def branch(name: str, source: str) -> onnx.GraphProto:
        inner = helper.make_node("Neg", [source], [f"{name}_neg"], name=f"{name}_neg")
        return helper.make_graph([inner], name, [], [value(f"{name}_neg", TensorProto.FLOAT, [4])])

    outer = helper.make_graph(
        [helper.make_node("If", ["c"], ["deep"], name="deep_if",
                          then_branch=branch("a", "x"), else_branch=branch("b", "z"))],
        "outer", [], [value("deep", TensorProto.FLOAT, [4])],
    )  # fmt: skip
    top = helper.make_node(
        "If", ["c"], ["y"], name="top", then_branch=outer, else_branch=branch("d", "x")
    )
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["z"], name="relu"), top],
        "captures",
        [value("x", TensorProto.FLOAT, [4]), value("c", TensorProto.BOOL, [])],
        [value("y", TensorProto.FLOAT, [4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    loaded = load_model(saved(model, tmp_path), Limits(), "m")
    names = [v.name for v in captured_values(loaded.ir.graph[-1])]
    assert names[0] == "c"
    assert sorted(str(n) for n in names) == ["c", "x", "z"]
    host = [p for p in partition(loaded, MACHINE, {}).parts if p.target == HOST]
    assert [sorted(p.inputs) for p in host] == [["c", "x", "z"]]


def test_control_flow_is_a_host_part_of_its_own(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info

    def branch(name: str) -> onnx.GraphProto:
        inner = helper.make_node("Neg", ["h"], [f"{name}_neg"], name=f"{name}_neg")
        return helper.make_graph([inner], name, [], [value(f"{name}_neg", TensorProto.FLOAT, [4])])

    nodes = [
        helper.make_node("Acosh", ["x"], ["h"], name="before"),
        helper.make_node("If", ["c"], ["i"], name="if", then_branch=branch("a"),
                         else_branch=branch("b")),
        helper.make_node("Acosh", ["i"], ["j"], name="after"),
        helper.make_node("Acosh", ["x"], ["k"], name="aside"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "control",
        [value("x", TensorProto.FLOAT, [4]), value("c", TensorProto.BOOL, [])],
        [value(name, TensorProto.FLOAT, [4]) for name in ("j", "k", "r")],
        value_info=[value(name, TensorProto.FLOAT, [4]) for name in ("h", "i")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    refused = {
        name: Rejection(ReasonCode.DOES_NOT_FIT, "chosen by the test")
        for name in ("before", "after", "aside")
    }
    found = partition(load_model(saved(model, tmp_path), Limits(), "m"), MACHINE, refused)
    names = [row.node for row in found.placement]
    assert [(part.is_host, [names[k] for k in part.nodes]) for part in found.parts] == [
        (True, ["before", "aside"]),
        (True, ["if"]),
        (False, ["relu"]),
        (True, ["after"]),
    ]


def test_partition_grows_linearly_with_nodes(tmp_path: Path) -> None:
    """Annotation included; the chain is interrupted by host operators.

    Seconds at 10 000 nodes are printed by `benchmarks.partition_speed`.
    """

    def parted(count: int) -> Partitioning:
        edges = [(k, max(0, k - 7)) for k in range(count)]
        model = models[count] = models.get(count) or load_model(
            saved(graph_of(edges), tmp_path), Limits(), "m"
        )
        refused = {
            f"n{k}": Rejection(ReasonCode.DOES_NOT_FIT, "chosen by the test")
            for k in range(50, count, 100)
        }
        return partition(model, MACHINE, refused)

    models: dict[int, OnnxModel] = {}
    assert len(parted(500).regions) >= 5
    parted(1000)
    assert growth(parted, 500) < 2.2

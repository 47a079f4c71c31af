"""Declared instructions price what runs as their calls: cycles, pattern and rule all move it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.cache import MemoryCache
from worker.compiler.cost.calls import CallRate
from worker.compiler.frontend.limits import Limits
from worker.compiler.machine import load_machine, preset_document
from worker.compiler.machine.machine import CallSize
from worker.compiler.options import CompileOptions
from worker.compiler.partition.plan import CompositeKind
from worker.compiler.pipeline import compile_model
from worker.job.ports import open_ports
from worker.job.request import NoProgress

Document = dict[str, Any]
CONV_RELU = {
    "name": "conv_relu", "intrinsic": "cv",
    "match": {"op": "Relu", "inputs": [
        {"op": "Conv", "inputs": ["any", "constant"], "attributes": {"strides": {"max": 1}}},
    ]},
}  # fmt: skip


def quantised(path: Path, stride: int, *, folded: bool = False) -> Path:
    """One convolution and ReLU inside QDQ: x[1, 16, 16, 16] by w[32, 16, 3, 3].

    `folded`: the quantisation begins at zero, and the ReLU is left out.
    """
    rng = np.random.default_rng(0)
    weights = {
        "s": np.array(0.1, np.float32), "z": np.array(0, np.int8),
        "end": np.array(-128 if folded else 0, np.int8),
        "w": rng.integers(-8, 8, (32, 16, 3, 3)).astype(np.int8),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q0"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="dq0"),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["dw"], name="dqw"),
        helper.make_node(
            "Conv", ["d", "dw"], ["c"], name="conv", pads=[1] * 4, strides=[stride] * 2
        ),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("QuantizeLinear", ["c" if folded else "r", "s", "end"], ["q1"], name="q1"),
        helper.make_node("DequantizeLinear", ["q1", "s", "end"], ["y"], name="dq1"),
    ]
    nodes = [node for node in nodes if not (folded and node.name == "relu")]
    side = 16 // stride
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32, side, side])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def chip(*intrinsics: Document, patterns: tuple[Document, ...] = (CONV_RELU,)) -> Document:
    document: Document = json.loads(json.dumps(preset_document("ethos-u65")))
    engine = next(e for e in document["engines"] if e["kind"] == "matrix")
    engine["intrinsics"] = list(intrinsics)
    document["capabilities"]["patterns"] = list(patterns)
    return document


def cv(cycles: int, name: str = "cv") -> Document:
    return {"name": name, "op": "conv", "extents": [1, 32, 8, 8, 3, 3, 16], "cycles": cycles}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[int, str, str | None]]:
    def of(
        document: Document, stride: int = 1, *, folded: bool = False
    ) -> tuple[int, str, str | None]:
        """(cycles of the product's computes, schedule, instruction of the cluster)."""
        machine = load_machine(document)
        ports = open_ports(machine, CompileOptions(), MemoryCache(), NoProgress())
        path = quantised(tmp_path / "m.onnx", stride, folded=folded)
        found = compile_model(path, "m", machine, CompileOptions(), ports, Limits())
        (region,) = found.partitioning.regions
        (cluster,) = (c for c in region.composites if c.kind is CompositeKind.CLUSTER)
        units = found.units
        rows = [row for unit in units for row in unit.program.instructions if row["macs"] > 0]
        spent = sum(int(row["cycles"]) for row in rows)
        return spent, "\n".join(unit.schedule_text for unit in units), cluster.intrinsic

    return of


Run = Callable[..., tuple[int, str, "str | None"]]


def test_cycles_of_an_instruction_are_those_of_the_kernel(run: Run) -> None:
    fast, text, named = run(chip(cv(10)))
    slower, _, _ = run(chip(cv(100)))
    assert named == "cv"
    assert "intrinsic=cv" in text
    assert slower > fast


def test_an_instruction_worse_than_the_engine_is_left_alone(run: Run) -> None:
    plain, _, _ = run(chip(patterns=()))
    avoided, text, named = run(chip(cv(1_000_000)))
    assert named == "cv"
    assert "intrinsic=" not in text
    assert avoided == plain


def test_without_the_pattern_nothing_is_run_by_its_instruction(run: Run) -> None:
    other = {**CONV_RELU, "name": "other", "intrinsic": None}
    plain, _, _ = run(chip(patterns=()))
    found, text, named = run(chip(cv(10), patterns=(other,)))
    assert (named, "intrinsic=" in text) == (None, False)
    assert found == plain


def test_without_a_table_an_instruction_serves_all_of_its_kind(run: Run) -> None:
    called, text, named = run(chip(cv(10), patterns=()))
    assert (named, "intrinsic=cv" in text) == (None, True)
    assert called < run(chip(cv(100), patterns=()))[0]


def test_a_folded_activation_is_priced_by_the_rows_instruction(run: Run) -> None:
    fast, text, named = run(chip(cv(10)), folded=True)
    slower, _, _ = run(chip(cv(100)), folded=True)
    assert (named, "intrinsic=cv" in text) == ("cv", True)
    assert fast < slower
    assert fast == run(chip(cv(10)))[0]


def test_a_rule_keeps_what_it_excludes_from_the_instruction(run: Run) -> None:
    """Strides of 2 where the pattern allows 1."""
    _, text, named = run(chip(cv(10)), stride=2)
    assert (named, "intrinsic=" in text) == (None, False)


def test_the_best_of_a_table_of_sizes_and_a_formula_of_edges() -> None:
    """A box of 20 x 8 x 4: calls of 16 x 8 x 4 leave an edge of 4 rows, of which a formula in m
    takes a quarter."""
    box = (20, 8, 4)
    constant = CallSize((16, 8, 4), (("", 10.0),))
    small = CallSize((4, 8, 4), (("", 3.0),))
    formula = CallSize((16, 8, 4), (("", 2.0), ("m", 0.5)))
    for sizes, cycles in (
        ((constant,), 20), ((constant, small), 15), ((formula,), 10 + 4)
    ):  # fmt: skip
        rate = CallRate("mm", sizes, ((0,), (1,), (2,), ()))
        assert rate.cycles(box) == cycles
        assert rate.cycles(box) >= 20 * 8 * 4 / rate.peak


def test_an_operator_is_written_with_its_instruction(run: Run) -> None:
    assert " by cv" in run(chip(cv(10)))[1]

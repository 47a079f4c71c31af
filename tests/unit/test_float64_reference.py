"""The model in float64: right against exact sums, whatever its operators and types."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import conv_net, saved

from worker.verification.reference import defined_outputs, float64_outputs, reference_outputs

Array = npt.NDArray[Any]
info = helper.make_tensor_value_info
RNG = np.random.default_rng(1)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Array],
    outputs: list[str],
    weights: dict[str, Array],
    opset: int = 18,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(v, n) for n, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def convolved(
    x: Array, w: Array, group: int, strides: list[int], dilations: list[int], pads: list[int]
) -> Array:
    """The definition, term by term, in Python's integers."""
    rank = w.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    sizes = [
        (x.shape[2 + k] - (w.shape[2 + k] - 1) * dilations[k] - 1) // strides[k] + 1
        for k in range(rank)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *sizes))
    per = w.shape[0] // group
    for n, m in product(range(x.shape[0]), range(w.shape[0])):
        for at in product(*map(range, sizes)):
            total = 0
            for c, *k in product(*map(range, w.shape[1:])):
                where = [
                    a * s + i * d for a, s, i, d in zip(at, strides, k, dilations, strict=True)
                ]
                total += int(x[(n, m // per * w.shape[1] + c, *where)]) * int(w[(m, c, *k)])
            y[(n, m, *at)] = total
    return y


@pytest.mark.parametrize(
    ("shape", "kernel", "settings", "pads"),
    [
        ((2, 4, 7, 6), (6, 4, 3, 2), {"pads": [1, 0, 2, 1]}, [1, 0, 2, 1]),
        ((1, 4, 9), (6, 2, 3), {"group": 2, "strides": [2], "dilations": [2]}, [0, 0]),
        ((1, 6, 5, 5), (6, 1, 3, 3), {"group": 6, "auto_pad": "SAME_UPPER", "strides": [2, 2]},
         [1, 1, 1, 1]),
        ((1, 3, 6, 6), (2, 3, 2, 2), {"auto_pad": "SAME_LOWER"}, [1, 1, 0, 0]),
        ((1, 2, 3, 4, 3), (3, 2, 2, 1, 2), {"auto_pad": "VALID"}, [0] * 6),
    ],
)  # fmt: skip
def test_convolutions_are_exact_where_float32_is_not(
    tmp_path: Path, shape: tuple[int, ...], kernel: tuple[int, ...], settings: dict[str, Any],
    pads: list[int],
) -> None:  # fmt: skip
    """Whole numbers of 24 bits: products have 48, which float64 adds without rounding."""
    x = RNG.integers(-(1 << 24), 1 << 24, shape).astype(np.float32)
    w = RNG.integers(-(1 << 24), 1 << 24, kernel).astype(np.float32)
    b = RNG.integers(-(1 << 24), 1 << 24, kernel[:1]).astype(np.float32)
    rank = len(kernel) - 2
    want = convolved(x, w, settings.get("group", 1), settings.get("strides", [1] * rank),
                     settings.get("dilations", [1] * rank), pads)  # fmt: skip
    want = want + b.astype(np.float64).reshape(-1, *[1] * rank)
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **settings)
    path = saved(model_of([node], {"x": x}, ["y"], {"w": w, "b": b}), tmp_path)
    found = float64_outputs(path, {"x": x}, ["y"], {}, {})
    assert found.kept == 0
    np.testing.assert_array_equal(found.values["y"], want)
    plain, _ = reference_outputs(path, {"x": x})
    assert not np.array_equal(plain["y"], want)


def test_every_value_of_a_net_is_closer_to_the_truth_than_the_reference(tmp_path: Path) -> None:
    path = saved(conv_net(), tmp_path)
    names = [name for node in conv_net().graph.node for name in node.output]
    x = RNG.standard_normal((1, 3, 12, 12)).astype(np.float32)
    outputs, inner = reference_outputs(path, {"x": x}, names)
    found = float64_outputs(path, {"x": x}, names, {}, {})
    assert found.kept == 0
    for name, value in {**outputs, **inner}.items():
        assert found.values[name].dtype == np.float64
        np.testing.assert_allclose(found.values[name], value, rtol=1e-4, atol=1e-6)
    assert np.abs(found.values["y"].sum() - 1) < 1e-14


def test_bodies_sequences_halves_and_casts(tmp_path: Path) -> None:
    """A branch that captures a value, a sequence, float16 inside, an operator kept in float32."""
    branch = helper.make_graph(
        [helper.make_node("Mul", ["s", "third"], ["t"])], "then", [],
        [info("t", TensorProto.FLOAT, [4])],
        [numpy_helper.from_array(np.array(1 / 3, np.float32), "third")],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Identity", ["s"], ["u"])],
        "else",
        [],
        [info("u", TensorProto.FLOAT, [4])],
    )
    nodes = [
        helper.make_node("Add", ["x", "w"], ["s"]),
        helper.make_node("If", ["yes"], ["i"], then_branch=branch, else_branch=other),
        helper.make_node("Cast", ["i"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Exp", ["h"], ["e"]),
        helper.make_node("Cast", ["e"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("SequenceConstruct", ["f", "s"], ["q"]),
        helper.make_node("SequenceAt", ["q", "zero"], ["g"]),
        helper.make_node("Erf", ["g"], ["k"]),
        helper.make_node("Greater", ["k", "w"], ["bits"]),
        helper.make_node("Cast", ["bits"], ["y"], to=TensorProto.FLOAT),
    ]
    x = RNG.standard_normal(4).astype(np.float32)
    w = RNG.standard_normal(4).astype(np.float32)
    given = {"x": x, "yes": np.array(True)}
    model = model_of(nodes, given, ["y"], {"w": w, "zero": np.array(0)})
    names = ["s", "i", "h", "e", "f", "g", "k", "bits", "y"]
    found = float64_outputs(saved(model, tmp_path), given, names, {}, {})
    inside = (x.astype(np.float64) + w) * np.float64(np.float32(1 / 3))
    np.testing.assert_array_equal(found.values["i"], inside)
    np.testing.assert_allclose(found.values["g"], np.exp(inside), rtol=1e-15)
    assert found.values["k"].dtype == np.float64
    assert found.kept == 1
    np.testing.assert_array_equal(found.values["y"], (found.values["k"] > w).astype(np.float64))


def test_a_selection_takes_the_values_it_is_given(tmp_path: Path) -> None:
    """Two scores that tie in float32 only: float64 would choose the other one."""
    x = np.array([1.0, 1.0, 0.5], np.float32)
    w = np.array([0.0, 1e-9, 0.0], np.float32)
    nodes = [
        helper.make_node("Add", ["x", "w"], ["s"]),
        helper.make_node("TopK", ["s", "one"], ["best", "where"]),
    ]
    model = model_of(nodes, {"x": x}, ["best", "where"], {"w": w, "one": np.array([1])})
    path = saved(model, tmp_path)
    free = float64_outputs(path, {"x": x}, ["where"], {}, {})
    assert free.values["where"].tolist() == [1]
    forced = {"s": x + w}
    held = float64_outputs(path, {"x": x}, ["s", "where"], forced, {"TopK": ["s"]})
    assert held.values["where"].tolist() == [0]
    assert held.values["s"][1] > 1.0


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes", "opset"),
    [
        ("Attention", [(1, 2, 5, 8), (1, 2, 6, 8), (1, 2, 6, 8)], {"softcap": 2.0}, 23),
        ("RMSNormalization", [(3, 8), (8,)], {}, 23),
        ("RotaryEmbedding", [(1, 2, 4, 8), (1, 4, 4), (1, 4, 4)], {}, 23),
        ("GroupNormalization", [(2, 4, 3, 3), (4,), (4,)], {"num_groups": 2}, 21),
        ("LeakyRelu", [(4, 5)], {"alpha": 0.3}, 18),
        ("LRN", [(2, 6, 3, 4)], {"size": 3, "alpha": 0.4, "beta": 0.6, "bias": 1.5}, 18),
        ("LRN", [(2, 1, 5, 2)], {"size": 5}, 13),
    ],
)
def test_what_has_a_body_computes_in_float64(
    tmp_path: Path,
    op_type: str,
    shapes: list[tuple[int, ...]],
    attributes: dict[str, Any],
    opset: int,
) -> None:
    """ONNX Runtime has these in float32 only: what defines them stands in their place."""
    inputs = {f"x{k}": RNG.standard_normal(s).astype(np.float32) for k, s in enumerate(shapes)}
    made = helper.make_node(op_type, list(inputs), ["y"], name="node", **attributes)
    model = model_of([made], inputs, ["y"], {}, opset)
    model.ir_version = 10
    path = saved(model, tmp_path)
    exact = float64_outputs(path, inputs, ["y"], {}, {})
    assert exact.kept == 0
    outputs, _ = reference_outputs(path, inputs)
    assert exact.values["y"].dtype == np.float64
    assert exact.values["y"] == pytest.approx(outputs["y"], rel=1e-5, abs=1e-6)
    assert np.any(exact.values["y"] != outputs["y"].astype(np.float64))


def test_a_definition_stands_in_the_place_of_its_operator(tmp_path: Path) -> None:
    """The same values by other roundings; Tanh of subnormal numbers is far from exact."""
    inputs = {k: RNG.standard_normal((1, 2, 5, 8)).astype(np.float32) for k in ("q", "k", "v")}
    nodes = [
        helper.make_node("Relu", ["q"], ["positive"]),
        helper.make_node("Attention", ["positive", "k", "v"], ["a"], softcap=1e38),
        helper.make_node("Sub", ["a", "v"], ["y"]),
    ]
    model = model_of(nodes, inputs, ["y"], {}, 23)
    model.ir_version = 10
    path = saved(model, tmp_path)
    defined = defined_outputs(path, inputs, ["a", "y"])
    assert defined is not None and set(defined) == {"a", "y"}
    outputs, inner = reference_outputs(path, inputs, ["a"])
    exact = float64_outputs(path, inputs, ["a"], {}, {}).values["a"]
    assert defined["y"] == pytest.approx(outputs["y"], abs=1e-4)
    apart = np.abs(defined["a"] - exact).max()
    assert apart > 5 * np.abs(inner["a"] - exact).max()
    assert apart < 1e-4
    del model.graph.node[1]  # no operator that has a definition but for its expression
    model.graph.node[1].input[0] = "positive"
    assert defined_outputs(saved(model, tmp_path, "plain.onnx"), inputs, ["y"]) is None


def test_a_definition_is_found_inside_the_model_s_own_functions(tmp_path: Path) -> None:
    inputs = {k: RNG.standard_normal((1, 2, 5, 8)).astype(np.float32) for k in ("q", "k", "v")}
    call = helper.make_node("F", list(inputs), ["y"], domain="mine")
    model = model_of([call], inputs, ["y"], {}, 23)
    model.ir_version = 10
    model.opset_import.append(helper.make_opsetid("mine", 1))
    body = [helper.make_node("Attention", ["a", "b", "c"], ["d"])]
    model.functions.append(
        helper.make_function("mine", "F", ["a", "b", "c"], ["d"], body, model.opset_import[:1])
    )
    path = saved(model, tmp_path)
    defined = defined_outputs(path, inputs, ["y"])
    assert defined is not None
    assert defined["y"] == pytest.approx(reference_outputs(path, inputs)[0]["y"], abs=1e-5)

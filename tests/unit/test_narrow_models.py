"""Models of narrow types through the whole compiler: on the accelerator, on the host, between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import saved

from worker.compiler.assembly.packing import kernel_texts, program_contents
from worker.compiler.cache import MemoryCache
from worker.compiler.errors import InputError, ModelError
from worker.compiler.frontend.edges import NARROW_INTEGERS, recast_edges
from worker.compiler.frontend.limits import Limits
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.machine import load_machine
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions
from worker.compiler.package.build import build_library
from worker.compiler.package.runtime import load_program
from worker.compiler.partition.plan import HOST
from worker.compiler.pipeline import compile_model
from worker.job.ports import open_ports
from worker.job.request import NoProgress
from worker.verification.reference import reference_outputs

FLOAT = TensorProto.FLOAT
TYPES: dict[str, tuple[int, Any]] = {
    "f8e4m3fn": (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
    "f8e4m3fnuz": (TensorProto.FLOAT8E4M3FNUZ, ml_dtypes.float8_e4m3fnuz),
    "f8e5m2": (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2),
    "f8e5m2fnuz": (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz),
    "f4e2m1": (TensorProto.FLOAT4E2M1, ml_dtypes.float4_e2m1fn),
    "i4": (TensorProto.INT4, ml_dtypes.int4),
    "u4": (TensorProto.UINT4, ml_dtypes.uint4),
    "i2": (TensorProto.INT2, ml_dtypes.int2),
    "u2": (TensorProto.UINT2, ml_dtypes.uint2),
}
ON_HOST = [name for name in TYPES if name != "f4e2m1"]
SHAPE = (4, 6)
X = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)


def machine(*, takes_narrow: bool) -> Machine:
    document: dict[str, Any] = {
        "schema_version": 1, "name": "narrow", "description": "a chip", "inherits": "kapla-16x16",
    }  # fmt: skip
    if takes_narrow:
        rates = {"f32": 4, **dict.fromkeys(TYPES, 8)}
        document["engines"] = [{"name": "VEC", "macs_per_cycle": rates}]
        document["capabilities"] = {
            "dtypes": ["f32", "f16", "i8", "u8", "i16", "i32", "i64", "bool", *TYPES],
            "groups": ["broad"],
        }
    return load_machine(document)


def quantised(*names: str) -> onnx.ModelProto:
    """x -> relu -> q_NAME -> dequantised -> relu -> y_NAME for every name; all are outputs."""
    nodes = [helper.make_node("Relu", ["x"], ["r"], name="relu")]
    constants = [helper.make_tensor("s", FLOAT, [], [0.25])]
    outputs = []
    for n in names:
        kind, _ = TYPES[n]
        constants.append(helper.make_tensor(f"z_{n}", kind, [], [0]))
        scales = ["s", f"z_{n}"]
        nodes += [
            helper.make_node("QuantizeLinear", ["r", *scales], [f"q_{n}"], name=f"quantise_{n}"),
            helper.make_node("DequantizeLinear", [f"q_{n}", *scales], [f"d_{n}"], name=f"back_{n}"),
            helper.make_node("Relu", [f"d_{n}"], [f"y_{n}"], name=f"again_{n}"),
        ]
        outputs += [
            helper.make_tensor_value_info(f"q_{n}", kind, SHAPE),
            helper.make_tensor_value_info(f"y_{n}", FLOAT, SHAPE),
        ]
    given = helper.make_tensor_value_info("x", FLOAT, SHAPE)
    graph = helper.make_graph(nodes, "g", [given], outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)


def codes(name: str) -> np.ndarray[Any, Any]:
    """What `quantise` must give."""
    steps = np.maximum(X, 0) / np.float32(0.25)
    own = TYPES[name][1]
    info = ml_dtypes.iinfo(own) if name[0] in "iu" else ml_dtypes.finfo(own)
    whole = np.rint(steps) if name[0] in "iu" else steps
    return np.clip(whole, float(info.min), float(info.max)).astype(own)


def compiled(model: onnx.ModelProto, chip: Machine, folder: Path) -> CompiledModel:
    options = CompileOptions()
    ports = open_ports(chip, options, MemoryCache(), NoProgress())
    return compile_model(saved(model, folder, "m.onnx"), "m", chip, options, ports, Limits())


def run(model: CompiledModel, folder: Path, **inputs: Any) -> dict[str, Any]:
    library = build_library(kernel_texts(model), folder)
    return load_program(program_contents(model), library).run(inputs)


@pytest.mark.parametrize("takes_narrow", [False, True], ids=["host", "accelerator"])
def test_every_type_is_quantised_to_and_given_as_bytes(takes_narrow: bool, tmp_path: Path) -> None:
    names = [*TYPES] if takes_narrow else ON_HOST
    made = compiled(quantised(*names), machine(takes_narrow=takes_narrow), tmp_path)
    on_host = {row.node for row in made.placement if row.target == HOST}
    quantisers = {f"{part}_{n}" for n in names for part in ("quantise", "back")}
    assert on_host == (set() if takes_narrow else quantisers)
    found = run(made, tmp_path, x=X)
    for n in names:
        expected = codes(n)
        stored, kind = found[f"q_{n}"], np.int8 if n in ("i4", "i2") else np.uint8
        assert stored.dtype == kind
        bits = expected.view(np.uint8) if n[0] == "f" else expected.astype(kind)
        np.testing.assert_array_equal(stored, bits, err_msg=n)
        back = expected.astype(np.float32) * np.float32(0.25)
        np.testing.assert_array_equal(found[f"y_{n}"], back, err_msg=n)


@pytest.mark.parametrize("takes_narrow", [False, True], ids=["host", "accelerator"])
@pytest.mark.parametrize("name", ["f8e5m2", "u4"])
def test_an_input_may_be_of_the_type_or_its_bytes(
    name: str, takes_narrow: bool, tmp_path: Path
) -> None:
    kind, own = TYPES[name]
    nodes = [helper.make_node("Cast", ["x"], ["f"], to=FLOAT, name="cast"),
             helper.make_node("Exp", ["f"], ["y"], name="exp")]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", kind, SHAPE)],
        [helper.make_tensor_value_info("y", FLOAT, SHAPE)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
    made = compiled(model, machine(takes_narrow=takes_narrow), tmp_path)
    given = np.maximum(X * 4, 0).astype(own)
    expected = np.exp(given.astype(np.float32))
    stored = given.view(np.uint8) if name[0] == "f" else given.astype(np.uint8)
    for fed in (given, stored):
        np.testing.assert_allclose(run(made, tmp_path, x=fed)["y"], expected, rtol=1e-6)
    with pytest.raises(InputError, match="must be"):
        run(made, tmp_path, x=given.astype(np.float32))


def test_a_type_that_nobody_can_run_is_refused_at_its_node(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as refusal:
        compiled(quantised("f4e2m1"), machine(takes_narrow=False), tmp_path)
    assert refusal.value.code == "TW-UNSUP-002"
    assert refusal.value.place.node == "quantise_f4e2m1"


def test_a_cast_whose_rounding_runtimes_disagree_about_stays_on_the_host(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT4, name="cast")], "g",
        [helper.make_tensor_value_info("x", FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.INT4, SHAPE)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
    made = compiled(model, machine(takes_narrow=True), tmp_path)
    assert made.placement[0].target == HOST
    np.testing.assert_array_equal(
        run(made, tmp_path, x=np.rint(X))["y"], np.rint(X).astype(np.int8)
    )


@pytest.mark.parametrize("code", ["bfloat16", "f8e4m3fn", "i4"])
def test_the_reference_takes_and_gives_what_numpy_has_not(code: str, tmp_path: Path) -> None:
    kind, own = {**TYPES, "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16)}[code]
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=FLOAT),
        helper.make_node("Neg", ["f"], ["n"]),
        helper.make_node("Cast", ["n"], ["y"], to=kind),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", kind, SHAPE)],
        [helper.make_tensor_value_info("y", kind, SHAPE)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
    given = np.rint(X * 2).astype(own)
    outputs, _ = reference_outputs(saved(model, tmp_path, "m.onnx"), {"x": given})
    assert outputs["y"].dtype == np.float32
    np.testing.assert_array_equal(outputs["y"], -given.astype(np.float32))


def test_edges_inside_branches_are_renamed_with_the_rest() -> None:
    branch = helper.make_graph(
        [helper.make_node("Cast", ["v"], ["w"], to=FLOAT)], "b", [],
        [helper.make_tensor_value_info("w", FLOAT, [2])],
    )  # fmt: skip
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    copy = helper.make_node("Identity", ["v"], ["u"])
    graph = helper.make_graph(
        [node, copy], "g",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, []),
         helper.make_tensor_value_info("v", TensorProto.UINT4, [2])],
        [helper.make_tensor_value_info("y", FLOAT, [2]),
         helper.make_tensor_value_info("u", TensorProto.UINT4, [2]),
         helper.make_tensor_value_info("v", TensorProto.UINT4, [2])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    recast_edges(model, NARROW_INTEGERS)
    onnx.checker.check_model(model, full_check=True)
    kinds = {
        v.name: v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)
    }
    uint8 = TensorProto.UINT8
    assert kinds == {"c": TensorProto.BOOL, "v": uint8, "y": FLOAT, "u": uint8}
    inner = model.graph.node[1].attribute[0].g
    assert inner.node[0].input[0] == model.graph.node[0].output[0] == "v.inside"

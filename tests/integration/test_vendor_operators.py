"""Operators of a vendor's domain, from a spec or from the model: compiled, checked and matched."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from vendor_operators import (
    DOMAIN,
    NAMES,
    inlined,
    num_calls,
    operators,
    random_model,
    spec,
    with_functions,
)

from worker.compiler.assembly.packing import kernel_texts, program_contents
from worker.compiler.cache import MemoryCache
from worker.compiler.errors import ModelError
from worker.compiler.frontend.declared import completed
from worker.compiler.frontend.limits import Limits
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.machine import load_machine, preset_document
from worker.compiler.machine.digest import digest
from worker.compiler.options import CompileOptions, PartitionChoice, VerifyMode
from worker.compiler.package.build import build_library
from worker.compiler.package.runtime import load_program
from worker.compiler.pipeline import compile_model
from worker.conformance.cases import Selection, conformance_suite
from worker.conformance.run import run_suite
from worker.job.job import run_job
from worker.job.match import match_report
from worker.job.ports import open_ports
from worker.job.preflight import preflight
from worker.job.request import JobRequest, NoProgress

_OPTIONS = CompileOptions(partition=PartitionChoice.GREEDY, verify=VerifyMode.NONE)
I8 = replace(_OPTIONS, precision=CompileOptions.from_json({"precision": "i8"}).precision)


def saved(model: onnx.ModelProto, folder: Path, name: str = "model") -> Path:
    path = folder / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def compiled(
    path: Path, document: dict[str, Any], folder: Path, options: CompileOptions = _OPTIONS
) -> CompiledModel:
    machine = load_machine(document)
    source = completed(path, machine.operators, folder, Limits())
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    return compile_model(source, "model", machine, options, ports, Limits())


def outputs(made: CompiledModel, folder: Path, x: Any) -> dict[str, Any]:
    library = build_library(kernel_texts(made), folder)
    return dict(load_program(program_contents(made), library).run({"x": x}))


def composites(made: CompiledModel) -> list[str]:
    return sorted(c.name for part in made.partitioning.regions for c in part.composites)


@pytest.mark.parametrize("seed", range(6))
def test_random_models_give_the_bits_of_the_models_written_out(seed: int, tmp_path: Path) -> None:
    model = random_model(seed)
    bare = {**spec(), "capabilities": {"patterns": []}, "operators": []}
    folder = tmp_path / "b"
    folder.mkdir()
    ours = compiled(saved(model, tmp_path), spec(), tmp_path)
    plain = compiled(saved(inlined(model), tmp_path, "plain"), bare, folder)
    x = np.random.default_rng(seed).integers(-2, 3, (1, 3, 6, 6)).astype(np.float32)
    one, other = outputs(ours, tmp_path, x), outputs(plain, folder, x)
    assert list(one) == list(other)
    for name, value in one.items():
        np.testing.assert_array_equal(value.view(np.uint32), other[name].view(np.uint32))
    assert len(composites(ours)) == num_calls(model)
    assert composites(plain) == []


def test_functions_that_nothing_calls_and_are_deep_are_refused(tmp_path: Path) -> None:
    """By ONNX's inliner: digests of bodies, which go down by recursion, do not meet them."""
    model = random_model(0)
    opset = model.opset_import[0].version
    for k in range(2000):
        last = k == 1999
        node = onnx.helper.make_node(
            "Relu" if last else f"deep{k + 1}", ["x"], ["y"], domain="" if last else "deep"
        )
        imports = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("deep", 1)]
        model.functions.append(
            onnx.helper.make_function("deep", f"deep{k}", ["x"], ["y"], [node], imports)
        )
    model.opset_import.append(onnx.helper.make_opsetid("deep", 1))
    with pytest.raises(ModelError, match="exceeds limit") as caught:
        compiled(saved(model, tmp_path), spec(), tmp_path)
    assert caught.value.code == "TW-MODEL-008"


@pytest.mark.parametrize("seed", [0, 3])
def test_match_and_compile_agree_and_the_models_own_functions_do_the_same(
    seed: int, tmp_path: Path
) -> None:
    model = random_model(seed)
    found = {}
    for name, each, document in (
        ("spec", model, spec()),
        ("own", with_functions(model), spec()),
        ("own only", with_functions(model), spec(operators=[])),
    ):
        path = saved(each, tmp_path)
        (target,) = match_report(path, document, _OPTIONS)["targets"]  # type: ignore[misc]
        rows = sorted(row["pattern"] for row in target["matches"])  # type: ignore[index]
        assert composites(compiled(path, document, tmp_path)) == rows
        found[name] = [row["nodes"] for row in target["matches"]]  # type: ignore[index]
    assert found["spec"] == found["own"] == found["own only"]
    assert len(found["spec"]) == num_calls(model)


def test_a_job_verifies_against_onnx_runtime_and_names_the_users_file(tmp_path: Path) -> None:
    path = saved(random_model(1), tmp_path)
    request = JobRequest(
        path, "model.onnx", spec(), CompileOptions(verify=VerifyMode.FULL), tmp_path / "build"
    )
    run_job(request, tmp_path / "out", MemoryCache(), NoProgress())
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verification"]["passed"] and report["verification"]["compared"] > 0
    from hashlib import sha256

    assert report["model"]["sha256"] == sha256(path.read_bytes()).hexdigest()


def test_what_the_accelerator_lacks_runs_on_the_host(tmp_path: Path) -> None:
    """ONNX Runtime does not know the operator; the host runs its definition."""
    few = {"groups": [], "ops": [{"op_type": "Sub"}]}
    made = compiled(
        saved(random_model(2), tmp_path), {**spec(), "capabilities": few, "name": "few"}, tmp_path
    )
    on_host = {row.op_type for row in made.placement if row.target == "host"}
    assert {"Conv", "Clip"} <= on_host
    x = np.ones((1, 3, 6, 6), np.float32)
    assert all(np.isfinite(value).all() for value in outputs(made, tmp_path, x).values())


def test_a_definition_that_changes_changes_the_digest_and_the_result(tmp_path: Path) -> None:
    path = saved(random_model(4), tmp_path)
    other = operators()
    other[0] = {
        **other[0],
        "definition": other[0]["definition"].replace("float = 6.0", "float = 1.0"),
    }
    first, second = spec(), spec(operators=other)
    assert digest(load_machine(first)) != digest(load_machine(second))
    x = np.full((1, 3, 6, 6), 3, np.float32)
    one = outputs(compiled(path, first, tmp_path), tmp_path, x)
    two = outputs(compiled(path, second, tmp_path), tmp_path, x)
    assert any((one[name] != two[name]).any() for name in one)


def test_a_model_that_defines_it_otherwise_is_not_the_vendors(tmp_path: Path) -> None:
    model = with_functions(random_model(0))
    own = next(f for f in model.functions if f.name == "ConvRelu6")
    next(a for a in own.attribute_proto if a.name == "cap").f = 5.0
    (target,) = match_report(saved(model, tmp_path), spec(), _OPTIONS)["targets"]  # type: ignore[misc]
    assert "conv_relu6" in target["unused_patterns"]  # type: ignore[index,operator]
    misses = [m for m in target["near_misses"] if m["pattern"] == "conv_relu6"]  # type: ignore[index]
    assert misses and all("otherwise than the hardware spec" in m["reason"] for m in misses)


def test_nothing_defines_it(tmp_path: Path) -> None:
    path = saved(random_model(0), tmp_path)
    (problem,) = preflight(path, {"preset": "a100"}, _OPTIONS)["problems"]  # type: ignore[misc]
    assert (problem["code"], problem["node"]) == ("TW-MODEL-008", "call_v0")  # type: ignore[index]
    remedy = problem["remedy"]  # type: ignore[index]
    assert "functions in the model" in remedy and "`operators` of the hardware spec" in remedy
    assert preflight(path, spec(), _OPTIONS)["problems"] == []


def test_a_definition_of_another_form_is_refused_at_its_pointer(tmp_path: Path) -> None:
    old = """<domain: "com.acme", opset_import: ["" : 11]>
    Square <shift> (x) => (y) { y = Softmax <axis = 1> (x) }"""
    document = spec(
        operators=[*operators("ConvRelu6", "Gate"), {"name": NAMES[2], "definition": old}]
    )
    with pytest.raises(ModelError) as refused:
        completed(
            saved(random_model(5), tmp_path), load_machine(document).operators, tmp_path, Limits()
        )
    error = refused.value
    assert (error.code, error.place.pointer) == ("TW-MODEL-022", "/operators/2/definition")
    assert (error.limit, error.actual) == (17, 11)
    # the model's own function likewise
    model = with_functions(random_model(0))
    own = next(f for f in model.functions if f.name == "ConvRelu6")
    own.node[2].op_type, own.opset_import[0].version = "Softmax", 11
    del own.node[2].input[1:], own.node[2].attribute[:]
    (problem,) = preflight(saved(model, tmp_path), spec(operators=[]), _OPTIONS)["problems"]  # type: ignore[misc]
    assert (problem["code"], problem["node"]) == ("TW-MODEL-022", "call_v0")  # type: ignore[index]


def test_a_bundle_with_external_data_is_completed(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    model = random_model(0)
    weights = next(t for t in model.graph.initializer if t.name == "w0")
    data = weights.raw_data
    weights.ClearField("raw_data")
    weights.data_location = onnx.TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="w.bin")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("sub/model.onnx", model.SerializeToString())
        archive.writestr("sub/w.bin", data)
    x = np.ones((1, 3, 6, 6), np.float32)
    ours = outputs(compiled(path, spec(), tmp_path), tmp_path, x)
    other = tmp_path / "plain"
    other.mkdir()
    plain = outputs(compiled(saved(random_model(0), other), spec(), other), other, x)
    for name, value in ours.items():
        np.testing.assert_array_equal(value, plain[name])


def test_conditions_ask_for_attributes_and_operands_of_the_call(tmp_path: Path) -> None:
    conditions = [{"compare": "attribute.cap", "at_most": 4},
                  {"compare": "input1.dim0", "equals": 3}]  # fmt: skip
    row = {"op_type": NAMES[0], "conditions": conditions}
    document = spec(capabilities={"patterns": [], "ops": [row]})
    for seed in range(4):
        model = random_model(seed)
        caps = [
            next((a.f for a in node.attribute if a.name == "cap"), 6.0)
            for node in model.graph.node
            if node.op_type == "ConvRelu6"
        ]
        path = saved(model, tmp_path)
        (target,) = match_report(path, document, _OPTIONS)["targets"]  # type: ignore[misc]
        assert len(target["matches"]) == sum(cap <= 4 for cap in caps)  # type: ignore[index,arg-type]
        refused = [m["reason"] for m in target["near_misses"]]  # type: ignore[index]
        assert len(refused) == sum(cap > 4 for cap in caps)
        assert all(
            "attribute.cap is" in r and "/capabilities/ops/0/conditions/0" in r for r in refused
        )


def test_a_row_joins_calls_with_operators_of_onnx(tmp_path: Path) -> None:
    rows = [{"name": "conv_sub", "match": {"op": "Sub", "inputs": [{"op": NAMES[0]}, "any"]}}]
    document = spec(capabilities={"patterns": rows})
    found = 0
    for seed in range(8):
        model = random_model(seed)
        path = saved(model, tmp_path)
        (target,) = match_report(path, document, _OPTIONS)["targets"]  # type: ignore[misc]
        made_by = {name: node for node in model.graph.node for name in node.output}
        readers = [name for node in model.graph.node for name in node.input]
        ends = {value.name for value in model.graph.output}
        wanted = sum(
            node.op_type == "Sub" and node.input[0] in made_by
            and made_by[node.input[0]].op_type == "ConvRelu6"
            and readers.count(node.input[0]) == 1 and node.input[0] not in ends
            for node in model.graph.node
        )  # fmt: skip
        assert len(target["matches"]) == wanted  # type: ignore[index,arg-type]
        found += wanted
    assert found > 0


def test_an_instruction_prices_the_call(tmp_path: Path) -> None:
    rows = [{"name": "conv_relu6", "intrinsic": "acme_conv",
             "match": {"op": NAMES[0], "inputs": ["any", "constant"]}}]  # fmt: skip
    cycles = {}
    for price in (1, 3_000):
        intrinsic = {"name": "acme_conv", "op": "conv", "extents": [1, 3, 6, 6, 3, 3, 3],
                     "cycles": price}  # fmt: skip
        document = json.loads(json.dumps(preset_document("ethos-u65")))
        engine = next(e for e in document["engines"] if e["kind"] == "matrix")
        engine["intrinsics"] = [intrinsic]
        document["capabilities"]["patterns"] = rows
        document["operators"] = operators()
        made = compiled(saved(random_model(0, 1), tmp_path), document, tmp_path, I8)
        (composite,) = [
            c for part in made.partitioning.regions for c in part.composites if c.intrinsic
        ]
        assert (composite.name, composite.intrinsic) == ("conv_relu6", "acme_conv")
        ports = open_ports(made.machine, I8, MemoryCache(), NoProgress())
        cycles[price] = sum(ports.figures(unit).cycles for unit in made.units)
    assert cycles[1] < cycles[3_000]


def test_quantised_calls_are_integer_operators_of_the_row(tmp_path: Path) -> None:
    own = {
        "ops": [{"op_type": name} for name in ("Conv", "Clip", "Sub", "QuantizeLinear",
                                               "DequantizeLinear")],
        "conversions": [{"dtype": "i8"}],
        "patterns": [{"name": "conv_relu6", "match": {"op": NAMES[0]}}],
    }  # fmt: skip
    document = spec(capabilities=own)
    path = saved(random_model(0, 1), tmp_path)
    (target,) = match_report(path, document, I8)["targets"]  # type: ignore[misc]
    (row,) = target["matches"]  # type: ignore[index]
    assert row["pattern"] == "conv_relu6"
    assert [name.rpartition("/")[2].split("_")[0] for name in row["nodes"]] == ["Conv", "Clip"]


def test_conformance_makes_instances_of_calls(tmp_path: Path) -> None:
    machine = load_machine(spec())
    suite = conformance_suite(machine, Selection(("conv_relu6", "gate", NAMES[2])))
    rows, _ = run_suite(machine, suite, tmp_path)
    passed = {(row.op_type, row.dtype) for row in rows if row.passed and row.placed == "target"}
    assert passed >= {("conv_relu6", "f32"), ("gate", "f32"), (NAMES[2], "f32")}
    assert all(row.passed for row in rows)
    called = {node.domain for case in suite.cases
              for node in onnx.load_from_string(case.model).graph.node}  # fmt: skip
    assert DOMAIN in called


def test_operators_that_the_model_does_not_use_are_listed(tmp_path: Path) -> None:
    model = random_model(0, 1)
    found = match_report(saved(model, tmp_path), spec(), _OPTIONS)
    assert found["unused_operators"] == NAMES[1:]
    (target,) = found["targets"]  # type: ignore[misc]
    assert target["unused_patterns"] == ["gate", NAMES[2]]  # type: ignore[index]

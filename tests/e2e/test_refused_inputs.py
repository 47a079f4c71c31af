"""Bad inputs, a case for each kind, through the real compiler: locally and as jobs of a server.

Each is refused with a stable code and a remedy, and afterwards the same worker finishes a good job.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import conv_net, repeated_layers, saved

from service.cli.embedded import embedded_service
from service.client import ApiError, Client
from worker.compiler.cache import MemoryCache
from worker.compiler.error_catalog import ERROR_CATALOG
from worker.compiler.errors import CompilerError
from worker.compiler.options import CompileOptions, VerifyMode
from worker.job import run_job
from worker.request import JobRequest


class Quiet:
    def stage(self, name: str, state: str) -> None:
        del name, state

    def units(self, solved: int, cached: int, total: int) -> None:
        del solved, cached, total

    def artifact(self, name: str, file_name: str) -> None:
        del name, file_name


def relu_model(**changes: Any) -> onnx.ModelProto:
    """x -> Relu -> y, with the parts a case wants to break replaced."""
    graph = helper.make_graph(
        changes.get("nodes", [helper.make_node("Relu", ["x"], ["y"], name="relu")]),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, changes.get("shape", [2, 3]))],
        changes.get("outputs", [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]),
        changes.get("weights", []),
    )
    opset = helper.make_opsetid("", changes.get("opset", 18))
    return helper.make_model(graph, opset_imports=[opset], ir_version=9)


def cyclic() -> bytes:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
        helper.make_node("Relu", ["b"], ["y"], name="third"),
    ]
    return relu_model(nodes=nodes).SerializeToString()


def missing_initializer() -> bytes:
    model = conv_net()
    del model.graph.initializer[0]
    return model.SerializeToString()


def type_mismatch() -> bytes:
    weight = numpy_helper.from_array(np.zeros((3, 3), dtype=np.int32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")]
    return relu_model(nodes=nodes, weights=[weight]).SerializeToString()


def external_path(location: str) -> bytes:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3, 3],
                         data_location=TensorProto.EXTERNAL)  # fmt: skip
    entry = weight.external_data.add()
    entry.key, entry.value = "location", location
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")]
    return relu_model(nodes=nodes, weights=[weight]).SerializeToString()


def zipped(*members: tuple[str, bytes], level: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", level) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return data.getvalue()


def nan_scalar() -> bytes:
    nodes = [helper.make_node("LeakyRelu", ["x"], ["y"], name="leaky", alpha=float("nan"))]
    return relu_model(nodes=nodes).SerializeToString()


MODELS: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty file": (lambda: b"", "TW-MODEL-002"),
    "truncated": (lambda: conv_net().SerializeToString()[:-700], "TW-MODEL-002"),
    "not a protobuf": (lambda: b"definitely not a model " * 9, "TW-MODEL-001"),
    "cyclic": (cyclic, "TW-MODEL-004"),
    "missing initializer": (missing_initializer, "TW-MODEL-005"),
    "type mismatch": (type_mismatch, "TW-MODEL-006"),
    "absurd dimension": (
        lambda: relu_model(shape=[2**40, 2**20]).SerializeToString(), "TW-MODEL-007",
    ),
    "negative dimension": (lambda: relu_model(shape=[-4, 3]).SerializeToString(), "TW-MODEL-007"),
    "unknown domain": (
        lambda: relu_model(
            nodes=[helper.make_node("Relu", ["x"], ["y"], name="r", domain="com.evil")]
        ).SerializeToString(),
        "TW-MODEL-008",
    ),
    "future opset": (lambda: relu_model(opset=999).SerializeToString(), "TW-MODEL-009"),
    "external data traversal": (lambda: external_path("../../etc/passwd"), "TW-MODEL-010"),
    "external data absolute in a zip": (
        lambda: zipped(("model.onnx", external_path("/etc/passwd"))), "TW-MODEL-010",
    ),
    "zip with a parent path": (
        lambda: zipped(("model.onnx", conv_net().SerializeToString()), ("../x.bin", b"1")),
        "TW-MODEL-011",
    ),
    "zip bomb": (
        lambda: zipped(("model.onnx", conv_net().SerializeToString()), ("w.bin", bytes(1 << 26))),
        "TW-MODEL-011",
    ),
    "NaN scalar": (nan_scalar, "TW-MODEL-018"),
    "empty graph": (lambda: relu_model(nodes=[]).SerializeToString(), "TW-MODEL-013"),
    "unbound symbol": (lambda: conv_net("batch").SerializeToString(), "TW-MODEL-012"),
}  # fmt: skip

SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "wrong type": ({"inherits": "a100", "name": "x", "clock_hz": "fast"}, "/clock_hz"),
    "unknown key": ({"inherits": "a100", "name": "x", "clok_hz": 1e9}, "/clok_hz"),
    "zero bandwidth": (
        {"inherits": "a100", "name": "x",
         "levels": [{"name": "SMEM", "read_bytes_per_cycle": 0}]},
        "/levels/0/read_bytes_per_cycle",
    ),
    "capacity below one element": (
        {"inherits": "a100", "name": "x", "levels": [{"name": "SMEM", "capacity_bytes": 1}]},
        "/levels/0/capacity_bytes",
    ),
}  # fmt: skip


def compile_bytes(folder: Path, data: bytes, hardware: dict[str, Any]) -> None:
    path = folder / ("model.zip" if data[:2] == b"PK" else "model.onnx")
    path.write_bytes(data)
    request = JobRequest(path, "m", hardware, CompileOptions(verify=VerifyMode.NONE), folder / "b")
    run_job(request, folder / "out", MemoryCache(), Quiet())


@pytest.mark.parametrize("name", MODELS)
def test_bad_model_is_refused_with_a_remedy(name: str, tmp_path: Path) -> None:
    make, code = MODELS[name]
    with pytest.raises(CompilerError) as refusal:
        compile_bytes(tmp_path, make(), {"preset": "kapla-edge"})
    problem = refusal.value.to_problem()
    assert problem["code"] == code
    assert ERROR_CATALOG[code].exit_code in (3, 4)
    assert str(problem["remedy"]).endswith(".")
    assert problem["fault"] == "user"
    assert problem["retryable"] is False


@pytest.mark.parametrize("name", SPECS)
def test_bad_spec_is_refused_at_its_pointer(name: str, tmp_path: Path) -> None:
    spec, pointer = SPECS[name]
    with pytest.raises(CompilerError) as refusal:
        compile_bytes(tmp_path, conv_net().SerializeToString(), spec)
    problem = refusal.value.to_problem()
    assert str(problem["code"]).startswith("TW-SPEC-")
    found = [problem["pointer"], *(e["pointer"] for e in problem["errors"])]  # type: ignore[union-attr,index,call-overload]
    assert pointer in found
    assert problem["exit_code"] == 3


def test_hostile_names_compile_and_verify(tmp_path: Path) -> None:
    names = ['a"b', "c\nd", "$(reboot)", "*/ }; int main(){", "%s%n", "??/", "é\u202e", "a,b|=1+1"]
    model = repeated_layers(len(names) // 2)
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    for k, node in enumerate(model.graph.node):
        if k + 1 < len(model.graph.node):
            old, new = node.output[0], f"{names[k]} value\\"
            node.output[0] = new
            for other in model.graph.node:
                for slot, value in enumerate(other.input):
                    if value == old:
                        other.input[slot] = new
    request = JobRequest(
        saved(model, tmp_path), 'm"; rm -rf /', {"preset": "kapla-edge"},
        CompileOptions(verify=VerifyMode.FULL), tmp_path / "b",
    )  # fmt: skip
    outcome = run_job(request, tmp_path / "out", MemoryCache(), Quiet())
    files = {name: tmp_path / "out" / file for name, file in outcome.artifacts}
    assert all(path.parent == tmp_path / "out" for path in files.values())
    assert '"passed": true' in files["report"].read_text()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("refusing-server")
    with embedded_service(folder) as url, Client(url) as connected:
        yield connected


def test_the_server_refuses_all_of_them_and_lives(client: Client, tmp_path: Path) -> None:
    jobs: dict[str, tuple[str, str]] = {}
    for name, (make, code) in MODELS.items():
        data = make()
        path = tmp_path / ("m.zip" if data[:2] == b"PK" else f"{len(jobs)}.onnx")
        path.write_bytes(data)
        try:
            model = client.upload_model(path)
        except ApiError as refused:
            assert refused.problem["status"] in (413, 422), name
            assert refused.problem["hints"], name
            continue
        job = client.submit({"model": model["id"], "hardware": "kapla-edge"})
        jobs[name] = (str(job["id"]), code)
    assert len(jobs) >= len(MODELS) - 2
    for name, (job_id, code) in jobs.items():
        ended = client.wait(job_id, timeout_s=120)
        assert ended["state"] == "failed", name
        assert ended["error"]["code"] == code, name
        assert ended["error"]["remedy"], name
        assert ended["attempts"] == 1, name  # the user's fault is never retried
    for name, (spec, pointer) in SPECS.items():
        with pytest.raises(ApiError) as refused_spec:
            client.post("/v1/hardware", spec)
        problem = refused_spec.value.problem
        assert problem["status"] == 422, name
        assert any(str(e["pointer"]).endswith(pointer) for e in problem["errors"]), name
    good = client.upload_model(saved(conv_net(), tmp_path, "good.onnx"))
    job = client.submit({"model": good["id"], "hardware": "kapla-edge"})
    assert client.wait(str(job["id"]), timeout_s=120)["state"] == "succeeded"

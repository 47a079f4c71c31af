"""Every bad input of the contract, as a job; some through the command line and a running service.

Each gets a code from the catalogue and a remedy, exit 3 or 4 (HTTP 413 or 422, or a failed job that
carries the same problem), and the worker goes on: a good job succeeds and nothing stays leased.
What turns a problem into an exit code or an answer is the same for all of them and starts
processes: one of each kind of file goes through it by default, all of them in a campaign.
"""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import conv_net, repeated_layers
from typer.testing import CliRunner

from service.cli.embedded import embedded_service
from service.cli.main import app
from service.client import Client
from worker.compiler.cache import MemoryCache
from worker.compiler.error_catalog import ERROR_CATALOG
from worker.compiler.errors import CompilerError
from worker.compiler.options import CompileOptions
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress

PRESET = "kapla-edge"
RELU = helper.make_node("Relu", ["x"], ["y"], name="relu")
MATMUL = helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")


def _model(
    *nodes: onnx.NodeProto,
    shape: tuple[int, ...] = (2, 3),
    weights: tuple[TensorProto, ...] = (),
    opset: int = 18,
) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        list(weights),
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return bytes(made.SerializeToString())


def _cyclic() -> bytes:
    return _model(
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
        helper.make_node("Relu", ["b"], ["y"], name="third"),
    )


def _missing_initializer() -> bytes:
    model = conv_net()
    del model.graph.initializer[0]
    return bytes(model.SerializeToString())


def _external(location: str) -> bytes:
    weight = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[3, 3], data_location=TensorProto.EXTERNAL
    )
    weight.external_data.add(key="location", value=location)
    return _model(MATMUL, weights=(weight,))


def _zip(*members: tuple[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return data.getvalue()


def _overlapping_zip() -> bytes:
    """Two members of the directory share one stretch of the file."""
    data = bytearray(_zip(("model.onnx", _good()), ("w1.bin", b"1" * 99), ("w2.bin", b"1" * 99)))
    with zipfile.ZipFile(io.BytesIO(bytes(data))) as archive:
        first = archive.getinfo("w1.bin").header_offset
    entry = data.rindex(b"PK\x01\x02")  # the directory's last entry: w2.bin
    data[entry + 42 : entry + 46] = first.to_bytes(4, "little")
    return bytes(data)


def _good() -> bytes:
    return bytes(conv_net().SerializeToString())


def _ints() -> TensorProto:
    return numpy_helper.from_array(np.zeros((3, 3), dtype=np.int32), "w")


MODELS: dict[str, tuple[Callable[[], bytes], str]] = {
    "truncated": (lambda: _good()[:-700], "TW-MODEL-002"),
    "not-a-protobuf": (lambda: b"definitely not a model " * 9, "TW-MODEL-001"),
    "empty-file": (lambda: b"", "TW-MODEL-002"),
    "cyclic": (_cyclic, "TW-MODEL-004"),
    "missing-initializer": (_missing_initializer, "TW-MODEL-005"),
    "type-mismatch": (lambda: _model(MATMUL, weights=(_ints(),)), "TW-MODEL-006"),
    "absurd-dim": (lambda: _model(RELU, shape=(2**40, 2**20)), "TW-MODEL-007"),
    "negative-dim": (lambda: _model(RELU, shape=(-4, 3)), "TW-MODEL-007"),
    "unknown-domain": (
        lambda: _model(helper.make_node("Relu", ["x"], ["y"], name="r", domain="com.evil")),
        "TW-MODEL-008",
    ),
    "future-opset": (lambda: _model(RELU, opset=999), "TW-MODEL-009"),
    "external-traversal": (lambda: _external("../../etc/passwd"), "TW-MODEL-010"),
    "external-traversal-zip": (
        lambda: _zip(("model.onnx", _external("../../etc/passwd"))),
        "TW-MODEL-010",
    ),
    "external-absolute-zip": (
        lambda: _zip(("model.onnx", _external("/etc/passwd"))),
        "TW-MODEL-010",
    ),
    "zip-parent-path": (lambda: _zip(("model.onnx", _good()), ("../x", b"1")), "TW-MODEL-011"),
    "zip-bomb": (lambda: _zip(("model.onnx", _good()), ("w", bytes(1 << 26))), "TW-MODEL-011"),
    "zip-overlap": (_overlapping_zip, "TW-MODEL-011"),
    "nan-scalar": (
        lambda: _model(
            helper.make_node("LeakyRelu", ["x"], ["y"], name="leaky", alpha=float("nan"))
        ),
        "TW-MODEL-018",
    ),
    "empty-graph": (_model, "TW-MODEL-013"),
    "unbound-symbol": (lambda: bytes(conv_net("batch").SerializeToString()), "TW-MODEL-012"),
}

SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "wrong-type": ({"clock_hz": "fast"}, "/clock_hz"),
    "unknown-key": ({"clok_hz": 1e9}, "/clok_hz"),
    "zero-bandwidth": (
        {"levels": [{"name": "SMEM", "read_bytes_per_cycle": 0}]},
        "/levels/0/read_bytes_per_cycle",
    ),
    "capacity-below-one-element": (
        {"levels": [{"name": "SMEM", "capacity_bytes": 1}]},
        "/levels/0/capacity_bytes",
    ),
}


def _some(names: Iterable[str], *chosen: str) -> list[Any]:
    """The chosen names, and the others as campaigns."""
    assert set(chosen) <= set(names)
    return [n if n in chosen else pytest.param(n, marks=pytest.mark.campaign) for n in names]


HOSTILE = (
    'a"b', "a'b", "c\nd", "$(touch owned)", "`x`;|&", "*/ }; int main(){", "%s%n", "??/\\",
    "\u00e9\u202e\u4e2d", "a,b=1+1",
)  # fmt: skip


def _hostile() -> bytes:
    """Every node and every inner value has a name that some other language would read."""
    model = repeated_layers(len(HOSTILE) // 2)
    renamed: dict[str, str] = {}
    for node, name in zip(model.graph.node, HOSTILE, strict=True):
        node.name = name
        node.input[:] = [renamed.get(value, value) for value in node.input]
        if node.output[0] != model.graph.output[0].name:
            renamed[node.output[0]] = name + " value"
            node.output[0] = name + " value"
    return bytes(model.SerializeToString())


def _spec(name: str) -> dict[str, Any]:
    return {"inherits": "a100", "name": "x", **SPECS[name][0]}


def _write(folder: Path, data: bytes) -> Path:
    path = folder / ("m.zip" if data[:2] == b"PK" else "m.onnx")
    path.write_bytes(data)
    return path


def _words(folder: Path, model: Path, hardware: str) -> list[str]:
    words = ["compile", str(model), "--hardware", hardware, "--local", "--json"]
    return [*words, "--data-dir", str(folder / "data"), "-o", str(folder / "out")]


def _check_problem(problem: dict[str, Any], code: str) -> None:
    assert problem["code"] == code, problem
    assert ERROR_CATALOG[code].exit_code in (3, 4)
    assert problem["remedy"], problem
    assert problem["fault"] == "user"
    assert problem["retryable"] is False


def _check_local(exit_code: int, stdout: str, code: str) -> dict[str, Any]:
    assert exit_code in (3, 4), stdout
    document = json.loads(stdout)
    found = document.get("error") or document
    problem: dict[str, Any] = found
    _check_problem(problem, code)
    assert problem["exit_code"] == exit_code
    return problem


@pytest.mark.parametrize("name", MODELS)
def test_bad_model_as_a_job(name: str, tmp_path: Path) -> None:
    make, code = MODELS[name]
    model = _write(tmp_path, make())
    request = JobRequest(model, "m", {"preset": PRESET}, CompileOptions(), tmp_path / "build")
    with pytest.raises(CompilerError) as refused:
        run_job(request, tmp_path / "out", MemoryCache(), NoProgress())
    _check_problem(refused.value.to_problem(), code)


@pytest.mark.parametrize("name", _some(MODELS, "cyclic"))
def test_bad_model_locally(name: str, tmp_path: Path) -> None:
    make, code = MODELS[name]
    done = CliRunner().invoke(app, _words(tmp_path, _write(tmp_path, make()), PRESET))
    _check_local(done.exit_code, done.stdout, code)


@pytest.mark.parametrize("name", _some(SPECS, "unknown-key"))
def test_bad_spec_locally(name: str, tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(_spec(name)))
    done = CliRunner().invoke(app, _words(tmp_path, _write(tmp_path, _good()), str(spec)))
    document = json.loads(done.stdout)
    problem = document.get("error") or document
    assert str(problem["code"]).startswith("TW-SPEC-"), problem
    _check_local(done.exit_code, done.stdout, problem["code"])
    found = [problem.get("pointer"), *(entry["pointer"] for entry in problem["errors"])]
    assert SPECS[name][1] in found


@pytest.mark.parametrize("name", ["zip-bomb"])
def test_bad_model_in_its_own_process(name: str, tmp_path: Path) -> None:
    make, code = MODELS[name]
    words = _words(tmp_path, _write(tmp_path, make()), PRESET)
    command = [sys.executable, "-m", "service.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    _check_local(done.returncode, done.stdout, code)
    assert "Traceback" not in done.stderr


def test_hostile_names_locally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = _words(tmp_path, _write(tmp_path, _hostile()), PRESET)
    done = CliRunner().invoke(app, [*words, "--verify", "full"])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verification"]["passed"] is True
    assert {row["node"] for row in report["placement"]} == set(HOSTILE)
    assert not (tmp_path / "owned").exists()


@dataclass(frozen=True, slots=True)
class Server:
    """The one service of this module."""

    client: Client
    http: httpx.Client
    database: Path

    def job_on(self, data: bytes, **options: str) -> dict[str, Any]:
        """Upload, submit, wait; gives the job, or the refusal of the upload as a failed one."""
        kind = "application/zip" if data[:2] == b"PK" else "application/octet-stream"
        answer = self.http.post("/v1/models", content=data, headers={"Content-Type": kind})
        if answer.is_error:
            assert answer.status_code in (413, 422), answer.text
            assert answer.headers["content-type"] == "application/problem+json"
            return {"state": "failed", "attempts": 1, "error": answer.json()}
        body = {"model": answer.json()["id"], "hardware": PRESET, "options": options}
        job = self.client.submit(body)
        return self.client.wait(str(job["id"]), timeout_s=120)

    def leased(self) -> int:
        """Count the items that somebody still holds."""
        with sqlite3.connect(self.database) as rows:
            query = "SELECT count(*) FROM work_item WHERE state = 'leased' OR owner IS NOT NULL"
            return int(rows.execute(query).fetchone()[0])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("bad-input")
    with (
        embedded_service(folder) as url,
        Client(url) as client,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        yield Server(client, http, folder / "tilewright.db")


@pytest.mark.parametrize("name", _some(MODELS, "zip-bomb", "negative-dim"))
def test_bad_model_on_the_server(name: str, server: Server) -> None:
    make, code = MODELS[name]
    ended = server.job_on(make())
    assert ended["state"] == "failed"
    _check_problem(ended["error"], code)
    assert ended["attempts"] == 1  # what is the user's fault is not tried again
    assert server.leased() == 0


@pytest.mark.parametrize("name", SPECS)
def test_bad_spec_on_the_server(name: str, server: Server) -> None:
    answer = server.http.post("/v1/hardware", json=_spec(name))
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"].startswith("TW-SPEC-")
    assert problem["hints"]
    assert any(entry["pointer"].endswith(SPECS[name][1]) for entry in problem["errors"])


@pytest.mark.campaign
def test_hostile_names_on_the_server(server: Server) -> None:
    ended = server.job_on(_hostile(), verify="full")
    assert ended["state"] == "succeeded", ended["error"]


def test_worker_is_alive_afterwards(server: Server) -> None:
    assert server.job_on(_good())["state"] == "succeeded"
    assert server.leased() == 0
    assert server.http.get("/readyz").status_code == 200

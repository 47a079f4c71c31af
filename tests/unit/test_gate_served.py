"""The gate and a server's jobs: what is asked of its client, and what becomes of refusals."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gate_documents import Kernel, documents

from service.client.errors import ApiError
from service.gate.git import NoBaseline
from service.gate.served import Served
from service.orders.order import Order
from worker.compiler.errors import CompilerError, Infeasible, ModelError, Shortfall
from worker.compiler.options import CompileOptions
from worker.compiler.package.manifest import FORMAT_VERSION

FOUND = documents([Kernel("n", {"engine:PE": 5})], spec={"name": "h"})
REFUSED = ModelError("TW-MODEL-004", "a cycle").to_problem()


def bundle() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("manifest.json", json.dumps({"format_version": FORMAT_VERSION}))
        archive.writestr("hardware.json", json.dumps(FOUND["spec"]))
    return stream.getvalue()


FILES = {
    "report": json.dumps(FOUND["report"]).encode(), "graph": json.dumps(FOUND["graph"]).encode(),
    "schedule": json.dumps(FOUND["schedule"]).encode(), "bundle": bundle(), "trace": b"not asked",
}  # fmt: skip


class FakeClient:
    """Jobs by label; every job that ends well has the same files."""

    def __init__(self, ends: dict[str, Any], labels: tuple[str, ...] = ()) -> None:
        self.ends = ends
        self.labels = labels
        self.submitted: list[dict[str, Any]] = []
        self.fetched: list[str] = []

    def upload_model(self, path: Path, **_: Any) -> dict[str, Any]:
        return {"id": "m"}

    def submit(self, request: dict[str, Any]) -> dict[str, Any]:
        if "refuse" in self.ends:
            raise ApiError(self.ends["refuse"])
        self.submitted.append(request)
        return {"id": "new"}

    def wait(self, job_id: str) -> dict[str, Any]:
        return {"id": job_id, **self.ends}

    def jobs(self, *, label: str, state: str, limit: int) -> Iterator[dict[str, Any]]:
        assert (state, limit) == ("succeeded", 1)
        if label in self.labels:
            yield {"id": "old", "state": "succeeded"}
            raise AssertionError("only the newest is asked for")

    def clone(self, job_id: str) -> dict[str, Any]:
        assert job_id == "old"
        return {"id": "clone"}

    def artifacts(self, job_id: str) -> list[dict[str, Any]]:
        return [{"name": name, "sha256": name, "file_name": "../../x"} for name in FILES]

    def download(self, path: str, target: Path) -> None:
        name = path.rpartition("/")[2]
        self.fetched.append(name)
        target.write_bytes(FILES[name])


def served(ends: dict[str, Any], *labels: str) -> tuple[Served, FakeClient]:
    client = FakeClient(ends, labels)
    return Served(client), client  # type: ignore[arg-type]


@pytest.fixture
def order(tmp_path: Path) -> Order:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"x")
    return Order(
        model, {"preset": "kapla-edge"}, CompileOptions().to_json(), tmp_path, label="gate:1/m/h"
    )


GOOD = {"state": "succeeded"}


def test_an_order_is_submitted_under_its_label_and_read_back(order: Order) -> None:
    server, client = served(GOOD)
    assert server.outcome(order).documents == FOUND
    assert [request["label"] for request in client.submitted] == ["gate:1/m/h"]
    assert client.fetched == ["report", "graph", "schedule", "bundle"]


def test_what_the_server_refuses_of_the_model_is_an_outcome(order: Order) -> None:
    assert served({"refuse": REFUSED})[0].outcome(order).problem == REFUSED
    failed = {"state": "failed", "error": REFUSED}
    assert served(failed)[0].outcome(order).problem == REFUSED


@pytest.mark.parametrize("code", ["TW-SVC-011", "TW-SVC-005"])
def test_what_the_service_is_at_fault_for_is_not(order: Order, code: str) -> None:
    problem = CompilerError(code, "busy").to_problem()
    with pytest.raises(ApiError):
        served({"refuse": problem})[0].outcome(order)


def test_jobs_that_were_stopped_say_nothing_of_the_model(order: Order) -> None:
    with pytest.raises(CompilerError, match="ended as canceled") as caught:
        served({"state": "canceled", "error": None})[0].outcome(order)
    assert caught.value.code == "TW-SVC-007"
    bug = CompilerError("TW-INT-001", "a bug").to_problem()
    with pytest.raises(CompilerError, match="a bug"):
        served({"state": "failed", "error": bug})[0].outcome(order)


def test_the_newest_job_of_a_label_is_the_base() -> None:
    server, client = served(GOOD, "nightly/m/h")
    assert server.latest("nightly/m/h").documents == FOUND
    assert not client.submitted
    with pytest.raises(NoBaseline, match="no succeeded job with the label other"):
        server.latest("other")


def test_a_job_runs_again_as_a_clone() -> None:
    assert served(GOOD, "l")[0].again("l").documents == FOUND
    with pytest.raises(NoBaseline, match="no succeeded job"):
        served(GOOD)[0].again("l")
    short = Infeasible("it does not fit", Shortfall("memory:L1", 2, 1, "B")).to_problem()
    with pytest.raises(NoBaseline, match="its job fails now: it does not fit"):
        served({"state": "failed", "error": short}, "l")[0].again("l")

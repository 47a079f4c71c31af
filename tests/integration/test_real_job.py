"""The real compiler behind the service: one small model through the sandbox, twice."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from service_fixtures import Desk, MakeSettings

from service.jobs import query
from service.settings import Settings
from service.states import JobState
from service.store.blobs import read_bytes
from worker.main import EmbeddedWorker

OpenDesk = Callable[[Settings], Desk]


def _model() -> bytes:
    weights = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["y"], name="relu"),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 16, 16])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def test_second_job_is_solved_from_the_cache_with_the_same_bytes(
    make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    settings = make_settings(
        runner="quick", memory_base_bytes=Settings.model_fields["memory_base_bytes"].default
    )
    desk = open_desk(settings.model_copy(update={"runner": "worker.job:run_job"}))
    with EmbeddedWorker(desk.services):
        first, second = (
            desk.wait(desk.submit({"preset": "h200"}, model=_model()).id, timeout_s=120)
            for _ in range(2)
        )
    assert first.state is JobState.SUCCEEDED, first.error
    assert second.state is JobState.SUCCEEDED, second.error
    assert first.units_total > 0
    assert (second.units_solved, second.units_cached) == (0, first.units_total)
    assert first.bundle_digest == second.bundle_digest
    database = desk.services.database
    report = query.get_artifact(database, first.id, "report")
    document = json.loads(read_bytes(desk.services.blobs, report.sha256))
    assert document["schema_version"] == 1
    assert {"bundle", "layers", "trace"} <= {
        a.name for a in query.list_artifacts(database, first.id)
    }


def test_a_file_that_is_no_model_fails_with_its_code(
    make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    settings = make_settings(
        runner="quick", memory_base_bytes=Settings.model_fields["memory_base_bytes"].default
    )
    desk = open_desk(settings.model_copy(update={"runner": "worker.job:run_job"}))
    with EmbeddedWorker(desk.services):
        job = desk.wait(
            desk.submit({"preset": "h200"}, model=b"not a model" * 100).id, timeout_s=120
        )
    assert job.state is JobState.FAILED
    assert job.error is not None
    assert str(job.error["code"]).startswith("TW-MODEL-")
    assert job.attempts == 1

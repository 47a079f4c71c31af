"""Arrays for calibration and verification: uploaded once, named by digest, handed to the job."""

from __future__ import annotations

import json
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from api_fixtures import PRESET, Serve, assert_problem
from onnx_models import repeated_layers
from typer.testing import CliRunner

from service.cli.main import app
from service.settings import Settings


def arrays(seed: int = 0) -> bytes:
    stream = BytesIO()
    np.savez(stream, x=np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32))
    return stream.getvalue()


def test_same_arrays_are_stored_once(serve: Serve) -> None:
    served = serve(worker=False)
    body = arrays()
    first = served.http.post("/v1/calibrations", content=body, params={"name": "first"})
    again = served.http.post("/v1/calibrations", content=body, params={"name": "second"})
    assert (first.status_code, again.status_code) == (201, 200)
    found = first.json()
    assert again.json() == found
    assert (found["sha256"], found["size_bytes"], found["name"]) == (
        sha256(body).hexdigest(), len(body), "first",
    )  # fmt: skip
    assert served.http.get(first.headers["location"]).json() == found
    other = served.http.post("/v1/calibrations", content=arrays(1)).json()
    pages = [served.http.get("/v1/calibrations", params={"limit": 1}).json()]
    pages.append(
        served.http.get(
            "/v1/calibrations", params={"limit": 1, "cursor": pages[0]["next_cursor"]}
        ).json()
    )
    listed = {row["sha256"] for page in pages for row in page["items"]}
    assert listed == {found["sha256"], other["sha256"]}
    assert pages[1]["next_cursor"] is None


def test_arrays_may_be_larger_than_a_document(serve: Serve) -> None:
    served = serve(worker=False, max_json_bytes=1000, max_hardware_bytes=1000)
    stream = BytesIO()
    np.savez(stream, x=np.zeros(10_000, np.float32))
    stored = served.http.post("/v1/calibrations", content=stream.getvalue())
    assert (stored.status_code, stored.json()["size_bytes"]) == (201, len(stream.getvalue()))


def test_what_is_no_archive_is_refused(serve: Serve) -> None:
    served = serve(worker=False)
    assert_problem(served.http.post("/v1/calibrations", content=b"1,2,3"), 422, "TW-CAL-001")
    assert_problem(served.http.post("/v1/calibrations", content=b""), 422, "TW-CAL-001")
    wrong = served.http.post(
        "/v1/calibrations", content=arrays(), params={"digest": "sha256:" + "0" * 64}
    )
    assert_problem(wrong, 422, "TW-SVC-012")
    assert served.http.get("/v1/calibrations").json()["items"] == []
    assert_problem(served.http.get("/v1/calibrations/" + "0" * 64), 404, "TW-SVC-001")


@pytest.mark.parametrize("option", ["calibration", "inputs"])
def test_a_job_gets_the_arrays_it_names(serve: Serve, tmp_path: Path, option: str) -> None:
    served = serve()
    file = tmp_path / "samples.npz"
    file.write_bytes(arrays())
    uploaded = served.client.upload_arrays(file)
    job = served.submit(options={option: uploaded["sha256"]})
    clone = served.client.clone(str(job["id"]))
    assert clone["options"] == job["options"]
    for made in (job, clone):
        assert served.ended(str(made["id"]))["state"] == "succeeded"
        report = json.loads(served.http.get(f"/v1/jobs/{made['id']}/report").content)
        assert report[option] == sha256(file.read_bytes()).hexdigest()
        assert len(report) == 2, "the other arrays are not given"


@pytest.mark.parametrize("option", ["calibration", "inputs"])
def test_a_job_cannot_name_arrays_nobody_uploaded(serve: Serve, option: str) -> None:
    served = serve(worker=False)
    body = {
        "model": served.model()["id"],
        "hardware": "kapla-16x16",
        "options": {option: "0" * 64},
    }
    problem = assert_problem(served.http.post("/v1/jobs", json=body), 404, "TW-SVC-001")
    assert (option in problem["detail"], problem["pointer"]) == (True, f"/options/{option}")
    body["options"] = {option: "not a digest"}
    problem = assert_problem(served.http.post("/v1/jobs", json=body), 422, "TW-OPT-001")
    assert problem["errors"][0]["pointer"] == f"/options/{option}"
    body["options"] = {"inputs": "0" * 64, "verify": "none"}
    problem = assert_problem(served.http.post("/v1/jobs", json=body), 422, "TW-OPT-001")
    assert problem["errors"][0]["pointer"] == "/options/inputs"


def test_the_command_line_sends_its_inputs(serve: Serve, tmp_path: Path) -> None:
    served = serve()
    model, file = tmp_path / "m.onnx", tmp_path / "in.npz"
    model.write_bytes(repeated_layers(1).SerializeToString())
    file.write_bytes(arrays())
    words = ["compile", str(model), "--hardware", PRESET, "--input", str(file), "--server",
             served.url, "-o", str(tmp_path / "out"), "--json"]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    digest = sha256(file.read_bytes()).hexdigest()
    assert json.loads(done.stdout)["options"]["inputs"] == digest
    assert json.loads((tmp_path / "out" / "report.json").read_text())["inputs"] == digest


def test_a_served_job_is_verified_on_the_inputs_it_names(serve: Serve, tmp_path: Path) -> None:
    """Of zeros nothing but zeros comes out.  What is compiled is the same, and cached."""
    served = serve(
        "worker.job.job:run_job",
        memory_base_bytes=Settings.model_fields["memory_base_bytes"].default,
    )
    file = tmp_path / "in.npz"
    np.savez(file, x=np.zeros((16, 32), np.float32))
    model = served.model(repeated_layers(1).SerializeToString())["id"]
    found = []
    for digest in ("", str(served.client.upload_arrays(file)["sha256"])):
        body = {"model": model, "hardware": PRESET, "options": {"inputs": digest}}
        job = served.ended(served.http.post("/v1/jobs", json=body).json()["id"], 120)
        assert job["state"] == "succeeded", job["error"]
        report = json.loads(served.http.get(f"/v1/jobs/{job['id']}/report").content)
        found.append((job, report["verification"]["max_abs_err"], report["options"]["inputs"]))
    (first, seeded, _), (second, zeros, named) = found
    assert seeded > 0 == zeros
    assert named == sha256(file.read_bytes()).hexdigest()
    assert first["bundle_sha256"] == second["bundle_sha256"]
    assert second["progress"]["units_solved"] == 0


def test_hostile_inputs_end_the_job_with_their_code(serve: Serve, tmp_path: Path) -> None:
    served = serve(
        "worker.job.job:run_job",
        memory_base_bytes=Settings.model_fields["memory_base_bytes"].default,
    )
    file = tmp_path / "in.npz"
    np.savez(file, x=np.array([{"a": 1}], object))
    digest = served.client.upload_arrays(file)["sha256"]
    model = served.model(repeated_layers(1).SerializeToString())["id"]
    body = {"model": model, "hardware": PRESET, "options": {"inputs": digest}}
    job = served.ended(served.http.post("/v1/jobs", json=body).json()["id"], 120)
    assert job["error"]["code"] == "TW-VERIFY-004"
    assert "pickled" in job["error"]["detail"]

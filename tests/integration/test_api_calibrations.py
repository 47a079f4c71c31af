"""Calibration arrays: uploaded once, named by digest, handed to the job's process."""

from __future__ import annotations

import json
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import numpy as np
from api_fixtures import Serve, assert_problem


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


def test_a_job_gets_the_arrays_it_names(serve: Serve, tmp_path: Path) -> None:
    served = serve()
    file = tmp_path / "samples.npz"
    file.write_bytes(arrays())
    uploaded = served.client.upload_calibration(file)
    job = served.submit(options={"calibration": uploaded["sha256"]})
    assert served.ended(job["id"])["state"] == "succeeded"
    report = json.loads(served.http.get(f"/v1/jobs/{job['id']}/report").content)
    assert report["calibration"] == sha256(file.read_bytes()).hexdigest()


def test_a_job_cannot_name_arrays_nobody_uploaded(serve: Serve) -> None:
    served = serve(worker=False)
    body = {
        "model": served.model()["id"],
        "hardware": "kapla-16x16",
        "options": {"calibration": "0" * 64},
    }
    problem = assert_problem(served.http.post("/v1/jobs", json=body), 404, "TW-SVC-001")
    assert "calibration" in problem["detail"]
    body["options"] = {"calibration": "not a digest"}
    problem = assert_problem(served.http.post("/v1/jobs", json=body), 422, "TW-OPT-001")
    assert problem["errors"][0]["pointer"] == "/options/calibration"

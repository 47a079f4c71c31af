"""Uploads: streamed, limited, resumable, checked, deduplicated."""

from __future__ import annotations

import socket
import time
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import httpx
import pytest
from api_fixtures import Serve, assert_problem, onnx_bytes

from service.api import uploads as upload_module
from service.api.uploads import UploadFolder
from service.client import ApiError
from service.client.uploads import upload_resumable

BODY = onnx_bytes(bytes(range(256)) * 8192)  # 2 MiB: more than one batch


def digest(body: bytes) -> str:
    return sha256(body).hexdigest()


def test_raw_body_becomes_a_model_with_its_digest(serve: Serve) -> None:
    served = serve(worker=False)
    response = served.http.post(
        "/v1/models", params={"name": "m", "digest": f"sha256:{digest(BODY)}"}, content=BODY
    )
    assert response.status_code == 201
    model = response.json()
    assert response.headers["location"] == f"/v1/models/{model['id']}"
    assert (model["sha256"], model["size_bytes"], model["kind"]) == (
        digest(BODY),
        len(BODY),
        "onnx",
    )
    assert served.http.get(response.headers["location"]).json() == model
    stored = served.http.get(f"/v1/artifacts/{model['sha256']}")
    assert stored.content == BODY


def test_same_content_is_the_same_model(serve: Serve) -> None:
    served = serve(worker=False)
    first = served.http.post("/v1/models", content=BODY)
    again = served.http.post("/v1/models", content=BODY, params={"name": "other"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert len(served.http.get("/v1/models").json()["items"]) == 1


def test_chunked_body_without_length_is_accepted(serve: Serve) -> None:
    served = serve(worker=False)

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(BODY), 100_001):
            yield BODY[start : start + 100_001]

    model = served.http.post("/v1/models", content=pieces()).json()
    assert model["sha256"] == digest(BODY)


def test_form_gives_the_file_and_its_name(serve: Serve) -> None:
    served = serve(worker=False)
    response = served.http.post(
        "/v1/models",
        data={"note": "x" * 1000},
        files={"file": ("net.onnx", BODY, "application/octet-stream")},
    )
    assert response.status_code == 201, response.text
    assert response.json()["sha256"] == digest(BODY)
    assert response.json()["name"] == "net"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b"--x\r\n"),
        ("multipart/form-data; boundary=x", b"nothing like a form"),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="a"'),
        ("multipart/form-data; boundary=" + "b" * 5000, b"--" + b"b" * 5000 + b"\r\n"),
    ],
)
def test_broken_form_is_refused(serve: Serve, content_type: str, body: bytes) -> None:
    response = serve(worker=False).http.post(
        "/v1/models", content=body, headers={"Content-Type": content_type}
    )
    assert_problem(response, 422, "TW-SVC-004")


def test_zip_is_recognised_by_its_bytes(serve: Serve) -> None:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model.onnx", b"x")
    model = serve(worker=False).http.post("/v1/models", content=buffer.getvalue()).json()
    assert model["kind"] == "zip"


def test_digest_mismatch_stores_nothing(serve: Serve) -> None:
    served = serve(worker=False)
    response = served.http.post("/v1/models", params={"digest": "sha256:" + "0" * 64}, content=BODY)
    problem = assert_problem(response, 422, "TW-SVC-012")
    assert problem["actual"] == digest(BODY)
    assert served.http.get("/v1/models").json()["items"] == []
    assert not list(served.services.blobs.spool_dir.glob("*.part"))


def test_malformed_digest_media_type_and_empty_body_are_refused(serve: Serve) -> None:
    http = serve(worker=False).http
    assert_problem(
        http.post("/v1/models", params={"digest": "md5:1"}, content=b"x"), 422, "TW-SVC-004"
    )
    refused = http.post("/v1/models", content=b"x", headers={"Content-Type": "image/png"})
    assert_problem(refused, 415, "TW-SVC-013")
    assert_problem(http.post("/v1/models", content=b""), 422, "TW-MODEL-002")


def test_declared_length_over_the_limit_is_refused_before_the_body(serve: Serve) -> None:
    served = serve(worker=False, max_model_bytes=1000)
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(
            b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000000\r\n\r\n"
        )
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert b" 413 " in answer.split(b"\r\n")[0]
    assert b"TW-SVC-003" in answer


def test_chunked_body_over_the_limit_is_cut(serve: Serve) -> None:
    served = serve(worker=False, max_model_bytes=1_500_000)
    response = served.http.post("/v1/models", content=iter([BODY[:1_000_000], BODY[:1_000_000]]))
    problem = assert_problem(response, 413, "TW-SVC-003")
    assert problem["limit"] == 1_500_000
    assert not list(served.services.blobs.spool_dir.glob("*.part"))


def test_json_bodies_are_limited_too(serve: Serve) -> None:
    http = serve(worker=False, max_json_bytes=1000, max_hardware_bytes=1000).http
    assert_problem(http.post("/v1/jobs", json={"model": "x" * 2000}), 413, "TW-SVC-003")
    streamed = http.post(
        "/v1/jobs",
        content=iter([b" " * 900, b" " * 900]),
        headers={"Content-Type": "application/json"},
    )
    assert_problem(streamed, 413, "TW-SVC-003")


def start(http: httpx.Client, **body: object) -> str:
    response = http.post("/v1/uploads", json={"name": "big", **body})
    assert response.status_code == 201, response.text
    return str(response.headers["location"])


def patch(http: httpx.Client, location: str, offset: int, chunk: bytes) -> httpx.Response:
    return http.patch(location, content=chunk, headers={"Upload-Offset": str(offset)})


def test_resumable_upload_in_chunks(serve: Serve) -> None:
    http = serve(worker=False).http
    location = start(http, size_bytes=len(BODY))
    offset = 0
    for size in (1, 1_500_000, len(BODY)):
        chunk = BODY[offset : offset + size]
        answer = patch(http, location, offset, chunk)
        offset += len(chunk)
        assert answer.json()["offset"] == offset == int(answer.headers["upload-offset"])
    done = http.put(location, params={"digest": f"sha256:{digest(BODY)}"})
    assert done.status_code == 201
    assert done.json()["sha256"] == digest(BODY)
    assert_problem(http.get(location), 404, "TW-SVC-001")


def test_wrong_offset_is_a_conflict_that_tells_the_right_one(serve: Serve) -> None:
    http = serve(worker=False).http
    location = start(http)
    patch(http, location, 0, b"\x08\x08\x32")
    for wrong in (0, 4):
        answer = patch(http, location, wrong, b"abc")
        problem = assert_problem(answer, 409, "TW-SVC-002")
        assert answer.headers["upload-offset"] == "3"
        assert problem["limit"] == 3
    assert http.get(location).json()["offset"] == 3


def test_unfinished_upload_cannot_become_a_model(serve: Serve) -> None:
    http = serve(worker=False).http
    location = start(http, size_bytes=10)
    assert_problem(http.put(location), 422, "TW-MODEL-002")
    patch(http, location, 0, b"\x08\x08\x32")
    assert_problem(http.put(location), 422, "TW-SVC-012")
    assert_problem(patch(http, location, 3, b"x" * 8), 413, "TW-SVC-003")
    patch(http, location, 3, b"\x06ghijkl")
    assert_problem(http.put(location, params={"digest": "0" * 64}), 422, "TW-SVC-012")
    assert http.put(location).status_code == 201


def test_broken_connection_keeps_what_arrived(serve: Serve) -> None:
    served = serve(worker=False)
    location = start(served.http, size_bytes=len(BODY))
    host, port = served.url.removeprefix("http://").split(":")
    sent = 1_200_000
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        head = f"PATCH {location} HTTP/1.1\r\nHost: localhost\r\nUpload-Offset: 0\r\n"
        raw.sendall(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY[:sent])
    deadline = time.monotonic() + 10
    while (offset := served.http.get(location).json()["offset"]) < sent:
        assert time.monotonic() < deadline, offset
        time.sleep(0.02)
    assert offset == sent
    # The server may not have noticed yet that the first writer is gone: it says so, ask again.
    while (answer := patch(served.http, location, offset, BODY[offset:])).status_code == 409:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert answer.json()["offset"] == len(BODY)
    assert served.http.put(location).json()["sha256"] == digest(BODY)


@pytest.mark.parametrize("seen", [0, 500_000])
@pytest.mark.parametrize("before", [1_000_000, len(BODY)])
def test_what_another_process_has_received_is_hashed_again(
    seen: int, before: int, serve: Serve
) -> None:
    """One before a restart, or beside this one, which saw the first `seen` bytes."""
    served = serve(worker=False)
    location = start(served.http)
    if seen:
        patch(served.http, location, 0, BODY[:seen])
    [data] = (served.services.blobs.spool_dir / "uploads").glob("*.data")
    with data.open("ab") as other:
        other.write(BODY[seen:before])
    assert served.http.get(location).json()["offset"] == before
    if before < len(BODY):
        assert patch(served.http, location, before, BODY[before:]).status_code == 200
    assert served.http.put(location).json()["sha256"] == digest(BODY)


def test_second_writer_is_refused_while_one_writes(serve: Serve) -> None:
    served = serve(worker=False)
    location = start(served.http)
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        head = f"PATCH {location} HTTP/1.1\r\nHost: localhost\r\nUpload-Offset: 0\r\n"
        raw.sendall(f"{head}Content-Length: 100\r\n\r\n\x08\x08\x32".encode())
        deadline = time.monotonic() + 10
        while True:
            time.sleep(0.2)  # asked at once, the second would be the first
            answer = patch(served.http, location, 0, b"")
            if answer.status_code == 409:
                break
            assert time.monotonic() < deadline
    assert_problem(answer, 409, "TW-SVC-002")


def test_abandoned_and_expired_uploads_leave_no_files(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(worker=False)
    folder = served.services.blobs.spool_dir / "uploads"
    location = start(served.http)
    assert served.http.delete(location).status_code == 204
    assert list(folder.iterdir()) == []
    start(served.http)
    monkeypatch.setattr(upload_module, "KEEP_UPLOADS_S", -1.0)
    UploadFolder(served.services.blobs, limit_bytes=10, project="local").start(
        "x", size_bytes=None, sha256=None
    )
    assert len(list(folder.glob("*.data"))) == 1


@pytest.mark.parametrize("name", ["../../etc/passwd", "upload_x", "upload_" + "!" * 26])
def test_upload_ids_are_not_paths(serve: Serve, name: str) -> None:
    response = serve(worker=False).http.get("/v1/uploads/" + name.replace("/", "%2F"))
    assert_problem(response, 404, "TW-SVC-001")


def test_client_resumes_where_the_server_is(serve: Serve, tmp_path: Path) -> None:
    served = serve(worker=False)
    path = tmp_path / "big.onnx"
    path.write_bytes(BODY)
    seen: list[int] = []
    model = upload_resumable(
        served.client.transport,
        path,
        name="big",
        progress=lambda sent, total: seen.append(sent),
        chunk_bytes=700_000,
    )
    assert model["sha256"] == digest(BODY)
    assert seen == [700_000, 1_400_000, len(BODY)]


def test_client_learns_why_a_large_file_is_refused(serve: Serve, tmp_path: Path) -> None:
    served = serve(worker=False, max_model_bytes=1000)
    path = tmp_path / "big.onnx"
    path.write_bytes(BODY)
    with pytest.raises(ApiError) as caught:
        served.client.upload_model(path)
    assert (caught.value.code, caught.value.exit_code) == ("TW-SVC-003", 3)


def test_idempotency_key_with_another_body_is_refused(serve: Serve) -> None:
    http = serve(worker=False).http
    key = {"Idempotency-Key": "k1"}
    first = http.post("/v1/models", content=onnx_bytes(b"one"), headers=key)
    again = http.post("/v1/models", content=onnx_bytes(b"one"), headers=key)
    assert first.json()["id"] == again.json()["id"]
    assert_problem(
        http.post("/v1/models", content=onnx_bytes(b"two"), headers=key), 422, "TW-SVC-010"
    )
    assert len(http.get("/v1/models").json()["items"]) == 1


def test_models_in_use_cannot_be_deleted_others_can(serve: Serve) -> None:
    http = serve(worker=False).http
    model = http.post("/v1/models", content=onnx_bytes(b"one")).json()
    assert http.delete(f"/v1/models/{model['id']}").status_code == 204
    assert_problem(http.get(f"/v1/models/{model['id']}"), 404, "TW-SVC-001")
    assert_problem(http.delete(f"/v1/models/{model['id']}"), 404, "TW-SVC-001")

"""Uploads are looked at early: what cannot be a model is refused before the rest is sent."""

from __future__ import annotations

import gzip
import socket
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from urllib.parse import urlsplit

import httpx
import pytest
from api_fixtures import Serve, Served, assert_problem, onnx_bytes
from onnx_models import repeated_layers

from service.api.looks import LOOK_BYTES, NotAModel, look_at_model

FOREIGN = {
    "html": (b"<!DOCTYPE html><html><body>Not found</body></html>" * 40, "HTML"),
    "spaced html": (b"\n\n  <html>" + b" " * 2000, "HTML"),
    "png": (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(2000), "PNG"),
    "gzip": (gzip.compress(bytes(range(256)) * 50), "gzip"),
    "json": (b'{"model": "resnet50"}' * 100, "JSON"),
    "array": (b"[1, 2, 3]" * 300, "JSON"),
    "zip without files": (b"PK\x05\x06" + bytes(18), "zip"),
    "pickle": (b"\x80\x02}q\x00X\x04\x00\x00\x00" + bytes(2000), "pickle"),
    "npy": (b"\x93NUMPY\x01\x00v\x00{'descr'" + bytes(2000), ".npy"),
    "text": (b"a model, in words. " * 200, "no ONNX model"),
    "quoted": (b'"Br' + b"abcdefghij, klm. " * 200, "no ONNX model"),
    "B text": (b"Bad gateway: nothing listens there. " * 100, "no ONNX model"),
    "2 text": (b"200 OK, and then nothing but text. " * 100, "no ONNX model"),
    "zeros": (bytes(4000), "no ONNX model"),
    "program": (b"\x7fELF\x02\x01\x01" + bytes(2000), "a program"),
}


@pytest.mark.parametrize(("body", "said"), FOREIGN.values(), ids=FOREIGN)
def test_what_is_no_model_is_named(body: bytes, said: str) -> None:
    for count in (len(body), LOOK_BYTES):
        with pytest.raises(NotAModel) as refusal:
            look_at_model(body[:count], is_whole=count == len(body))
        assert refusal.value.error_code == "TW-MODEL-001"
        assert said in refusal.value.message


def test_every_beginning_of_a_model_passes() -> None:
    small = repeated_layers(1)
    small.producer_name, small.doc_string = "pytorch", "ä" * 300
    reordered = onnx_bytes()[2:] + onnx_bytes()[:2]
    newer = onnx_bytes() + b"\xfa\x7f\x03abc"  # a field that ONNX may have one day
    for whole in (small.SerializeToString(), onnx_bytes(b"x" * 600), reordered, newer):
        for count in range(min(len(whole), LOOK_BYTES)):
            look_at_model(whole[:count], is_whole=False)
        look_at_model(whole[:LOOK_BYTES], is_whole=len(whole) <= LOOK_BYTES)
    stored = BytesIO()
    with zipfile.ZipFile(stored, "w") as archive:
        archive.writestr("model.onnx", small.SerializeToString())
    for count in range(len(stored.getvalue())):
        look_at_model(stored.getvalue()[:count], is_whole=False)


def test_a_model_that_breaks_off_is_said_to() -> None:
    whole = onnx_bytes(b"x" * 100)
    for count in (1, 3, 50):
        with pytest.raises(NotAModel):
            look_at_model(whole[:count], is_whole=True)
    with pytest.raises(NotAModel) as refusal:
        look_at_model(whole[:50], is_whole=True)
    assert refusal.value.error_code == "TW-MODEL-002"


def raw(served: Served, path: str, media: str) -> Callable[[bytes], bytes]:
    """A POST of a gigabyte of which only the given bytes are sent: what the server says to them."""

    def send(start: bytes) -> bytes:
        parts = urlsplit(served.url)
        assert parts.hostname and parts.port
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as line:
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media}\r\n"
            line.sendall(f"{head}Content-Length: 1000000000\r\n\r\n".encode() + start)
            return b"".join(iter(lambda: line.recv(65536), b""))

    return send


def form(name: str, start: bytes) -> bytes:
    disposition = f'Content-Disposition: form-data; name="file"; filename="{name}"'
    return f"--edge\r\n{disposition}\r\n\r\n".encode() + start


@pytest.mark.parametrize("kind", ["html", "png", "gzip", "text"])
def test_a_gigabyte_is_refused_by_its_first_bytes(serve: Serve, kind: str) -> None:
    served = serve(worker=False)
    start = FOREIGN[kind][0][:200]
    multipart = 'multipart/form-data; boundary="edge"'
    for answer in (
        raw(served, "/v1/models", "application/octet-stream")(start),
        raw(served, "/v1/models", multipart)(form("m.onnx", start)),
    ):
        assert answer.startswith(b"HTTP/1.1 422 "), answer
        assert b"TW-MODEL-001" in answer
    arrays = raw(served, "/v1/calibrations", "application/octet-stream")(start)
    assert b"TW-CAL-001" in arrays
    assert not [p for p in served.services.blobs.spool_dir.rglob("*") if p.is_file()]
    assert served.http.get("/v1/models").json()["items"] == []


def test_a_resumable_upload_is_dropped_by_its_first_bytes(serve: Serve) -> None:
    served = serve(worker=False)

    def started() -> str:
        return str(served.http.post("/v1/uploads", json={"name": "x"}).headers["location"])

    def sent(place: str, offset: int, chunk: bytes) -> httpx.Response:
        return served.http.patch(place, content=chunk, headers={"Upload-Offset": str(offset)})

    place = started()
    assert_problem(sent(place, 0, FOREIGN["html"][0]), 422, "TW-MODEL-001")
    assert served.http.get(place).status_code == 404
    place = started()
    assert sent(place, 0, b"P").status_code == 200  # may still be a zip
    assert_problem(sent(place, 1, b"age not found"), 422, "TW-MODEL-001")
    place = started()
    assert sent(place, 0, b"\x08").status_code == 200
    assert_problem(served.http.put(place), 422, "TW-MODEL-001")
    assert not list((served.services.blobs.spool_dir / "uploads").glob("*.data"))[1:]


def test_a_client_learns_what_it_has_sent(serve: Serve) -> None:
    served = serve(worker=False)

    def pieces() -> Iterator[bytes]:
        yield FOREIGN["png"][0]

    problem = assert_problem(served.http.post("/v1/models", content=pieces()), 422, "TW-MODEL-001")
    assert "PNG" in problem["detail"]
    assert "89504e47" in problem["actual"]

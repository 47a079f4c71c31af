"""kill -9 of the whole service during an upload: nothing that arrived is lost."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import httpx
from api_fixtures import onnx_bytes

BODY = onnx_bytes(os.urandom(1 << 16) * 48)  # 3 MiB
ARRIVED = 2_000_000


@contextmanager
def service(data_dir: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    words = ["serve", "--json", "--port", "0", "--data-dir", str(data_dir)]
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, "the service did not start"
            text += line
        yield json.loads(text)["url"], process
    finally:
        process.kill()
        process.wait()


def test_upload_goes_on_after_the_service_was_killed(tmp_path: Path) -> None:
    with service(tmp_path) as (url, process):
        upload = httpx.post(f"{url}/v1/uploads", json={"name": "m", "size_bytes": len(BODY)})
        location = upload.headers["location"]
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            head = f"PATCH {location} HTTP/1.1\r\nHost: localhost\r\nUpload-Offset: 0\r\n"
            raw.sendall(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY[:ARRIVED])
            deadline = time.monotonic() + 10
            while httpx.get(url + location).json()["offset"] < 1 << 20:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.kill()
            process.wait()
    with service(tmp_path) as (url, _):
        offset = httpx.get(url + location).json()["offset"]
        # Whole batches reach the disk; what was still being collected is sent again.
        assert 1 << 20 <= offset <= ARRIVED
        rest = httpx.patch(
            url + location, content=BODY[offset:], headers={"Upload-Offset": str(offset)}
        )
        assert rest.json()["offset"] == len(BODY)
        model = httpx.put(url + location, params={"digest": sha256(BODY).hexdigest()}).json()
        assert model["sha256"] == sha256(BODY).hexdigest()
        stored = httpx.get(f"{url}/v1/artifacts/{model['sha256']}")
        assert stored.content == BODY

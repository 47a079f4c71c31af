"""The S3 blob store against a local S3 server (moto), when obstore and moto are installed."""

from __future__ import annotations

import io
import os
import urllib.request
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.faults.servers import OwnS3
from service.errors import DigestMismatch, NotFound, Unavailable
from service.store.blobs import BlobWriter, copy_to, put_bytes, put_stream, read_bytes

if TYPE_CHECKING:
    from service.store.s3 import S3BlobStore


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pytest.importorskip("obstore", reason="the optional package obstore is not installed")
    pytest.importorskip("moto.server", reason="moto, the S3 server for tests, is not installed")
    server = OwnS3()
    assert server.start(), "moto did not start"
    try:
        yield server.endpoint
    finally:
        server.stop()


def _open(endpoint: str, folder: Path, bucket: str = OwnS3.bucket) -> S3BlobStore:
    from service.store.s3 import S3BlobStore

    return S3BlobStore(
        bucket=bucket,
        prefix="p",
        endpoint=endpoint,
        region="us-east-1",
        spool_dir=folder / "spool",
        credentials=("test", "test"),
    )


@pytest.fixture
def store(endpoint: str, tmp_path: Path) -> S3BlobStore:
    return _open(endpoint, tmp_path)


def test_round_trip(store: S3BlobStore, tmp_path: Path) -> None:
    data = os.urandom(9_500_000)  # more than one piece of 8 MiB
    ref = put_stream(store, io.BytesIO(data), 10_000_000, "application/octet-stream")
    assert ref.sha256 == sha256(data).hexdigest()
    assert store.head(ref.sha256) == len(data)
    assert read_bytes(store, ref.sha256) == data
    assert b"".join(store.open_range(ref.sha256, 5, 7)) == data[5:12]
    assert copy_to(store, ref.sha256, tmp_path / "copy") == len(data)
    assert put_bytes(store, data, "x").sha256 == ref.sha256
    assert ref.sha256 in list(store.list_digests())
    url = store.presign_get(ref.sha256, 60, "model.onnx")
    assert url is not None
    with urllib.request.urlopen(url, timeout=10) as response:
        assert response.read() == data
    assert not store.delete(ref.sha256, older_than_s=3600.0)
    assert store.delete(ref.sha256)
    assert store.head(ref.sha256) is None
    assert not store.delete(ref.sha256)


def test_absent_content(store: S3BlobStore) -> None:
    with pytest.raises(NotFound):
        store.open_range("0" * 64)
    assert store.head("../escape") is None


def test_mismatch_leaves_nothing(store: S3BlobStore) -> None:
    with (
        pytest.raises(DigestMismatch),
        BlobWriter(store, limit_bytes=10, media_type="x") as writer,
    ):
        writer.write(b"mismatch")
        writer.commit(expected_sha256="0" * 64)
    assert store.head(sha256(b"mismatch").hexdigest()) is None
    assert list(store.spool_dir.iterdir()) == []


def test_a_store_that_refuses_is_unavailable(endpoint: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="refused a write"):
        put_bytes(_open(endpoint, tmp_path, bucket="no-such-bucket"), b"x", "x")
    assert list((tmp_path / "spool").iterdir()) == []

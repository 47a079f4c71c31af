"""What a store's writer leaves where it cannot go on."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.store.blobs import put_bytes
from service.store.local_blobs import LocalBlobStore


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Writes beyond so many bytes of a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [100, 1 << 20], ids=["buffered", "written"])
def test_nothing_is_left_where_a_disk_is_full(tmp_path: Path, size: int) -> None:
    """What is buffered is written again when the file is closed, and fails again."""
    store = LocalBlobStore(tmp_path / "blobs", tmp_path / "spool")
    with pytest.raises(OSError), no_file_beyond(10):
        put_bytes(store, b"x" * size, "text/plain")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert put_bytes(store, b"y", "text/plain").size_bytes == 1

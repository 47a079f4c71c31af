"""The blob store that the settings name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from service.errors import Unavailable
from service.settings import Settings
from service.store.blobs import BlobStore
from service.store.local_blobs import LocalBlobStore


@contextmanager
def _faults_as_unavailable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"the blob store cannot be used: {error}") from error


def open_blob_store(settings: Settings) -> BlobStore:
    """Open the store that `settings.blob_url` names (`file://` or `s3://bucket/prefix`).

    Raises:
        Unavailable: the directory cannot be made, or the S3 client is not installed.
    """
    url = urlsplit(settings.blob_url)
    with _faults_as_unavailable():
        if url.scheme == "s3":
            from service.store.s3 import S3BlobStore  # optional dependency

            return S3BlobStore(
                bucket=url.netloc,
                prefix=url.path.strip("/"),
                endpoint=settings.s3_endpoint,
                region=settings.s3_region,
                spool_dir=settings.spool_dir,
            )
        root = Path(unquote(url.path))
        root.mkdir(parents=True, exist_ok=True)
        # Spool beside the content, so that adopting a file is one atomic rename.
        return LocalBlobStore(root, root / "spool")

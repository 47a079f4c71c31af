"""Downloads: strong ETag, conditional requests, ranges, resumed and checked by the client."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from api_fixtures import Serve, Served, assert_problem, onnx_bytes

from service.client import Client, DigestMismatch

BODY = onnx_bytes(bytes(range(251)) * 12_000)  # 3 MB, not a multiple of any chunk


@pytest.fixture
def stored(serve: Serve) -> tuple[Served, str]:
    served = serve(worker=False)
    return served, f"/v1/artifacts/{served.model(BODY)['sha256']}"


def test_whole_body_is_immutable_with_its_digest_as_etag(stored: tuple[Served, str]) -> None:
    served, url = stored
    response = served.http.get(url)
    assert response.content == BODY
    assert response.headers["etag"] == f'"{sha256(BODY).hexdigest()}"'
    assert "immutable" in response.headers["cache-control"]
    assert response.headers["accept-ranges"] == "bytes"
    assert response.headers["x-content-type-options"] == "nosniff"
    head = served.http.head(url)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(BODY))


def test_known_content_is_not_sent_again(stored: tuple[Served, str]) -> None:
    served, url = stored
    etag = served.http.head(url).headers["etag"]
    for header in (etag, f'"x", {etag}', f"W/{etag}", "*"):
        response = served.http.get(url, headers={"If-None-Match": header})
        assert (response.status_code, response.content) == (304, b"")
    assert served.http.get(url, headers={"If-None-Match": '"x"'}).status_code == 200


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-1000000", 10, 1_000_001),
        ("bytes=2999999-", 2_999_999, len(BODY)),
        ("bytes=-5", len(BODY) - 5, len(BODY)),
        ("bytes=-99999999", 0, len(BODY)),
        ("bytes=5-99999999", 5, len(BODY)),
    ],
)
def test_one_range(stored: tuple[Served, str], header: str, start: int, stop: int) -> None:
    served, url = stored
    response = served.http.get(url, headers={"Range": header})
    assert response.status_code == 206
    assert response.content == BODY[start:stop]
    assert response.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(BODY)}"


@pytest.mark.parametrize("header", ["bytes=5-3", "lines=1-2", "bytes=0-1,4-5", "bytes=-", "x"])
def test_ranges_that_are_ignored(stored: tuple[Served, str], header: str) -> None:
    served, url = stored
    response = served.http.get(url, headers={"Range": header})
    assert (response.status_code, len(response.content)) == (200, len(BODY))


@pytest.mark.parametrize("header", [f"bytes={len(BODY)}-", "bytes=-0"])
def test_ranges_that_do_not_exist(stored: tuple[Served, str], header: str) -> None:
    served, url = stored
    response = served.http.get(url, headers={"Range": header})
    assert_problem(response, 416, "TW-SVC-014")
    assert response.headers["content-range"] == f"bytes */{len(BODY)}"


def test_if_range_sends_everything_when_the_content_changed(stored: tuple[Served, str]) -> None:
    served, url = stored
    etag = served.http.head(url).headers["etag"]
    same = served.http.get(url, headers={"Range": "bytes=0-9", "If-Range": etag})
    other = served.http.get(url, headers={"Range": "bytes=0-9", "If-Range": '"x"'})
    assert (same.status_code, other.status_code) == (206, 200)


def test_unknown_and_malformed_digests(stored: tuple[Served, str]) -> None:
    served, _ = stored
    for name in ("0" * 64, "..%2F..%2Fetc%2Fpasswd", "x"):
        assert_problem(served.http.get(f"/v1/artifacts/{name}"), 404, "TW-SVC-001")


class Breaking(httpx.BaseTransport):
    """Passes requests on, but breaks each body after some bytes, and may damage it."""

    def __init__(self, *, after: int, breaks: int, damage: bool = False) -> None:
        self.inner = httpx.HTTPTransport()
        self.after, self.breaks, self.damage = after, breaks, damage
        self.ranges: list[str | None] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.ranges.append(request.headers.get("range"))
        response = self.inner.handle_request(request)
        body = b"".join(response.stream)  # type: ignore[arg-type]  # a sync stream here
        if self.damage:
            body = b"\xff" + body[1:]
        transport = self

        class Cut(httpx.SyncByteStream):
            def __iter__(self) -> Iterator[bytes]:
                if transport.breaks > 0:
                    transport.breaks -= 1
                    yield body[: transport.after]
                    raise httpx.ReadError("the connection broke")
                yield body

        return httpx.Response(response.status_code, headers=response.headers, stream=Cut())


def test_client_resumes_a_broken_download(stored: tuple[Served, str], tmp_path: Path) -> None:
    served, url = stored
    transport = Breaking(after=1_000_000, breaks=2)
    with Client(served.url, http=httpx.Client(transport=transport, base_url=served.url)) as client:
        assert client.download(url, tmp_path / "x.bin") == sha256(BODY).hexdigest()
    assert (tmp_path / "x.bin").read_bytes() == BODY
    assert transport.ranges == [None, "bytes=1000000-", "bytes=2000000-"]


def test_client_refuses_damaged_bytes(stored: tuple[Served, str], tmp_path: Path) -> None:
    served, url = stored
    transport = Breaking(after=0, breaks=0, damage=True)
    http = httpx.Client(transport=transport, base_url=served.url)
    with Client(served.url, http=http) as client, pytest.raises(DigestMismatch):
        client.download(url, tmp_path / "out" / "x.bin")
    assert list((tmp_path / "out").iterdir()) == []

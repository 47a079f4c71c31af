"""One request at a time: retries of what is safe to retry, and problem documents as exceptions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import httpx

from service.client.errors import ApiError, Json, ServerUnreachable, client_problem

RETRIES = 4
"""Attempts after the first for requests that are safe to repeat."""
FIRST_BACKOFF_S = 0.2
MOST_RETRY_AFTER_S = 60
"""The longest pause that a server may ask for."""


class Transport:
    """Sends requests to one server.  Not thread-safe beyond what httpx.Client is."""

    def __init__(
        self, base_url: str, *, timeout_s: float, client: httpx.Client | None,
        key: str | None = None,
    ) -> None:  # fmt: skip
        self.base_url = base_url.rstrip("/")
        self._client = client or httpx.Client(
            base_url=self.base_url, timeout=httpx.Timeout(timeout_s, connect=5.0)
        )
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def close(self) -> None:
        self._client.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        json: Json = None,
        content: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> httpx.Response:
        """Send one request; repeat it while that is safe and the failure is transient.

        Safe means a method without effects, or a write that carries an Idempotency-Key, with a
        body that can be sent again.

        Raises:
            ApiError: the server answered with a problem document.
            ServerUnreachable: no answer after the retries.
        """
        sent = {**self._headers, **(headers or {})}
        repeatable = method in {"GET", "HEAD", "DELETE"} or "Idempotency-Key" in sent
        if content is not None and not isinstance(content, bytes):
            repeatable = False
        attempts = RETRIES + 1 if repeatable else 1
        for attempt in range(attempts):
            last, asked_s = attempt == attempts - 1, 0.0
            try:
                response = self._client.request(
                    method,
                    path,
                    params=dict(params) if params else None,
                    json=json,
                    content=content,
                    headers=sent,
                    timeout=httpx.USE_CLIENT_DEFAULT if timeout_s is None else timeout_s,
                )
            except httpx.TransportError as error:
                if last:
                    reason = str(error) or type(error).__name__
                    raise ServerUnreachable(self.base_url, reason) from error
            else:
                if response.status_code < 400:
                    return response
                failure = _api_error(response)
                if last or not failure.retryable:
                    raise failure
                asked_s = _retry_after_s(response)
            time.sleep(max(FIRST_BACKOFF_S * 2**attempt, asked_s))
        raise AssertionError("the loop returns or raises on its last attempt")

    @contextmanager
    def stream(
        self, path: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> Iterator[httpx.Response]:
        """Open a GET whose body is read piece by piece.

        Raises:
            ApiError: the server answered with a problem document.
            ServerUnreachable: the connection failed before or while reading.
        """
        try:
            with self._client.stream(
                "GET", path, headers={**self._headers, **(headers or {})}, timeout=timeout_s
            ) as response:
                if response.status_code >= 400:
                    response.read()
                    raise _api_error(response)
                yield response
        except httpx.TransportError as error:
            raise ServerUnreachable(self.base_url, str(error) or type(error).__name__) from error


def document(response: httpx.Response) -> dict[str, Json]:
    """Decode a JSON object answer.

    Raises:
        ApiError: the body is something else (a proxy in between, or not a Tilewright server).
    """
    try:
        value = response.json()
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ApiError(
            client_problem(
                "TW-NET-001",
                f"{response.request.url} did not answer with a JSON object",
                status=502,
                exit_code=5,
                fault="service",
                hint="Check that the URL is the root of a Tilewright server.",
            )
        )
    return cast("dict[str, Json]", value)


def _retry_after_s(response: httpx.Response) -> float:
    """How long the server asks to wait, at most as long as a user may; a date is not read."""
    value = response.headers.get("retry-after", "")
    return float(min(int(value), MOST_RETRY_AFTER_S)) if value.isdecimal() else 0.0


def _api_error(response: httpx.Response) -> ApiError:
    try:
        value = response.json()
    except ValueError:
        value = None
    if isinstance(value, dict) and "code" in value:
        return ApiError(value)
    transient = response.status_code in {502, 503, 504}
    return ApiError(
        client_problem(
            "TW-SVC-005" if transient else "TW-NET-001",
            f"{response.request.url} answered {response.status_code} without a problem document",
            status=response.status_code,
            exit_code=5,
            fault="transient" if transient else "service",
            hint="Check that the URL is the root of a Tilewright server.",
        )
    )

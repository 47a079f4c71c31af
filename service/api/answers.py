"""Answers of requests that change something: built and serialised before the commit.

A failure to answer must store nothing: a stored thing that no answer can show would break every
page that lists it.  So the transaction calls `Prepared` with the record it is about to commit, and
what is sent later are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from fastapi import Response

from service.api.schemas.base import AnswerModel

Record = TypeVar("Record")


def encoded(answer: AnswerModel) -> bytes:
    """One answer as JSON."""
    return answer.model_dump_json().encode()


class Prepared(Generic[Record]):
    """Builds one answer when the transaction calls it, and keeps the bytes."""

    def __init__(self, build: Callable[[Record], AnswerModel]) -> None:
        self._build = build
        self._body: bytes | None = None

    def __call__(self, record: Record) -> None:
        """Build the answer; what this raises ends the transaction."""
        self._body = encoded(self._build(record))

    def response(self, status: int, headers: Mapping[str, str] | None = None) -> Response:
        """The answer that was built."""
        assert self._body is not None, "the transaction has not called"
        return Response(self._body, status, headers=headers, media_type="application/json")

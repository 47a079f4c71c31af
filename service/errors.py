"""Every way the service says no, as types with an HTTP status and a catalogue code.

ServiceError(status)
├─ KeyNeeded 401 · NotAllowed · ScopeMissing 403
├─ NotFound 404 · Conflict 409 · TooLarge 413 · UnsupportedMedia 415
├─ Malformed · IdempotencyMismatch · DigestMismatch · SpecRejected 422
├─ QuotaExceeded · RateExceeded 429
└─ Unavailable 503 (transient: the client may retry)
LeaseLost (never leaves the worker: somebody else owns the item now)

The codes and their remedies live in the compiler's error catalogue, so that the CLI, the API and a
failed job explain themselves with the same words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from worker.compiler.error_catalog import ERROR_CATALOG
from worker.compiler.errors import CompilerError, Detail, Finding


def problem(
    code: str,
    message: str,
    *,
    stage: str | None = None,
    pointer: str | None = None,
    limit: Detail = None,
    actual: Detail = None,
    remedy: str | None = None,
    findings: tuple[Finding, ...] = (),
) -> dict[str, Detail]:
    """Give the problem document for `code`; the same shape as `CompilerError.to_problem()`."""
    return CompilerError(
        code,
        message,
        stage=stage,
        pointer=pointer,
        limit=limit,
        actual=actual,
        remedy=remedy,
        findings=findings,
    ).to_problem()


class ServiceError(Exception):
    """A refusal of the service; `to_problem()` is the response body, `status` its HTTP status."""

    code: ClassVar[str] = "TW-SVC-002"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        pointer: str | None = None,
        limit: Detail = None,
        actual: Detail = None,
        remedy: str | None = None,
        findings: tuple[Finding, ...] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.error_code = code or self.code
        self.message = message
        self.pointer = pointer
        self.limit = limit
        self.actual = actual
        self.remedy = remedy
        self.findings = findings
        self.headers = dict(headers or {})

    @property
    def status(self) -> int:
        return ERROR_CATALOG[self.error_code].status

    def to_problem(self) -> dict[str, Detail]:
        """Give the RFC 9457 document with code, fault, place, limit against actual and remedy."""
        return problem(
            self.error_code,
            self.message,
            pointer=self.pointer,
            limit=self.limit,
            actual=self.actual,
            remedy=self.remedy,
            findings=self.findings,
        )


class NotFound(ServiceError):
    """The id names nothing (or nothing this owner may see)."""

    code = "TW-SVC-001"


class KeyNeeded(ServiceError):
    """The request has no API key, or none that is good."""

    code = "TW-SVC-019"


class ScopeMissing(ServiceError):
    """The request's key does not allow it."""

    code = "TW-SVC-020"


class NotAllowed(ServiceError):
    """The request comes by a name, or from a page, that this server does not serve."""

    code = "TW-SVC-016"


class Conflict(ServiceError):
    """The resource's state does not allow the request."""

    code = "TW-SVC-002"


class TooLarge(ServiceError):
    """A body or a declared size is over its limit."""

    code = "TW-SVC-003"


class Malformed(ServiceError):
    """The request itself cannot be understood."""

    code = "TW-SVC-004"


class Unavailable(ServiceError):
    """Database, broker or storage cannot serve right now."""

    code = "TW-SVC-005"


class IdempotencyMismatch(ServiceError):
    """The key was used before with another request."""

    code = "TW-SVC-010"


class QuotaExceeded(ServiceError):
    """Too many active jobs or bytes."""

    code = "TW-SVC-011"


class RateExceeded(ServiceError):
    """Too many requests in a while."""

    code = "TW-SVC-021"


class DigestMismatch(ServiceError):
    """Received bytes differ from what the client declared."""

    code = "TW-SVC-012"


class UnsupportedMedia(ServiceError):
    """Method or media type is not served here."""

    code = "TW-SVC-013"


class SpecRejected(ServiceError):
    """A hardware spec failed validation; findings carry the pointers."""

    code = "TW-SPEC-001"


class LeaseLost(Exception):
    """The caller no longer owns the item: its results must be thrown away."""

    def __init__(self, item_id: str, fence: int) -> None:
        super().__init__(f"lease of item {item_id} with fence {fence} is lost")
        self.item_id = item_id
        self.fence = fence

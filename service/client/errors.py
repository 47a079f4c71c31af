"""What the client raises: each error carries one problem document and an exit code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"


class ApiError(Exception):
    """The server refused, or could not be asked.

    `problem` is the RFC 9457 document, with `code`, `fault`, `retryable`, `stage`, `errors` and
    `hints`; for failures on this side of the wire the client builds the same object.
    """

    def __init__(self, problem: Mapping[str, Json]) -> None:
        self.problem = dict(problem)
        super().__init__(f"{self.code}: {self.detail}")

    @property
    def code(self) -> str:
        return str(self.problem.get("code", "TW-INT-001"))

    @property
    def status(self) -> int:
        value = self.problem.get("status")
        return value if isinstance(value, int) else 500

    @property
    def detail(self) -> str:
        return str(self.problem.get("detail") or self.problem.get("title") or "unknown error")

    @property
    def retryable(self) -> bool:
        return self.problem.get("retryable") is True

    @property
    def exit_code(self) -> int:
        """Exit code of the CLI for this error."""
        value = self.problem.get("exit_code")
        return value if isinstance(value, int) else 5


def client_problem(
    code: str, detail: str, *, status: int, exit_code: int, fault: str, hint: str
) -> dict[str, Json]:
    """Build the problem document of a failure that no server described."""
    return {
        "type": f"urn:tilewright:error:{code}",
        "title": detail,
        "status": status,
        "code": code,
        "fault": fault,
        "retryable": fault == "transient",
        "stage": "client",
        "detail": detail,
        "errors": [],
        "hints": [hint],
        "exit_code": exit_code,
    }


class ServerUnreachable(ApiError):
    """No connection, or it broke before an answer came."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            client_problem(
                "TW-NET-001",
                f"cannot reach {url}: {reason}",
                status=503,
                exit_code=5,
                fault="transient",
                hint="Check the URL and that `tilewright serve` runs.",
            )
        )


class DigestMismatch(ApiError):
    """A downloaded file does not have the digest the server announced."""

    def __init__(self, name: str, expected: str, actual: str) -> None:
        super().__init__(
            client_problem(
                "TW-SVC-012",
                f"{name}: downloaded bytes have sha256 {actual}, the server announced {expected}",
                status=502,
                exit_code=5,
                fault="transient",
                hint="Download again; if it happens twice, the stored blob is damaged.",
            )
        )


class WaitTimeout(ApiError):
    """The job is still running after the time the caller was willing to wait."""

    def __init__(self, job_id: str, seconds: float, state: str) -> None:
        super().__init__(
            client_problem(
                "TW-SVC-008",
                f"job {job_id} is still {state} after {seconds:g} s; it goes on running",
                status=504,
                exit_code=6,
                fault="user",
                hint=f"Wait longer: tilewright jobs wait {job_id}",
            )
        )

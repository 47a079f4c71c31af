"""The gate's one comment at a pull request: found by its mark, written only when it says other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol
from urllib.parse import quote

import httpx

from service.gate.markdown import MARK
from worker.compiler.errors import CompilerError

_PAGE = 100
_MOST_PAGES = 50
_LIMIT_S = 30.0


class Done(StrEnum):
    """What was done."""

    CREATED = "created"
    UPDATED = "updated"
    KEPT = "kept"
    """It says the same already."""
    LEFT_OUT = "left out"
    """There is none, and nothing changed that would need one."""


class Thread(Protocol):
    """The comments of one pull or merge request."""

    def comments(self) -> Iterator[tuple[int, str]]:
        """(id, text) of those that this program may have written."""
        ...

    def create(self, text: str) -> None:
        """Add one."""
        ...

    def update(self, number: int, text: str) -> None:
        """Replace one."""
        ...


def keep_comment(thread: Thread, text: str) -> Done:
    """Make sure that the request has this comment, once.

    Raises:
        CompilerError: TW-GATE-003, the host refuses or is not there.
        ValueError: the text does not begin with a mark.
    """
    mark = _mark(text)
    if mark is None:
        raise ValueError("the text is no comment of a gate")
    for number, old in thread.comments():
        before = _mark(old)
        if before is None or before[0] != mark[0]:
            continue
        if before == mark:
            return Done.KEPT
        thread.update(number, text)
        return Done.UPDATED
    if mark[1] == "unchanged":
        return Done.LEFT_OUT
    thread.create(text)
    return Done.CREATED


def _mark(text: str) -> tuple[str, str, str] | None:
    """(gate file, changed or not, digest) of a text's first line."""
    words = text.partition("\n")[0].strip().split(" ")
    if len(words) != 6 or words[:2] != ["<!--", MARK] or words[5] != "-->":
        return None
    return words[2], words[3], words[4]


@dataclass(frozen=True, slots=True)
class _Host:
    """Requests to one host."""

    client: httpx.Client

    def ask(self, method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
        """
        Raises:
            CompilerError: TW-GATE-003.
        """
        try:
            answer = self.client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise CompilerError("TW-GATE-003", f"{method} {path}: {error}") from error
        if answer.status_code >= 400:
            said = answer.text[:200]
            raise CompilerError("TW-GATE-003", f"{method} {path}: {answer.status_code} {said}")
        return answer.json()

    def pages(self, path: str) -> Iterator[Mapping[str, Any]]:
        """Go through a list."""
        for page in range(1, _MOST_PAGES + 1):
            items = self.ask("GET", f"{path}?per_page={_PAGE}&page={page}")
            yield from items
            if len(items) < _PAGE:
                return


def _host(api: str, headers: Mapping[str, str]) -> _Host:
    return _Host(httpx.Client(base_url=api, headers=dict(headers), timeout=_LIMIT_S))


class GitHub:
    """A pull request on GitHub."""

    def __init__(self, api: str, repository: str, number: int, token: str) -> None:
        headers = {"Accept": "application/vnd.github+json"}
        self._host = _host(api, {**headers, "Authorization": f"Bearer {token}"})
        self._at = f"/repos/{quote(repository)}/issues"
        self._number = number

    def comments(self) -> Iterator[tuple[int, str]]:
        for row in self._host.pages(f"{self._at}/{self._number}/comments"):
            if (row.get("user") or {}).get("type") == "Bot":  # anybody can write a mark
                yield row["id"], row.get("body") or ""

    def create(self, text: str) -> None:
        self._host.ask("POST", f"{self._at}/{self._number}/comments", {"body": text})

    def update(self, number: int, text: str) -> None:
        self._host.ask("PATCH", f"{self._at}/comments/{number}", {"body": text})


class GitLab:
    """A merge request on GitLab."""

    def __init__(self, api: str, project: str, number: int, token: str) -> None:
        self._host = _host(api, {"PRIVATE-TOKEN": token})
        self._at = f"/projects/{quote(project, safe='')}/merge_requests/{number}/notes"

    def comments(self) -> Iterator[tuple[int, str]]:
        me = self._host.ask("GET", "/user")["id"]
        for row in self._host.pages(self._at):
            if (row.get("author") or {}).get("id") == me:
                yield row["id"], row.get("body") or ""

    def create(self, text: str) -> None:
        self._host.ask("POST", self._at, {"body": text})

    def update(self, number: int, text: str) -> None:
        self._host.ask("PUT", f"{self._at}/{number}", {"body": text})

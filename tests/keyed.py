"""API keys of projects, for tests of servers that ask for one."""

from __future__ import annotations

import httpx
from api_fixtures import Served

from service.jobs import keys
from service.keys import Scope

BOTH = (Scope.READ, Scope.WRITE)


def key_of(
    served: Served, project: str, *scopes: Scope, lasts_s: float | None = None
) -> tuple[str, str]:
    """(id, text) of a new key."""
    record, text = keys.create_key(
        served.services.database, project=project, name=f"of {project}", scopes=scopes or BOTH,
        lasts_s=lasts_s,
    )  # fmt: skip
    return record.id, text


def sent(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def as_project(served: Served, project: str, *scopes: Scope) -> httpx.Client:
    text = key_of(served, project, *scopes)[1]
    return httpx.Client(base_url=served.url, headers=sent(text), timeout=30)

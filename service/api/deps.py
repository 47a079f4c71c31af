"""What every route needs of its application: settings, database, blobs, outbox, watcher.

None of these functions waits for anything, so they run on the event loop: plain ones would go to
the pool of threads, one trip each, and wait there behind every request that is being worked on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Path, Request
from pydantic import StringConstraints

from service.api.callers import KeyRing
from service.api.explaining import Explanations
from service.api.guide import GuideFolder
from service.api.preflight_slots import PreflightSlots
from service.api.readiness import Readiness
from service.api.sessions import Signer
from service.api.spec_readers import SpecReaders
from service.api.sweep_looks import SweepLooks
from service.api.watch import EventWatch
from service.errors import Malformed
from service.outbox import Outbox
from service.settings import Settings
from service.store.blobs import BlobStore
from service.store.session import Database


@dataclass(frozen=True, slots=True)
class ApiState:
    """The long-lived objects of one application."""

    settings: Settings
    database: Database
    blobs: BlobStore
    outbox: Outbox
    watch: EventWatch
    """Of jobs."""
    sweep_watch: EventWatch
    sweep_looks: SweepLooks
    readiness: Readiness
    preflights: PreflightSlots
    specs: SpecReaders
    guide: GuideFolder
    explanations: Explanations
    signer: Signer
    ring: KeyRing


async def api_state(request: Request) -> ApiState:
    """Give the application's objects."""
    state = request.app.state.tilewright
    assert isinstance(state, ApiState)
    return state


State = Annotated[ApiState, Depends(api_state)]
Name = Annotated[str, Path(max_length=200)]
"""An id, digest or code in a path."""


async def idempotency_key(
    value: Annotated[str | None, Header(alias="Idempotency-Key", max_length=200)] = None,
) -> str | None:
    """Read the Idempotency-Key header.

    Raises:
        Malformed: it is empty or holds characters that cannot be compared safely.
    """
    if value is not None and not (value and value.isascii() and value.isprintable()):
        raise Malformed(
            "Idempotency-Key must be 1 to 200 printable ASCII characters",
            pointer="header:Idempotency-Key",
        )
    return value


Key = Annotated[str | None, Depends(idempotency_key)]


async def preferred_wait_s(
    prefer: Annotated[
        list[Annotated[str, StringConstraints(max_length=200)]] | None, Header(max_length=20)
    ] = None,
) -> float:
    """Read `Prefer: wait=N`, one preference of several, in one header or many.

    As RFC 7240 says, the first of a name counts, parameters behind it (`;`) are no part of it, and
    what is unknown or makes no sense is as if it were not there.
    """
    for part in ",".join(prefer or ()).split(","):
        name, _, value = part.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            found = _SECONDS.fullmatch(value.strip())
            return 0.0 if found is None else float(min(int(found[1] or found[2]), MAX_WAIT_S))
    return 0.0


_SECONDS = re.compile(r'([0-9]{1,9})|"([0-9]{1,9})"')
MAX_WAIT_S = 60
"""A request is held at most this long; clients ask again."""
APPLIED = "Preference-Applied"
Wait = Annotated[float, Depends(preferred_wait_s)]

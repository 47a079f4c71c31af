"""How many requests a key, a project and a guesser may send, and what answers say of it.

The fields are those of draft-ietf-httpapi-ratelimit-headers-11: `RateLimit-Policy` names every rate
that holds, `RateLimit` what is left of each.  A window slides: what is left grows all the time, so
that clients who were refused do not come back at once.  Source: the library's sliding window
counter, which weighs the window before by what of it is still inside.

Cost: two steps in memory for each rate, or two round trips to Redis.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from service.api.problems import problem_response
from service.errors import RateExceeded
from service.keys import Caller
from service.log import get_logger
from service.settings import Settings

if TYPE_CHECKING:
    from limits import RateLimitItem

STORE_WAIT_S = 0.5
"""How long a request waits for the store of the counts."""
STORE_REST_S = 5.0
"""How long nobody asks a store that did not answer: until then nothing is counted."""
MOST_RATES = 1024
"""Different rates that are held parsed."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One rate, and what of it is left."""

    name: str
    limit: int
    window_s: int
    left: int
    resets_s: int
    """Until more is left."""
    is_kept: bool
    """Whether this request is within it."""


class Rates:
    """Counts requests, in this process or in a store that several share."""

    def __init__(self, settings: Settings) -> None:
        # These take a while to import, and a command that opens its own data directory counts none.
        from limits.aio.strategies import SlidingWindowCounterRateLimiter
        from limits.storage import storage_from_string

        url = settings.rate_store_url
        options: dict[str, Any] = {}
        if not url.startswith("memory:"):
            options = {
                "implementation": "redispy", "key_prefix": "tilewright",
                "socket_timeout": STORE_WAIT_S, "socket_connect_timeout": STORE_WAIT_S,
            }  # fmt: skip
        storage: Any = storage_from_string(f"async+{url}", **options)
        self._windows = SlidingWindowCounterRateLimiter(storage)
        self._rests_until = 0.0

    async def hit(self, name: str, rate: str, who: str) -> list[Standing]:
        """Count one request against a rate; empty where the store cannot say."""
        return await self._asked(name, rate, who, is_hit=True)

    async def look(self, name: str, rate: str, who: str) -> list[Standing]:
        """What is left, without counting."""
        return await self._asked(name, rate, who, is_hit=False)

    async def _asked(self, name: str, rate: str, who: str, *, is_hit: bool) -> list[Standing]:
        if time.monotonic() < self._rests_until:
            return []
        try:
            return [await self._standing(name, item, who, is_hit) for item in _items(rate)]
        except Exception as error:  # whatever the store's driver raises
            # A service that refuses everybody because nobody can count would be the worse failure.
            self._rests_until = time.monotonic() + STORE_REST_S
            get_logger().warning("requests are not counted", store_error=repr(error))
            return []

    async def _standing(self, name: str, item: RateLimitItem, who: str, is_hit: bool) -> Standing:
        step = self._windows.hit if is_hit else self._windows.test
        is_kept = await step(item, name, who)
        stats = await self._windows.get_window_stats(item, name, who)
        window_s = item.get_expiry()
        return Standing(
            name=f"{name}-{window_s}s", limit=item.amount, window_s=window_s, left=stats.remaining,
            resets_s=max(1, math.ceil(stats.reset_time - time.time())), is_kept=is_kept,
        )  # fmt: skip


@lru_cache(maxsize=MOST_RATES)
def _items(rate: str) -> tuple[RateLimitItem, ...]:
    from limits import parse_many

    return tuple(parse_many(rate))


def fields(standings: Sequence[Standing]) -> dict[str, str]:
    """The two header fields."""
    return {
        "RateLimit-Policy": ", ".join(f'"{s.name}";q={s.limit};w={s.window_s}' for s in standings),
        "RateLimit": ", ".join(f'"{s.name}";r={s.left};t={s.resets_s}' for s in standings),
    }


def refusal(standings: Sequence[Standing], what: str) -> RateExceeded | None:
    """The refusal of a request that is over a rate; None: it is within all."""
    over = [standing for standing in standings if not standing.is_kept]
    if not over:
        return None
    worst = max(over, key=lambda standing: standing.resets_s)
    return RateExceeded(
        f"{what}: {worst.limit} requests in {worst.window_s} s are allowed ({worst.name})",
        limit=f"{worst.limit} in {worst.window_s} s", actual=f"{worst.limit - worst.left} and this",
        headers={**fields(standings), "Retry-After": str(worst.resets_s)},
    )  # fmt: skip


class RateMiddleware:
    """Answers 429 to who sends more than the rates of key and project allow, and says what is left.

    Who needs no key is alone with the server, and not counted.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings, rates: Rates) -> None:
        self.app = app
        self._rates = rates
        self._of_key = settings.key_rate
        self._of_project = settings.project_rate

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        caller = None if scope["type"] != "http" else scope["state"]["caller"]
        standings = [] if caller is None or caller.key_id is None else await self._counted(caller)
        if not standings:
            await self.app(scope, receive, send)
            return
        refused = refusal(standings, "too many requests")
        if refused is not None:
            response = problem_response(Request(scope), refused.to_problem(), refused.headers)
            await response(scope, receive, send)
            return
        told = fields(standings)

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(told)
            await send(message)

        await self.app(scope, receive, telling)

    async def _counted(self, caller: Caller) -> list[Standing]:
        standings: list[Standing] = []
        key_rate = self._of_key if caller.rate is None else caller.rate
        project_rate = self._of_project if caller.project_rate is None else caller.project_rate
        if key_rate:
            standings += await self._rates.hit("key", key_rate, str(caller.key_id))
        # A key that is over its own rate takes nothing from the others of its project.
        if project_rate and all(standing.is_kept for standing in standings):
            standings += await self._rates.hit("project", project_rate, caller.project)
        return standings

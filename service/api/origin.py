"""Who may speak to the server: its own names, and no web page of somebody else.

A server on loopback trusts whoever reaches it, and a browser on the same machine reaches it for
every page it shows; one that has logged in sends its session with what a page makes it send.  A
page that has its own name resolve to 127.0.0.1 (DNS rebinding) is told by `Host`; one that posts
across origins is told by `Origin` and `Sec-Fetch-Site`, which browsers send and pages cannot
change.  Programs send neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.problems import problem_response
from service.errors import NotAllowed
from service.hosts import host_name, is_loopback

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITES = frozenset({"same-origin", "none"})
"""`none` is the user's own doing: an address typed in."""
_SHOWN = 200


class OriginMiddleware:
    """Answers 403 to a foreign `Host`, and to a foreign page's request that changes something."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        """Accept loopback and `names` (host names or addresses, without ports)."""
        self.app = app
        self.names = frozenset(host_name(f"[{n}]" if n.count(":") > 1 else n) for n in names if n)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(Request(scope))) is not None:
            response = problem_response(Request(scope), refusal.to_problem(), refusal.headers)
            await response(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _refusal(self, request: Request) -> NotAllowed | None:
        authority = request.headers.get("host", "")
        name = host_name(authority)
        if not is_loopback(name) and name not in self.names:
            return _not_allowed("Host", authority, "this server does not answer to that name")
        if request.method in SAFE_METHODS:
            return None
        origin = request.headers.get("origin")
        if origin is not None and _authority_of(origin) != authority.strip().lower():
            return _not_allowed("Origin", origin, "a page of another site may not change anything")
        site = request.headers.get("sec-fetch-site", "none")
        if site.lower() not in OWN_SITES:
            return _not_allowed(
                "Sec-Fetch-Site", site, "a page of another site may not change anything"
            )
        return None


def _authority_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _not_allowed(header: str, actual: str, message: str) -> NotAllowed:
    return NotAllowed(
        f"{message} ({header}: {actual[:_SHOWN]})",
        pointer=f"header:{header}",
        actual=actual[:_SHOWN],
        # What follows is the body of a request that nobody reads.
        headers={"Connection": "close"},
    )

"""Who sends a request: the project of the key in `Authorization`, and what the key allows.

Decided before a body is read and before a route is looked for, so that no route can forget it.
What is open to everybody says nothing about anybody's work.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import Annotated
from urllib.parse import quote

from anyio import to_thread
from fastapi import Depends, Request
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from service.api.problems import problem_response
from service.api.rates import Rates, refusal
from service.api.sessions import Signer, is_of_own_page, session_of
from service.api.tokens import Tokens, is_token
from service.errors import KeyNeeded, NotAllowed, ScopeMissing, ServiceError, Unavailable
from service.jobs.keys import by_prefix, limits_of, recognised
from service.keys import OPERATOR, Caller, Scope, digest_of
from service.log import get_logger
from service.store.records import KeyRecord, ProjectLimits
from service.store.session import Database

OPEN = frozenset(
    {"/healthz", "/v1/healthz", "/readyz", "/v1/readyz", "/v1/version", "/openapi.json", "/docs"}
)
"""Paths that need no key."""
OPEN_BELOW = ("/v1/errors", "/docs/guide")
"""So do these, and all below them."""
OPEN_PAGES = ("/ui/static/", "/ui/shared/")
"""Below them nobody needs a key either: files of pages, and links that carry their own proof."""
ENTRANCE = frozenset({"/", "/ui/login", "/ui/logout"})
"""Nor where a browser comes in and goes out."""
READING = frozenset({"GET", "HEAD", "OPTIONS"})
KEYS = frozenset({"/v1/keys", "/v1/audit"})
"""What concerns who may do what."""
BELOW_KEYS = "/v1/keys/"
BELOW_ADMIN = "/v1/limits/"
"""What is below this concerns all projects."""
ASKING = frozenset({"/v1/hardware/lint", "/ui/hardware/drawing"})
"""Paths to which a POST stores nothing."""
KNOWN_S = 5.0
"""How long a key is taken for good without asking the database: a revoked one ends so late."""
MOST_KNOWN = 4096
Find = Callable[[Database, str], tuple[KeyRecord, ProjectLimits] | None]


def scope_of(method: str, path: str) -> Scope | None:
    """What a request needs; None: nothing."""
    if path in OPEN or any(path == top or path.startswith(f"{top}/") for top in OPEN_BELOW):
        return None
    if path in ENTRANCE or path.startswith(OPEN_PAGES):
        return None
    if path in {"/metrics", "/v1/metrics"}:
        return Scope.METRICS
    if path in KEYS or path.startswith(BELOW_KEYS):
        return Scope.KEYS
    if path.startswith(BELOW_ADMIN):
        return Scope.ADMIN
    return Scope.READ if method in READING or path in ASKING else Scope.WRITE


class KeyRing:
    """Keys that were recognised a moment ago, so that not every request asks the database."""

    def __init__(
        self, database: Database, rates: Rates | None, guess_rate: str, tokens: Tokens
    ) -> None:
        self._database = database
        self._tokens = tokens
        self._rates = rates
        self._guess_rate = guess_rate
        self._known: OrderedDict[str, tuple[float, Caller]] = OrderedDict()

    async def caller(self, text: str, address: str) -> Caller:
        """Who has this key; `address` is where it came from.

        Raises:
            KeyNeeded: it is no key, or one that has ended.
            RateExceeded: too many that are none came from there.  A key that was good lately is
                looked at all the same: behind a proxy all have one address.
        """
        digest = digest_of(text)
        until, known = self._known.get(digest, (0.0, None))
        if known is not None and time.monotonic() < until:
            return known
        if known is None:
            await self._may_guess(address, is_wrong=False)
        try:
            caller, lasts_s = await (self._bearer(text) if is_token(text) else self._holder(text))
        except KeyNeeded:
            self._known.pop(digest, None)
            await self._may_guess(address, is_wrong=True)
            raise
        self._remember(digest, caller, lasts_s)
        return caller

    async def in_session(self, prefix: str) -> Caller:
        """Who has the key with this prefix, as a session proves: nothing is guessed.

        Raises:
            KeyNeeded: there is none, or it has ended.
        """
        name = f"session {prefix}"
        until, known = self._known.get(name, (0.0, None))
        if known is not None and time.monotonic() < until:
            return known
        self._known.pop(name, None)
        caller, lasts_s = await self._holder(prefix, by_prefix)
        self._remember(name, caller, lasts_s)
        return caller

    def _remember(self, name: str, caller: Caller, lasts_s: float) -> None:
        self._known[name] = time.monotonic() + min(KNOWN_S, lasts_s), caller
        self._known.move_to_end(name)
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    async def _holder(self, text: str, find: Find | None = None) -> tuple[Caller, float]:
        """Who has this key."""
        found = await to_thread.run_sync(find or recognised, self._database, text)
        if found is None or not found[0].is_live:
            raise _refused(None if found is None else found[0])
        key, limits = found
        scopes = frozenset(key.scopes)
        return Caller(key.project, scopes, key.id, key.name, key.rate, limits.rate), KNOWN_S

    async def _bearer(self, text: str) -> tuple[Caller, float]:
        """Who has this token of a CI system, and how long it is good.  All with its subject are
        counted together, and have one name in the audit log."""
        bearer = await self._tokens.bearer(text)
        limits = await to_thread.run_sync(limits_of, self._database, bearer.project)
        caller = Caller(
            bearer.project, bearer.scopes, f"ci:{bearer.subject}",
            f"{bearer.issuer} {bearer.subject}", None, limits.rate,
        )  # fmt: skip
        return caller, max(0.0, bearer.expires - time.time())

    async def _may_guess(self, address: str, *, is_wrong: bool) -> None:
        """Count a wrong key; before one is looked at, refuse an address that has sent many."""
        if self._rates is None or not self._guess_rate:
            return
        ask = self._rates.hit if is_wrong else self._rates.look
        standings = await ask("guess", self._guess_rate, _network(address))
        refused = None if is_wrong else refusal(standings, "too many wrong keys from this address")
        if refused is not None:
            raise refused


class ScopeMiddleware:
    """Answers 403 without the scope that a request needs.

    Apart from `KeyMiddleware`, so that what stands between the two sees who is refused.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            needed = scope_of(scope["method"], scope["path"])
            caller = scope["state"]["caller"]
            if needed is not None and not caller.may(needed):
                error = ScopeMissing(
                    f"{scope['method']} {scope['path']} needs the scope {needed!s}",
                    pointer="header:Authorization", limit=str(needed),
                    actual=", ".join(sorted(caller.scopes)) or "none",
                    headers={"Connection": "close"},
                )  # fmt: skip
                response = problem_response(Request(scope), error.to_problem(), error.headers)
                await response(scope, receive, send)
                return
        await self.app(scope, receive, send)


class KeyMiddleware:
    """Answers 401 without a key that is good."""

    def __init__(self, app: ASGIApp, *, ring: KeyRing, signer: Signer, needs_key: bool) -> None:
        self.app = app
        self._ring = ring
        self._signer = signer
        self._needs_key = needs_key

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        try:
            caller = await self._caller(request)
        except ServiceError as error:
            response: Response = problem_response(request, error.to_problem(), error.headers)
            if isinstance(error, KeyNeeded) and _is_opened_page(request):
                response = RedirectResponse(f"/ui/login?next={quote(_place(request))}", 303)
            await response(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        await self.app(scope, receive, send)

    async def _caller(self, request: Request) -> Caller:
        needed = scope_of(request.method, request.url.path)
        if needed is None:
            return OPERATOR
        try:
            caller = await self._shown(request)
        except (OperationalError, InterfaceError, PoolTimeout) as error:
            get_logger().warning("database unavailable", error=str(error))
            raise Unavailable("the database cannot tell whose key this is right now") from error
        except KeyNeeded as error:
            error.headers |= _CHALLENGE
            raise
        if caller is None and self._needs_key:
            raise KeyNeeded("this server answers to who sends an API key", headers=_CHALLENGE)
        return caller or OPERATOR

    async def _shown(self, request: Request) -> Caller | None:
        """Who has the key that the request brings, or that its session began with."""
        given = request.headers.get("authorization")
        if given is None:
            return await self._in_session(request)
        scheme, _, text = given.partition(" ")
        if scheme.lower() != "bearer":
            # What was sent is not echoed: it may be a key without the word in front.
            raise KeyNeeded("an API key is sent as a Bearer token")
        return await self._ring.caller(text.strip(), address_of(request))

    async def _in_session(self, request: Request) -> Caller | None:
        """Who logged in; None: nobody, or with a key that has ended.

        Raises:
            NotAllowed: nothing says that a page of ours sends what changes something.
        """
        prefix = session_of(self._signer, request)
        if prefix is None:
            return None
        try:
            caller = await self._ring.in_session(prefix)
        except KeyNeeded:
            return None
        if request.method not in READING and not is_of_own_page(request):
            raise NotAllowed(
                "a session changes something only from a page of this server",
                pointer="header:Origin", headers={"Connection": "close"},
            )  # fmt: skip
        return caller


def address_of(request: Request) -> str:
    """Where a request came from; empty for a socket of the file system."""
    return "" if request.client is None else request.client.host


def _is_opened_page(request: Request) -> bool:
    """Whether somebody opens a page, who can be asked for a key, and no script asks for a piece."""
    is_page = request.url.path == "/ui" or request.url.path.startswith("/ui/")
    is_html = "text/html" in request.headers.get("accept", "")
    return is_page and is_html and request.method == "GET"


def _place(request: Request) -> str:
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="tilewright"', "Connection": "close"}


def _network(address: str) -> str:
    """What guesses are counted by: of IPv6 the /64, which is what one host usually has."""
    try:
        given = ip_address(address)
    except ValueError:  # a socket of the file system has none
        return address
    return str(ip_network((given, 64), strict=False)) if given.version == 6 else address


def _refused(found: KeyRecord | None) -> KeyNeeded:
    """Whoever has the secret may know what became of the key; nobody else learns that it was."""
    if found is None:
        return KeyNeeded("this is no key of this server")
    what = "was revoked" if found.revoked is not None else "has expired"
    return KeyNeeded(f"the key {found.name!r} ({found.id}) {what}")


async def caller_of(request: Request) -> Caller:
    """Who sends the request."""
    caller = request.state.caller
    assert isinstance(caller, Caller)
    return caller


Sender = Annotated[Caller, Depends(caller_of)]


async def project_of(caller: Sender) -> str:
    """The project whose things the request is about."""
    return caller.project


Project = Annotated[str, Depends(project_of)]

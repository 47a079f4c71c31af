"""Tokens of trusted CI systems: verified against keys that their issuers publish.

Of a token nothing is believed before its signature is verified but which of the configured issuers
to ask: no address in a token, nor one on another host in an issuer's description, is ever fetched.

Keys are fetched when they are first needed, once an hour, and for a token that names a new one, but
then at most twice a minute, whatever comes: floods of invented key names do not reach the issuer.
An issuer that does not answer is believed by the keys that it gave last, for a day.

Source: OpenID Connect Discovery 1.0, sections 4.1 and 4.3; RFC 8725 (best current practices).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from service.errors import KeyNeeded, Unavailable
from service.keys import Scope
from service.log import get_logger
from service.trust import Issuer

if TYPE_CHECKING:
    import jwt

MAX_TOKEN_CHARS = 8192
"""Longer ones are refused unread; those of GitHub and GitLab have about 2000."""
MAX_NAME_CHARS = 200
SKEW_S = 60.0
"""How far clocks of issuer and server may differ."""
FRESH_S = 3600.0
REFETCH_S = 30.0
STALE_S = 86400.0
FETCH_S = 5.0
"""How long an issuer may take to answer."""
MAX_BODY_BYTES = 1 << 18
"""Of a description or a set of keys."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """Whose token it is, and what its rule gives."""

    project: str
    scopes: frozenset[Scope]
    subject: str
    issuer: str
    expires: float
    """In seconds since the epoch, the difference of clocks included."""


class TokenRefused(KeyNeeded):
    """A token that is not good."""


def is_token(text: str) -> bool:
    """Whether a text has the form of a signed token: three parts.  Keys have two."""
    return text.count(".") == 2


class Tokens:
    """Verifies tokens of the configured issuers."""

    def __init__(self, issuers: tuple[Issuer, ...]) -> None:
        self._issuers = {issuer.issuer: _Keys(issuer) for issuer in issuers}

    async def bearer(self, text: str) -> Bearer:
        """Who has this token.

        Raises:
            TokenRefused: it is not good.  What is wrong is told once its signature is verified.
            Unavailable: its issuer's keys cannot be had.
        """
        import jwt

        name, key_id = _named(text)
        keys = self._issuers.get(name)
        if keys is None:
            raise TokenRefused("this is neither a key of this server nor a token that it trusts")
        issuer = keys.issuer
        key = await keys.named(key_id)
        try:
            claims = jwt.PyJWT(options={"enforce_minimum_key_length": True}).decode(
                text, key, algorithms=list(issuer.algorithms), issuer=issuer.issuer,
                audience=issuer.audience, leeway=SKEW_S,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )  # fmt: skip
        except (jwt.PyJWTError, ValueError, TypeError, ArithmeticError) as error:
            get_logger().info("token refused", issuer=issuer.issuer, reason=repr(error)[:200])
            raise TokenRefused(_told(error)) from error
        rule = issuer.rule_for(claims)
        if rule is None:
            get_logger().info("token refused", issuer=issuer.issuer, reason="no rule holds")
            raise TokenRefused(
                f"no rule of this server holds for the token of {claims['sub'][:MAX_NAME_CHARS]}",
                remedy="Whoever runs the server adds one to TILEWRIGHT_TRUSTED_ISSUERS.",
            )
        return Bearer(
            rule.project, frozenset(rule.scopes), claims["sub"], issuer.issuer,
            float(claims["exp"]) + SKEW_S,
        )  # fmt: skip


def _named(text: str) -> tuple[str, str]:
    """The issuer and the key that a token names; believed for nothing but whom to ask."""
    import jwt

    refused = TokenRefused("this is no token that can be read")
    if len(text) > MAX_TOKEN_CHARS:
        raise TokenRefused(
            f"the token has {len(text)} characters; the limit is {MAX_TOKEN_CHARS}",
            limit=MAX_TOKEN_CHARS, actual=len(text),
        )  # fmt: skip
    try:
        seen = jwt.decode_complete(text, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise refused from error
    issuer, key_id = seen["payload"].get("iss"), seen["header"].get("kid")
    if not isinstance(issuer, str) or not isinstance(key_id, str):
        raise refused
    return issuer, key_id


def _told(error: Exception) -> str:
    """What the holder of a token may know; all of these but the last were signed by the issuer."""
    import jwt

    match error:
        case jwt.ExpiredSignatureError():
            return "the token has expired"
        case jwt.ImmatureSignatureError():
            return "the token is not valid yet"
        case jwt.InvalidAudienceError():
            return "the token is meant for another audience than this server"
        case jwt.MissingRequiredClaimError():
            return f"the token lacks the claim {error.claim}"
        case _:
            return "the token is not signed by its issuer in a way that this server takes"


class _Keys:
    """The keys of one issuer."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._fetched = -STALE_S
        self._asked = -STALE_S
        self._lock = asyncio.Lock()

    async def named(self, key_id: str) -> jwt.PyJWK:
        """The key of this name.

        Raises:
            TokenRefused: the issuer has none.
            Unavailable: it does not say.
        """
        if not self._has(key_id, FRESH_S):
            async with self._lock:  # those who waited find it done
                if not self._has(key_id, FRESH_S) and self._age(self._asked) >= REFETCH_S:
                    self._asked = time.monotonic()
                    await self._fetch()
        if self._has(key_id, STALE_S):
            return self._keys[key_id]
        if self._age(self._fetched) >= STALE_S:
            raise Unavailable(f"the keys of {self.issuer.issuer} cannot be had right now")
        raise TokenRefused("the token is signed by a key that its issuer does not have")

    def _has(self, key_id: str, age_s: float) -> bool:
        return key_id in self._keys and self._age(self._fetched) < age_s

    @staticmethod
    def _age(moment: float) -> float:
        return time.monotonic() - moment

    async def _fetch(self) -> None:
        import httpx

        try:
            # No redirects: they would lead to where nobody was trusted.
            async with httpx.AsyncClient(timeout=FETCH_S, follow_redirects=False) as http:
                uri = self.issuer.jwks_uri or await self._described(http)
                found = _usable(await _json(http, uri))
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError) as error:
            get_logger().warning(
                "keys of an issuer cannot be fetched", issuer=self.issuer.issuer,
                reason=repr(error)[:300],
            )  # fmt: skip
            return
        self._keys, self._fetched = found, time.monotonic()

    async def _described(self, http: Any) -> str:
        """Where the issuer's description says that its keys are."""
        issuer = self.issuer.issuer
        found = await _json(http, issuer.rstrip("/") + "/.well-known/openid-configuration")
        uri = found.get("jwks_uri")
        if found.get("issuer") != issuer:
            raise ValueError("the description is that of another issuer")
        if not isinstance(uri, str) or urlsplit(uri)[:2] != urlsplit(issuer)[:2]:
            raise ValueError("the keys are on another host: name it as jwks_uri if it is right")
        return uri


async def _json(http: Any, uri: str) -> Mapping[str, Any]:
    """A JSON object of bounded size and time."""
    async with asyncio.timeout(FETCH_S), http.stream("GET", uri) as response:
        if response.status_code != 200:
            raise ValueError(f"{uri} answered {response.status_code}")
        body = bytearray()
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise ValueError(f"{uri} answered more than {MAX_BODY_BYTES} bytes")
    try:
        value = json.loads(bytes(body))
    except RecursionError as error:
        raise ValueError(f"{uri} is nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError(f"{uri} is no JSON object")
    return value


def _usable(document: Mapping[str, Any]) -> Mapping[str, jwt.PyJWK]:
    """Public keys for signatures, by name.  A set may hold others; a shared secret is never one."""
    import jwt

    given = document.get("keys")
    if not isinstance(given, list):
        raise ValueError("a set of keys has a list of them")
    found: dict[str, jwt.PyJWK] = {}
    for entry in given:
        if (
            not isinstance(entry, dict)
            or entry.get("kty") not in {"RSA", "EC", "OKP"}
            or entry.get("use", "sig") != "sig"
            or not isinstance(entry.get("kid"), str)
        ):
            continue
        try:
            found[entry["kid"]] = jwt.PyJWK(entry)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
    return found

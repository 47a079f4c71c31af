"""Whose tokens a server takes beside its own keys: those of CI systems, by OpenID Connect.

An issuer is trusted for what its rules say and for nothing else: a token has to be meant for this
server (audience), and one rule has to hold for its claims, which gives it a project and scopes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from service.hosts import is_loopback
from service.keys import PROJECT, Scope

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
"""Signatures with a private key that only the issuer has.  `none` and the HS family are no choice:
their verifier could sign."""
Claim = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class Rule(BaseModel):
    """What a token may do whose claims are these."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    claims: dict[Claim, Claim] = Field(min_length=1)
    """Name and value; `*` stands for any characters, `/` included.  All must hold."""
    project: Annotated[str, StringConstraints(pattern=f"^{PROJECT.pattern}$", max_length=63)]
    scopes: tuple[Scope, ...] = (Scope.READ, Scope.WRITE)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        for scope in (Scope.ADMIN, Scope.KEYS):
            if scope in self.scopes:
                # A key that it made would outlast the token, and whatever rule is taken away.
                raise ValueError(f"a token cannot have the scope {scope!s}")
        if not self.scopes:
            raise ValueError("a rule without scopes allows nothing")
        if all(not value.strip("*") for value in self.claims.values()):
            raise ValueError("a rule has to name a value: an issuer signs for everybody")
        return self

    def holds(self, claims: Mapping[str, Any]) -> bool:
        """Whether a token with these claims is meant; lists and objects are like nothing."""
        return all(_is_like(pattern, claims.get(name)) for name, pattern in self.claims.items())


class Issuer(BaseModel):
    """A CI system whose tokens are taken."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: Annotated[str, StringConstraints(max_length=1000)]
    """As its tokens say it: `https://token.actions.githubusercontent.com`, `https://gitlab.com`."""
    audience: Annotated[str, StringConstraints(min_length=1, max_length=1000)]
    """What tokens for this server are meant for: its address, as jobs ask for it."""
    rules: tuple[Rule, ...] = Field(min_length=1)
    """The first that holds counts."""
    jwks_uri: Annotated[str, StringConstraints(max_length=1000)] | None = None
    """Where its keys are; left out, where its description says, on its own host."""
    algorithms: tuple[Algorithm, ...] = Field(default=("RS256", "ES256"), min_length=1)
    """Signatures that are taken."""

    @model_validator(mode="after")
    def _cannot_be_overheard(self) -> Self:
        for url in (self.issuer, self.jwks_uri):
            if url is None:
                continue
            parts = urlsplit(url)
            if parts.scheme != "https" and not (
                parts.scheme == "http" and is_loopback(parts.hostname or "")
            ):
                raise ValueError(f"{url}: keys are fetched by https, on loopback also by http")
            if not parts.hostname or parts.username or parts.query or parts.fragment:
                raise ValueError(f"{url} is no address of an issuer")
        return self

    def rule_for(self, claims: Mapping[str, Any]) -> Rule | None:
        """The first rule that holds for these claims."""
        return next((rule for rule in self.rules if rule.holds(claims)), None)


def _is_like(pattern: str, value: object) -> bool:
    if isinstance(value, bool):
        value = "true" if value else "false"
    if isinstance(value, int):
        value = str(value)
    if not isinstance(value, str):
        return False
    first, *middle = pattern.split("*")
    if not middle:
        return value == pattern
    last = middle.pop()
    end = len(value) - len(last)
    if end < len(first) or not (value.startswith(first) and value.endswith(last)):
        return False
    # Each part at its first place behind the one before: one walk, whatever the value.
    at = len(first)
    for part in middle:
        found = value.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True

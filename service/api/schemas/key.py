"""API keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from service.api.schemas.base import AnswerModel, RequestModel
from service.keys import PROJECT, RATE, SCOPES_OF, Role, Scope, role_of
from service.store.records import KeyRecord

MOST_DAYS = 3660
RateText = Annotated[str, StringConstraints(pattern=f"^{RATE.pattern}$", max_length=100)]
"""`20/second`, `600/minute;10000/day`: all must hold."""


class KeyRequest(RequestModel):
    """A key to be made."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    """For whom or what: shown in lists and in refusals."""
    scopes: (
        Annotated[
            list[Annotated[Scope, Field(strict=False)]],
            Field(min_length=1, max_length=len(Scope)),
        ]
        | None
    ) = None
    """What it allows; none includes another.  Where there is a role, left out."""
    role: Annotated[Role, Field(strict=False)] | None = None
    """A set of scopes by its name, in their place."""
    project: (
        Annotated[str, StringConstraints(pattern=f"^{PROJECT.pattern}$", max_length=63)] | None
    ) = None
    """Whose things it reaches; the caller's own where it is left out."""
    days: Annotated[int, Field(ge=1, le=MOST_DAYS)] | None = None
    """How long it is good; for ever where it is left out."""
    rate: RateText | None = None
    """Its rate of requests, in place of the one that the server's settings give every key."""

    @model_validator(mode="after")
    def _says_what_it_allows(self) -> Self:
        if (self.scopes is None) == (self.role is None):
            raise ValueError("a key has either scopes or a role")
        return self

    @property
    def allowed(self) -> Sequence[Scope]:
        """The scopes, whichever way they were said."""
        return self.scopes or sorted(SCOPES_OF[self.role or Role.READER])


class RoleRequest(RequestModel):
    """What a key is to be allowed from now on."""

    role: Annotated[Role, Field(strict=False)]
    """The role that it has then, whatever it was allowed before."""


class KeyAnswer(AnswerModel):
    """A key without its secret; times are seconds since the epoch."""

    id: str
    """Revoke it by this."""
    prefix: str
    """What its text begins with, so that one can be found again in a configuration."""
    name: str
    """For whom or what it is."""
    project: str
    """Whose things it reaches."""
    scopes: list[Scope]
    """What it allows."""
    role: Role | None
    """The role that has just these scopes; null: none has."""
    created: float
    """When it was made."""
    expires: float | None
    """When it ends; null: never."""
    revoked: float | None
    """When it was revoked; null: it was not."""
    last_used: float | None
    """To the minute."""
    rate: str | None
    """Its own rate of requests; null: the one of the server's settings."""
    live: bool
    """Neither revoked nor past its end."""

    @classmethod
    def from_record(cls, record: KeyRecord) -> Self:
        return cls(
            id=record.id, prefix=f"tw_{record.prefix}", name=record.name, project=record.project,
            scopes=list(record.scopes), role=role_of(record.scopes), created=record.created,
            expires=record.expires,
            revoked=record.revoked, last_used=record.last_used, rate=record.rate,
            live=record.is_live,
        )  # fmt: skip


class NewKeyAnswer(KeyAnswer):
    """A key that was made now."""

    key: str
    """Its text, which is told here and never again."""


class KeyList(AnswerModel):
    """All keys that whoever asks may know of."""

    items: list[KeyAnswer]
    """The keys, by project and age."""

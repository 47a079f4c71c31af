"""Query parameters that a route does not have are refused: a misspelt filter filters nothing."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from service.errors import Malformed
from worker.compiler.errors import Detail


def _named(dependant: Dependant) -> Iterator[str]:
    """Query parameters of a route's function, and of what it depends on."""
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _named(inner)


async def no_unknown_parameters(request: Request) -> None:
    """Read nothing but names.

    Raises:
        Malformed: a parameter that the route has not; those that it has are listed.
    """
    if not request.query_params:
        return
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = frozenset(_named(route.dependant))
    for name in request.query_params:
        if name not in known:
            raise Malformed(
                f"{request.method} {route.path} has no parameter {name[:80]!r}",
                pointer=f"query:{name[:80]}",
                limit=list[Detail](sorted(known)),
                actual=name[:80],
            )

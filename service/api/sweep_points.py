"""The machines of a sweep: listed ones, and those that a base and its ranges give.

Every document is read and changed by the readers of specs, never here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from anyio import to_thread

from service.api.deps import ApiState
from service.api.payloads import PayloadRefused
from service.api.schemas.sweep import ExploreRequest, SweepRequest
from service.api.specs import Document, named_spec
from service.errors import Malformed, NotFound
from service.jobs import query
from service.jobs.exploring import check_range
from service.jobs.submit import NewSpec
from service.jobs.sweeps import NewExplore, NewPoint, check_size
from worker.compiler.errors import FaultPlace, SpecError

AT_ONCE = 200
"""Machines of one question to a reader: each takes it some four milliseconds."""


async def sweep_points(
    state: ApiState, project: str, body: SweepRequest
) -> tuple[tuple[NewPoint, ...], tuple[str, ...]]:
    """The machines that a request names, and the names of what is varied.

    Raises:
        PayloadRefused, SpecError, NotFound: a spec is refused or unknown.
        PayloadRefused: TW-OPT-001, a field is.
        Malformed, TooLarge: there are none, or they make too many items.
        Unavailable: no process can read them now.
    """
    models = len(set(body.models))
    if (body.base is None) != (not body.vary):
        missing = "vary" if body.base is not None else "base"
        raise Malformed(
            f"`base` and `vary` come together; there is no `{missing}`", pointer=f"/{missing}",
            remedy="Machines that are not varied stand in `hardware`.",
        )  # fmt: skip
    found: list[NewPoint] = []
    fields: tuple[str, ...] = ()
    for at, given in enumerate(body.hardware):
        found += (await _points(state, project, given, (), models, f"/hardware/{at}"))[0]
    if body.base is not None:
        check_size(models, len(found) + 1, state.settings)
        vary = tuple(body.vary)
        varied, fields = await _points(state, project, body.base, vary, models, "/base")
        found += varied
    check_size(models, len(found), state.settings)
    return tuple(found), fields


async def sweep_range(
    state: ApiState, project: str, body: SweepRequest, explore: ExploreRequest
) -> tuple[NewExplore, tuple[str, ...]]:
    """The range of machines that a request wants to have estimated, and the names of what is
    varied.

    Raises: as `sweep_points`; TW-OPT-001 too where no estimate depends on a field.
    """
    if body.base is None or not body.vary or body.hardware:
        missing = "base" if body.base is None else "vary"
        where = "hardware" if body.base is not None and body.vary else missing
        raise Malformed(
            "what is explored are the machines of `base` and `vary`, without `hardware`",
            pointer=f"/{where}", remedy="Leave `explore` out, and all machines are compiled.",
        )  # fmt: skip
    named, document = await _document(state, project, body.base, "/base")
    question = {"document": document, "vary": body.vary}
    answer = await _asked(state, "span", question)
    models = len(set(body.models))
    check_range(models, answer["total"], explore.winners, state.settings)
    costs = tuple(dict.fromkeys(map(str, explore.costs)))
    new = NewExplore(
        named, answer["name"], tuple(body.vary), answer["total"], costs, explore.winners
    )
    return new, tuple(answer["fields"])


async def _document(
    state: ApiState, project: str, given: str | Document, pointer: str
) -> tuple[str | NewSpec, Mapping[str, Any]]:
    """A machine that is named, and its document."""
    named = await _named(state, given, pointer)
    if not isinstance(named, str):
        return named, named.document
    try:
        record = await to_thread.run_sync(query.get_hardware, state.database, named, project)
    except NotFound as unknown:
        unknown.pointer = pointer
        raise
    return named, record.document


async def _points(
    state: ApiState, project: str, given: str | Document, vary: tuple[str, ...], models: int,
    pointer: str,
) -> tuple[list[NewPoint], tuple[str, ...]]:  # fmt: skip
    named, document = await _document(state, project, given, pointer)
    found: list[NewPoint] = []
    while True:
        question = {"document": document, "vary": vary, "first": len(found), "count": AT_ONCE}
        answer = await _asked(state, "points", question)
        check_size(models, answer["total"], state.settings)
        if not vary:  # as it is stored, or sent: the reader does not change it
            (only,) = answer["points"]
            return [NewPoint(named, only["name"], (), only["on_chip_bytes"])], ()
        found += map(_point, answer["points"])
        if len(found) >= answer["total"]:
            return found, tuple(answer["fields"])


async def _named(state: ApiState, given: str | Document, pointer: str) -> str | NewSpec:
    """As `named_spec`, with places of refusals where `pointer` is in the request."""
    try:
        return await named_spec(state, given)
    except SpecError as refusal:
        refusal.place = FaultPlace(pointer=pointer)
        raise
    except Malformed as refusal:
        refusal.pointer = pointer
        raise
    except PayloadRefused as refusal:
        found = refusal.document
        inside = [{**row, "pointer": pointer + (row["pointer"] or "")} for row in found["errors"]]
        place = pointer + (found["pointer"] or "")
        raise PayloadRefused({**found, "pointer": place, "errors": inside}) from refusal


async def _asked(state: ApiState, what: str, question: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return await state.specs.ask(what, json.dumps(question).encode())
    except PayloadRefused as refusal:
        if refusal.document.get("code") == "TW-OPT-001":
            place = refusal.document["pointer"] or "/vary"
            raise PayloadRefused({**refusal.document, "pointer": place}) from refusal
        raise


def _point(point: dict[str, Any]) -> NewPoint:
    values = tuple(point["values"])
    if "error" in point:
        return NewPoint(None, point["name"], values, None, point["error"])
    spec = NewSpec(point["document"], point["machine_digest"], point["name"])
    return NewPoint(spec, point["name"], values, point["on_chip_bytes"])

"""Hardware specs at the API: foreign ones are read apart, presets here; jobs name either.

A spec that the machine schema refuses is a 422 with a JSON pointer per finding, before any job
exists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import cast

from service.api.deps import ApiState
from service.errors import Malformed
from service.jobs import query, submit
from service.jobs.submit import NewSpec
from worker.compiler.errors import Detail, SpecError
from worker.compiler.machine import (
    canonical_document,
    digest,
    load_machine,
    preset_document,
    preset_names,
)

Document = Mapping[str, Detail]


async def read_spec(state: ApiState, text: bytes) -> NewSpec:
    """Read and validate a spec in YAML or JSON, in a process of its own.

    Raises:
        PayloadRefused, SpecError: the spec is refused.
        Unavailable: no process can read it now.
    """
    found = await state.specs.read(text)
    return NewSpec(found["document"], found["machine_digest"], found["name"])


async def named_spec(state: ApiState, given: str | Document) -> str | NewSpec:
    """What a job names: the id of a stored spec, or a preset or a whole document to be stored.

    Raises:
        SpecError, PayloadRefused: unknown preset, or the document is refused.
        Malformed: the text is empty.
    """
    if isinstance(given, str):
        return _named(given)
    name = given.get("preset")
    if set(given) == {"preset"} and isinstance(name, str):
        return preset_spec(name)
    try:
        text = json.dumps(given)
    except RecursionError:
        raise SpecError("TW-SPEC-004", "the spec is nested too deeply") from None
    return await read_spec(state, text.encode())


def _named(text: str) -> str | NewSpec:
    if len(text) == 64 and all(c in "0123456789abcdef" for c in text):
        return text
    if not text:
        raise Malformed("hardware is empty", pointer="/hardware")
    return preset_spec(text)


def resolve_hardware(state: ApiState, text: str, project: str) -> str:
    """Give the id of the stored spec or preset that a text names; a preset is stored.

    Raises:
        NotFound: the project has no spec of this id.
        SpecError: unknown preset.
    """
    named = _named(text)
    if isinstance(named, str):
        return query.get_hardware(state.database, named, project).id
    return submit.add_hardware(state.database, named, owner=project)[0].id


def preset_spec(name: str) -> NewSpec:
    """A shipped preset as a spec.

    Raises:
        SpecError: TW-SPEC-003 with the presets that exist.
    """
    names = preset_names()
    if name not in names:
        raise SpecError(
            "TW-SPEC-003",
            f"there is no preset {name[:100]!r}",
            pointer="/hardware",
            limit=list[Detail](names),
            actual=name[:100],
        )
    return _shipped(name)


@cache
def _shipped(name: str) -> NewSpec:
    document = preset_document(name)
    machine = load_machine(document)
    canonical = cast("Document", canonical_document(document))
    return NewSpec(canonical, digest(machine), machine.name)

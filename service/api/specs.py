"""Hardware specs at the API: parse what was sent, validate, resolve, store.

A spec that the machine schema refuses is a 422 with a JSON pointer per finding, before any job
exists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import cast

from service.api.deps import OWNER, ApiState
from service.errors import Malformed
from service.jobs import query, submit
from service.store.records import HardwareRecord
from service.store.repos import catalog
from worker.compiler.errors import Detail, SpecError
from worker.compiler.machine import (
    canonical_document,
    digest,
    load_machine,
    parse_document,
    preset_names,
)

Document = Mapping[str, Detail]
JSON_TYPES = frozenset({"application/json", ""})
YAML_TYPES = frozenset(
    {"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "text/plain"}
)


def parse_body(body: bytes) -> Document:
    """Parse a spec sent as YAML or JSON.

    Raises:
        SpecError: it cannot be parsed, or is not a mapping.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecError("TW-SPEC-004", "the spec is not UTF-8 text") from error
    return cast("Document", parse_document(text))


@lru_cache(maxsize=256)
def _validated(text: str) -> tuple[str, str, str]:
    """Validate a document given as JSON text: (canonical JSON, machine digest, name)."""
    document = json.loads(text)
    machine = load_machine(document)
    canonical = canonical_document(document)
    return json.dumps(canonical), digest(machine), machine.name


def validated(document: Document) -> tuple[dict[str, Detail], str, str]:
    """Validate a document and resolve its inheritance: (canonical document, digest, name).

    Raises:
        SpecError: with all findings.
    """
    canonical, machine_digest, name = _validated(_text(document))
    return json.loads(canonical), machine_digest, name


def _text(document: Document) -> str:
    """A document as JSON text, the key of the validation cache."""
    try:
        return json.dumps(document, sort_keys=True)
    except (TypeError, ValueError) as error:
        # YAML has values that JSON has not (dates, binary, non-text keys).
        raise SpecError("TW-SPEC-004", f"the spec holds a value JSON cannot: {error}") from error


@lru_cache(maxsize=256)
def _identity(text: str) -> str:
    """Validate a document given as JSON text and give its id."""
    return submit.hardware_id(json.loads(_validated(text)[0]))


def store_spec(state: ApiState, document: Document) -> tuple[HardwareRecord, bool]:
    """Validate and store a spec; the same machine document is stored once."""
    canonical, machine_digest, name = validated(document)
    identity = submit.hardware_id(canonical)
    with state.database.read() as session:
        known = catalog.get_hardware(session, identity)
    if known is not None:
        return known, False
    return submit.add_hardware(
        state.database, canonical, machine_digest=machine_digest, name=name, owner=OWNER
    )


def resolve_hardware(state: ApiState, given: str | Document) -> str:
    """Give the id of the spec that a job names: an id, a preset, or a whole document.

    Raises:
        NotFound: the id is unknown.
        SpecError: unknown preset, or the document is refused.
        Malformed: the text is empty.
    """
    if isinstance(given, str):
        if len(given) == 64 and all(c in "0123456789abcdef" for c in given):
            return query.get_hardware(state.database, given).id
        if not given:
            raise Malformed("hardware is empty", pointer="/hardware")
        given = {"preset": given}
    name = str(given["preset"]) if set(given) == {"preset"} else None
    identity = _identity(_text(given)) if name is None else _preset_identity(name)
    with state.database.read() as session:
        if catalog.has_hardware(session, identity):
            return identity
    return store_spec(state, given if name is None else _preset(name))[0].id


@cache
def _preset_identity(name: str) -> str:
    """The id of a shipped preset's spec."""
    return _identity(_text(_preset(name)))


def store_preset(state: ApiState, name: str) -> HardwareRecord:
    """Store a shipped preset as a spec.

    Raises:
        SpecError: TW-SPEC-003 with the presets that exist.
    """
    return store_spec(state, _preset(name))[0]


def _preset(name: str) -> Document:
    """The document of a shipped preset.

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
    from worker.compiler.machine import preset_document

    return cast("Document", preset_document(name))

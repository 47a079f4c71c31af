"""Foreign hardware specs as a standing payload: read, validated, resolved; nothing is kept.

The text of a spec may expand, nest and count as its author likes; `parse_document` bounds all that
before it builds anything, and this process bounds what it overlooks.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from math import prod
from typing import Any

from worker.compiler.errors import FaultPlace, Finding, OptionError, SpecError
from worker.compiler.machine import (
    canonical_document,
    digest,
    lint_document,
    load_machine,
    parse_document,
)
from worker.explore.area import on_chip_bytes
from worker.explore.fields import Field, choices, document_of, parse_field, values_of
from worker.sandbox import wire
from worker.sandbox.answering import failure_frame


def read(text: str) -> dict[str, Any]:
    """A spec as it is stored: `document` (inheritance resolved), `machine_digest`, `name`.

    Raises:
        SpecError: with all findings.
    """
    document = parse_document(text)
    machine = load_machine(document)
    return {
        "document": canonical_document(document),
        "machine_digest": digest(machine),
        "name": machine.name,
    }


def lint(text: str) -> dict[str, Any]:
    """All findings: `errors` would refuse the spec, `warnings` not; `machine_digest` or None.

    Raises:
        SpecError: it cannot be parsed at all.
    """
    document = parse_document(text)
    errors: tuple[Finding, ...] = ()
    machine_digest = None
    try:
        machine_digest = digest(load_machine(document))
        canonical_document(document)
    except SpecError as error:
        where = error.place.pointer
        alone = Finding(error.code, error.message, where, None, error.limit, error.actual)
        errors = error.findings or (alone,)
    refused = {(f.code, f.pointer) for f in errors}
    warnings = [f for f in lint_document(document) if (f.code, f.pointer) not in refused]
    return {
        "machine_digest": machine_digest,
        "errors": [asdict(f) for f in errors],
        "warnings": [asdict(f) for f in warnings],
    }


def points(text: str) -> dict[str, Any]:
    """Some of the machines of a range: of the spec `document` with every choice of values of the
    fields `vary`, those from number `first` on, `count` at most.

    `total` is how many there are, `fields` what is varied.  A point has its `values`, its `name`
    and either what `read` gives and `on_chip_bytes`, or `error`, a problem: it is no machine.

    Raises:
        SpecError: the spec is refused as it is.
        OptionError: TW-OPT-001, a field is; its pointer is `/vary` and which, where it is one.
    """
    asked = json.loads(text)
    given = canonical_document(asked["document"])
    load_machine(given)
    fields = [_field(text, at, given, is_simulated=True) for at, text in enumerate(asked["vary"])]
    wanted = islice(choices(fields), asked["first"], asked["first"] + asked["count"])
    return {
        "total": prod(len(field.values) for field in fields),
        "fields": [name for field in fields for name in field.names],
        "points": [_point(given, fields, choice) for choice in wanted],
    }


def span(text: str) -> dict[str, Any]:
    """How many machines a range has whose machines are estimated (`total`), and what is varied
    (`fields`): of the spec `document` with every choice of values of the fields `vary`.

    Raises:
        SpecError: the spec is refused as it is.
        OptionError: TW-OPT-001, a field is, or no estimate depends on it; as of `points`.
    """
    asked = json.loads(text)
    given = canonical_document(asked["document"])
    load_machine(given)
    fields = [_field(text, at, given, is_simulated=False) for at, text in enumerate(asked["vary"])]
    next(choices(fields))  # refuses what is varied twice, and too many
    return {
        "total": prod(len(field.values) for field in fields),
        "fields": [name for field in fields for name in field.names],
        "name": str(given["name"]),
    }


def _field(text: str, at: int, given: Mapping[str, Any], *, is_simulated: bool) -> Field:
    try:
        return parse_field(text, given, is_simulated=is_simulated)
    except OptionError as refusal:
        refusal.place = FaultPlace(pointer=f"/vary/{at}")
        raise


def _point(
    given: Mapping[str, Any], fields: Sequence[Field], choice: Sequence[int]
) -> dict[str, Any]:
    document = document_of(given, fields, choice)
    about = {"values": values_of(fields, choice), "name": str(given["name"])}
    try:
        machine = load_machine(document)
        canonical = canonical_document(document)
    except SpecError as error:
        return {**about, "error": error.to_problem()}
    return {
        **about, "document": canonical, "machine_digest": digest(machine),
        "on_chip_bytes": on_chip_bytes(machine),
    }  # fmt: skip


_ANSWERS = {"read": read, "lint": lint, "points": points, "span": span}


def reply(frame: wire.Message) -> Mapping[str, Any]:
    """The frame that answers a question."""
    try:
        try:
            text = frame.body.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SpecError("TW-SPEC-004", "the spec is not UTF-8 text") from error
        return {"op": "answer", "answer": _ANSWERS[frame.op](text)}
    except Exception as error:  # the task boundary: the asker hears of anything
        return failure_frame(error)


def main() -> int:
    """Answer until the asker hangs up."""
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        sock.set_inheritable(False)
        while (frame := wire.receive(sock)) is not None:
            wire.send(sock, reply(frame))
    return 0


if __name__ == "__main__":
    sys.exit(main())

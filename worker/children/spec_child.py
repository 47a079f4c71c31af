"""Foreign hardware specs as a standing payload: read, validated, resolved; nothing is kept.

The text of a spec may expand, nest and count as its author likes; `parse_document` bounds all that
before it builds anything, and this process bounds what it overlooks.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from worker.compiler.errors import Finding, SpecError
from worker.compiler.machine import (
    canonical_document,
    digest,
    lint_document,
    load_machine,
    parse_document,
)
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


_ANSWERS = {"read": read, "lint": lint}


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

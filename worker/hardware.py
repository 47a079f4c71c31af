"""From what a job says about hardware to a full spec document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.compiler.errors import Detail
from worker.compiler.machine import canonical_document


def resolve_hardware(document: Mapping[str, Detail]) -> dict[str, Any]:
    """A full spec document from a spec, or from {"preset": NAME}.

    Raises:
        SpecError: the spec or the preset's name is wrong.
    """
    preset = document.get("preset")
    if set(document) == {"preset"} and isinstance(preset, str):
        return dict(canonical_document({"inherits": preset, "name": preset}))
    return dict(canonical_document(document))

"""From what a job says about hardware to a machine."""

from __future__ import annotations

from collections.abc import Mapping

from worker.compiler.errors import Detail
from worker.compiler.machine import load_machine
from worker.compiler.machine.machine import Machine


def resolve_machine(document: Mapping[str, Detail]) -> Machine:
    """The machine of a spec document, or of {"preset": NAME}.

    Raises:
        SpecError: the spec or the preset's name is wrong; pointers are into the user's document.
    """
    preset = document.get("preset")
    if set(document) == {"preset"} and isinstance(preset, str):
        return load_machine({"inherits": preset, "name": preset})
    return load_machine(document)

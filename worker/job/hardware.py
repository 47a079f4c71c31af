"""From what a job says about hardware to a machine."""

from __future__ import annotations

from collections.abc import Mapping

from worker.compiler.errors import Detail, SpecError
from worker.compiler.machine import load_machine
from worker.compiler.machine.machine import Machine
from worker.compiler.oracles import require_oracle
from worker.compiler.vendors import STREAM, engines, serializers


def resolve_machine(document: Mapping[str, Detail]) -> Machine:
    """The machine of a spec document, or of {"preset": NAME}.

    Raises:
        SpecError: the spec or the preset's name is wrong; pointers are into the user's document.
    """
    preset = document.get("preset")
    if set(document) == {"preset"} and isinstance(preset, str):
        return load_machine({"inherits": preset, "name": preset})
    return load_machine(document)


def require_plugins(machine: Machine, document: Mapping[str, Detail]) -> None:
    """Check that what targets and instructions name is installed here, and fits.

    A spec is valid without them: it says what a chip's regions are written by, wherever that is.
    `document`: what pointers are into.

    Raises:
        SpecError: TW-PLUG-001, a package is missing; TW-PLUG-004, the engine reads other bytes.
    """
    for one in machine.engines:
        for intrinsic in one.intrinsics:
            if intrinsic.question is not None:
                require_oracle(intrinsic.question)
    for target in machine.targets:
        at = _pointer(document, target.name)
        for word, name, there in (
            ("serializer", target.serializer, serializers()),
            ("engine", target.engine, engines()),
        ):
            if name and name not in there:
                raise SpecError(
                    "TW-PLUG-001",
                    f"target {target.name} names {word} {name}, which is not installed here",
                    pointer=f"{at}/{word}",
                    limit=list(there),
                    actual=name,
                )
        if not target.engine:
            continue
        engine = engines()[target.engine]
        written = [serializers()[name] for name in (STREAM, target.serializer) if name]
        if not any(
            one.format == engine.format and one.format_version in engine.format_versions
            for one in written
        ):
            formats = [f"{one.format} {one.format_version}" for one in written]
            reads = [f"{engine.format} {version}" for version in engine.format_versions]
            raise SpecError(
                "TW-PLUG-004",
                f"engine {engine.name} reads {', '.join(reads)}; regions of target {target.name}"
                f" are written as {', '.join(formats)}",
                pointer=f"{at}/engine",
                limit=list[Detail](reads),
                actual=list[Detail](formats),
            )


def _pointer(document: Mapping[str, Detail], target: str) -> str:
    """Where the user's document has a target's capabilities."""
    rows = document.get("targets")
    if isinstance(rows, list):
        for k, row in enumerate(rows):
            if isinstance(row, dict) and row.get("name") == target:
                return f"/targets/{k}/capabilities"
    return "/capabilities"

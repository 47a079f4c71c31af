"""Checking what a bundle's schedules claim to be proven, as a payload: it is somebody else's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from worker.compiler.descriptors import named, strategies
from worker.compiler.machine.machine import Machine
from worker.compiler.package.archive import damaged, open_archive, read_member
from worker.compiler.package.bundle import DOCUMENT_LIMIT_BYTES, read_manifest
from worker.compiler.package.manifest import MACHINE_NAME, UnitOrigin
from worker.compiler.package.regenerate import read_machine
from worker.compiler.schedule.text import parse_schedule
from worker.compiler.strategies.base import Checked
from worker.sandbox.answering import answer


def certified(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Every kernel of the bundle `source`, with what came of checking its certificate.

    Raises:
        CompilerError: TW-RUN-001 for damage, and for a certificate that makes no sense.
    """
    rows = []
    with open_archive(Path(request["source"])) as archive:
        manifest = read_manifest(archive)
        data = read_member(archive, MACHINE_NAME, DOCUMENT_LIMIT_BYTES)
        machine = read_machine(data, manifest.hardware.digest)
        for origin in manifest.provenance:
            text = read_member(archive, origin.schedule, DOCUMENT_LIMIT_BYTES).decode()
            try:
                rows.append(_row(origin, text, machine))
            except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
                raise damaged(
                    f"what the bundle says of kernel {origin.kernel} is not valid: {error!r}"
                ) from error
    return {"items": rows}


def _row(origin: UnitOrigin, text: str, machine: Machine) -> dict[str, Any]:
    schedule = parse_schedule(text)
    descriptor = strategies().get(schedule.strategy)
    found: Checked | None = None
    if descriptor is not None and descriptor.check:
        target = machine.restricted(machine.target(origin.target))
        found = named(descriptor.check)(schedule, target)
    row: dict[str, Any] = {
        "kernel": origin.kernel, "onnx_nodes": list(origin.onnx_nodes),
        "strategy": schedule.strategy, "predicted_cycles": schedule.predicted_cycles,
        "certificate": None,
    }  # fmt: skip
    if found is not None:
        row["certificate"] = {
            "best": found.best, "bound": found.bound,
            "gap": found.best / found.bound - 1 if found.bound > 0 else None,
            "checked_tilings": found.tilings, "is_whole": found.is_whole,
            "least": found.least if isfinite(found.least) else None, "holds": found.holds,
        }  # fmt: skip
    return row


if __name__ == "__main__":
    sys.exit(answer(certified))

"""The program of a bundle, as estimates need it."""

from __future__ import annotations

import json
from pathlib import Path

from worker.compiler.package.archive import damaged, open_archive, read_member
from worker.compiler.package.bundle import DOCUMENT_LIMIT_BYTES, read_manifest
from worker.compiler.schedule.text import parse_schedule
from worker.explore.chips import Base, base_of


def program_in(path: Path) -> Base:
    """Kernels of a bundle, and what its report says no chip changes.

    Raises:
        CompilerError: TW-RUN-001, it is damaged.
    """
    with open_archive(path) as archive:
        manifest = read_manifest(archive)
        report = json.loads(read_member(archive, "report.json", DOCUMENT_LIMIT_BYTES))
        found = []
        for origin in manifest.provenance:
            text = read_member(archive, origin.schedule, DOCUMENT_LIMIT_BYTES).decode()
            try:
                schedule = parse_schedule(text)
            except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
                raise damaged(
                    f"what the bundle says of kernel {origin.kernel} is not valid: {error!r}"
                ) from error
            found.append(
                (origin.kernel, origin.signature, schedule.graph, schedule.strategy,
                 origin.onnx_nodes, origin.target)
            )  # fmt: skip
    return base_of(found, report)

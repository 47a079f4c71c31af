"""Exporting as a payload: the bundle is somebody else's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.compiler.export.export import Kernel, export_kernels
from worker.compiler.export.peer import Peer
from worker.compiler.package.archive import damaged, open_archive, read_member
from worker.compiler.package.bundle import DOCUMENT_LIMIT_BYTES, read_manifest
from worker.compiler.package.manifest import MACHINE_NAME
from worker.compiler.package.regenerate import read_machine
from worker.compiler.schedule.text import parse_schedule
from worker.sandbox.answering import answer


def exported(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """`files`: text by relative path; `items`: a row for every nest, exported or refused.

    Raises:
        CompilerError: TW-RUN-001 for damage, TW-EXPORT-001 where nothing has a form in the peer.
    """
    with open_archive(Path(request["source"])) as archive:
        manifest = read_manifest(archive)
        data = read_member(archive, MACHINE_NAME, DOCUMENT_LIMIT_BYTES)
        machine = read_machine(data, manifest.hardware.digest)
        texts = [
            (origin, read_member(archive, origin.schedule, DOCUMENT_LIMIT_BYTES).decode())
            for origin in manifest.provenance
        ]
    try:
        kernels = tuple(
            Kernel(origin.kernel, origin.onnx_nodes, parse_schedule(text), origin.target)
            for origin, text in texts
        )
        found = export_kernels(kernels, machine, Peer(request["peer"]))
    except (KeyError, ValueError, RecursionError) as error:
        raise damaged(f"a schedule of the bundle is not valid: {error!r}") from error
    rows: list[dict[str, Any]] = [
        {
            "kernel": each.nest.name,
            "op": each.nest.op,
            "state": "exported",
            "as": each.name,
            "reason": None,
            "message": "; ".join(each.caveats),
            "onnx_nodes": list(each.nest.nodes),
        }
        for each in found.exported
    ]
    rows += [
        {
            "kernel": refusal.name,
            "op": ", ".join(refusal.ops),
            "state": "refused",
            "as": None,
            "reason": str(refusal.reason),
            "message": refusal.message,
            "onnx_nodes": list(refusal.nodes),
        }
        for refusal in found.refused
    ]
    return {"files": dict(found.files), "items": rows}


if __name__ == "__main__":
    sys.exit(answer(exported))

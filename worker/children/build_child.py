"""Building a bundle's library as a payload: the bundle is somebody else's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from worker.compiler.package.library.build import build_into
from worker.compiler.package.library.parts import LibraryPart
from worker.compiler.package.runtime import open_bundle
from worker.sandbox.answering import answer


def built(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """`files` that were left, and what the library says of itself.

    Raises:
        CompilerError: as `open_bundle` and `build_into`.
    """
    with open_bundle(Path(request["bundle"])) as bundle:
        made = build_into(
            bundle, Path(request["out"]), Path(request["build_dir"]),
            sources_only=bool(request["sources"]),
        )  # fmt: skip
        nested = sum(bool(row.program) for row in bundle.manifest.regions)
    library = made.library
    regions = [
        {"region": k, "target": code.target, **_part(part)}
        for k, (code, part) in enumerate(zip(library.regions, library.parts[1:], strict=True))
    ]
    model = bundle.program.model
    return {
        "files": list(made.files),
        "model": library.name,
        "digest": library.digest,
        "origin": str(bundle.origin),
        "inputs": [asdict(port) for port in model.inputs],
        "outputs": [asdict(port) for port in model.outputs],
        "regions": regions,
        "regions_in_control_flow": nested,
        "needs_onnxruntime": library.parts[0].refusal,
    }


def _part(part: LibraryPart) -> dict[str, Any]:
    return {
        side: [{"name": v.name, "dtype": str(v.dtype), "shape": list(v.shape)} for v in values]
        for side, values in (("inputs", part.inputs), ("outputs", part.outputs))
    }


if __name__ == "__main__":
    sys.exit(answer(built))

"""Disassembling as a payload: the bundle, or the stream, is somebody else's."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.compiler.errors import CompilerError
from worker.compiler.package.archive import open_archive, read_member
from worker.compiler.package.bundle import DOCUMENT_LIMIT_BYTES, read_manifest
from worker.compiler.package.stream.codec import decode_stream
from worker.compiler.package.stream.text import print_region
from worker.sandbox.answering import answer


def disassembled(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """`items`: folder in the bundle, region, target and text of each stream asked for.

    Raises:
        CompilerError: TW-RUN-001 for damage, TW-CLI-001 for a region that is not there.
    """
    shown = []
    for folder, data in _streams(Path(request["source"]), request["region"]):
        code = decode_stream(data)
        text = print_region(code, request["limit"])
        shown.append({"folder": folder, "region": code.index, "target": code.target, "text": text})
    return {"items": shown}


def _streams(source: Path, region: str | None) -> list[tuple[str, bytes]]:
    """(folder in the bundle, stream) of the regions asked for."""
    if not zipfile.is_zipfile(source):
        if region is not None:
            raise CompilerError(
                "TW-CLI-001", f"{source} is no bundle: --region picks one of a bundle's"
            )
        return [("", source.read_bytes())]
    with open_archive(source) as archive:
        rows = read_manifest(archive).regions
        names = {row.stream.rpartition("/")[0]: row.stream for row in rows}
        if region is not None:
            folder = f"regions/{region}" if region.isdecimal() else region.strip("/")
            if folder not in names:
                raise CompilerError(
                    "TW-CLI-001",
                    f"{source} has no region {region}; it has {', '.join(names) or 'none'}",
                )
            names = {folder: names[folder]}
        return [
            (folder, read_member(archive, name, DOCUMENT_LIMIT_BYTES))
            for folder, name in names.items()
        ]


if __name__ == "__main__":
    sys.exit(answer(disassembled))

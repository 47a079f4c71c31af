"""`disassemble`: the instruction streams of a bundle's regions as text."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Annotated

import typer

from service.cli.failures import Failure
from service.cli.output import JsonFlag, print_json, print_text


def disassemble(
    source: Annotated[
        Path, typer.Argument(help="A *.twb bundle or one stream.bin.", metavar="BUNDLE|STREAM")
    ],
    region: Annotated[
        str | None,
        typer.Option(
            "--region",
            metavar="K",
            help="Only this region: its number, or its folder in the bundle (bodies/0/regions/1).",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help="Show only the first N instructions of each kernel.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the tables, instructions and calls of every offloaded region."""
    from worker.compiler.package.disassemble import print_region
    from worker.compiler.package.stream import decode_stream

    if not source.is_file():
        raise Failure("TW-CLI-001", f"{source}: there is no such file")
    shown = []
    for folder, data in _streams(source, region):
        code = decode_stream(data)
        text = print_region(code, limit)
        shown.append({"folder": folder, "region": code.index, "target": code.target, "text": text})
    if as_json:
        print_json({"items": shown})
        return
    for row in shown:
        heading = f"# {row['folder']}\n" if row["folder"] else ""
        print_text(f"{heading}{row['text']}")


def _streams(source: Path, region: str | None) -> list[tuple[str, bytes]]:
    """(folder in the bundle, stream) of the regions asked for."""
    from worker.compiler.package.archive import open_archive, read_member
    from worker.compiler.package.bundle import DOCUMENT_LIMIT_BYTES, read_manifest

    if not zipfile.is_zipfile(source):
        if region is not None:
            raise Failure("TW-CLI-001", f"{source} is no bundle: --region picks one of a bundle's")
        return [("", source.read_bytes())]
    with open_archive(source) as archive:
        rows = read_manifest(archive).regions
        names = {row.stream.rpartition("/")[0]: row.stream for row in rows}
        if region is not None:
            folder = f"regions/{region}" if region.isdecimal() else region.strip("/")
            if folder not in names:
                raise Failure(
                    "TW-CLI-001",
                    f"{source} has no region {region}; it has {', '.join(names) or 'none'}",
                )
            names = {folder: names[folder]}
        return [
            (folder, read_member(archive, name, DOCUMENT_LIMIT_BYTES))
            for folder, name in names.items()
        ]

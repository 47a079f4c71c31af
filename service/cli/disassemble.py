"""`disassemble`: the instruction streams of a bundle's regions as text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.asking import asked
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
    if not source.is_file():
        raise Failure("TW-CLI-001", f"{source}: there is no such file")
    path = source.resolve()
    request = {"source": str(path), "region": region, "limit": limit}
    shown: list[dict[str, Any]] = asked(
        "worker.children.disassemble_child", request, [path], "disassembly"
    )["items"]
    if as_json:
        print_json({"items": shown})
        return
    for row in shown:
        heading = f"# {row['folder']}\n" if row["folder"] else ""
        print_text(f"{heading}{row['text']}")

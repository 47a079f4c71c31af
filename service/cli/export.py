"""`export`: a bundle's kernels as another cost model's input."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.asking import asked
from service.cli.failures import Failure
from service.cli.output import JsonFlag, note, print_json, print_table
from service.cli.sources import bundle_of
from worker.compiler.export.peer import Peer


def export(
    source: Annotated[
        Path, typer.Argument(help="A *.twb bundle, or a folder with one.", metavar="BUNDLE|FOLDER")
    ],
    to: Annotated[Peer, typer.Option("--to", help="The cost model that shall read it.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for the files; must not hold others.")
    ],
    as_json: JsonFlag = False,
) -> None:
    """Write machine, operators and the mapping that really runs, for an independent cost model.

    Kernels that it cannot express are left out, each with its reason.
    """
    path = bundle_of(source).resolve()
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise Failure("TW-CLI-001", f"{output}: is there already and not empty")
    request = {"source": str(path), "peer": str(to)}
    found: dict[str, Any] = asked("worker.children.export_child", request, [path], "export")
    for name, text in found["files"].items():
        file = output / name
        if not file.resolve().is_relative_to(output.resolve()):
            raise Failure("TW-RUN-001", f"{source} asks for a file outside of {output}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    if as_json:
        print_json({"items": found["items"], "files": sorted(found["files"])})
        return
    print_table(("kernel", "op", "state", "as", "reason", "message"), found["items"])
    count = sum(row["state"] == "exported" for row in found["items"])
    note(f"{output}: {count} of {len(found['items'])} loop nests for {to}")

"""`assemble`: the text of an instruction stream back to its bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.asking import asked
from service.cli.failures import Failure
from service.cli.output import note


def assemble(
    source: Annotated[
        Path, typer.Argument(help="A region's text, as `disassemble` prints it.", metavar="TEXT")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the stream.")],
) -> None:
    """Make a stream.bin of a disassembly, with the checks that every reader makes."""
    if not source.is_file():
        raise Failure("TW-CLI-001", f"{source}: there is no such file")
    path = source.resolve()
    made = asked("worker.children.assemble_child", {"source": str(path)}, [path], "assembly")
    data = bytes.fromhex(made["stream"])
    output.write_bytes(data)
    note(f"wrote {output}: {len(data)} bytes, sha256 {made['sha256']}")

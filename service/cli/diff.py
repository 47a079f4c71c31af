"""`diff`: what differs between two runs, where, and by which cause."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.connection import DataDirOption, ServerOption, connect
from service.cli.output import JsonFlag, note, print_json, print_table, print_text
from service.cli.sources import open_source

if TYPE_CHECKING:
    from service.compare import Comparison, Run

SideArgument = Annotated[
    str,
    typer.Argument(
        help="Folder of results, bundle (*.twb), report.json, job id, SWEEP:NUMBER, or a label: its"
        " youngest job that succeeded."
    ),
]


def diff(
    base: SideArgument,
    head: SideArgument,
    whole: Annotated[
        bool, typer.Option("--all", help="Every row that differs, not only the largest ten.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, for a comment on a change.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Also write a page, for offline use.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="Also write both traces into one Perfetto file (gzipped JSON)."
        ),
    ] = None,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare two runs: figures, layers, causes, and what went in or was decided otherwise.

    The exit code is 0 whether anything differs or not.
    """
    from service.compare import compare

    if as_markdown and as_json:
        raise typer.BadParameter("--json and --markdown are two forms of one output")
    found = compare(read_side(base, server, data_dir), read_side(head, server, data_dir))
    if html is not None:
        from service.compare.page import page

        html.write_text(page(found), encoding="utf-8")
        note(f"wrote {html}")
    if trace is not None:
        from service.compare.trace import joined_trace

        sides = [_trace(text, server, data_dir) for text in (base, head)]
        trace.write_bytes(joined_trace(sides[0], sides[1], (base, head)))
        note(f"wrote {trace}")
    if as_json:
        print_json(found.as_json())
    elif as_markdown:
        from service.compare.markdown import markdown

        print_text(markdown(found, is_whole=whole))
    else:
        print_comparison(found, whole=whole)


def read_side(text: str, server: str | None, data_dir: Path | None) -> Run:
    """Read what the user named: an existing path wins over a job.

    Raises:
        InputError, ApiError: it is not there, or cannot be compared.
    """
    from service.compare import read_path

    path = Path(text)
    if path.exists() or "/" in text or path.suffix:
        return read_path(path)
    from service.compare.served import read_job

    with connect(server, data_dir) as client:
        return read_job(client, text)


def _trace(text: str, server: str | None, data_dir: Path | None) -> bytes:
    if Path(text).exists():
        with open_source(text, server, data_dir) as results:
            return results.read("trace")
    from service.compare.served import read_trace

    with connect(server, data_dir) as client:
        return read_trace(client, text)


def print_comparison(found: Comparison, *, whole: bool) -> None:
    """The headline and the tables on stdout; what was compared is chatter."""
    from service.compare.tables import lines_of_sides, tables

    for line in lines_of_sides(found):
        note(line)
    print_text(found.headline)
    for table in tables(found, is_whole=whole):
        print_text(f"\n{table.title}")
        print_table(table.columns, table.rows)
        if table.left_out:
            note(f"and {table.left_out} more; --all shows them")

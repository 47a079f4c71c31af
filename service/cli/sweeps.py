"""`sweeps`: list, look at, follow, cancel, resume and remove sweeps."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from service.cli.connection import (
    DataDirOption,
    ServerOption,
    connect,
    filters,
    remove,
    working_service,
)
from service.cli.output import (
    JsonFlag,
    moment,
    print_found,
    print_items,
    print_json,
    print_text,
)
from service.cli.sweep_following import finish, follow, show, write

app = typer.Typer(help="Sweeps of the service.", no_args_is_help=True)
SweepArgument = Annotated[str, typer.Argument(help="Sweep id.")]
OutputOption = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Folder for sweep.json, sweep.csv and sweep.html."),
]


@app.command("ls")
def ls(
    state: Annotated[str | None, typer.Option(help="Only sweeps in this state.")] = None,
    label: Annotated[str | None, typer.Option(help="Only sweeps with this label.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 20,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List sweeps, newest first."""
    query = filters(limit, state=state, label=label)
    with connect(server, data_dir) as client:
        found = list(islice(client.sweeps(**query), limit))
    columns = ("id", "state", "label", "items_succeeded", "items_ended", "items_total", "created")
    print_items(found, columns, _dated, as_json=as_json)


def _dated(row: dict[str, object]) -> dict[str, object]:
    return {**row, "created": moment(row["created"])}


@app.command("show")
def show_sweep(
    sweep: SweepArgument,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show how far a sweep is, its best items so far, and what failed."""
    with connect(server, data_dir) as client:
        print_found(client.sweep(sweep), show, as_json=as_json)


@app.command("results")
def results(
    sweep: SweepArgument,
    output: OutputOption = None,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Give the results of all items so far: into a folder, as JSON, or as a table."""
    with connect(server, data_dir) as client:
        found = client.sweep_results(sweep)
        if output is not None:
            write(client, found, output)
        if as_json:
            print_json(found)
        elif output is None:
            print_text(client.sweep_csv(sweep))


@app.command("watch")
def watch(
    sweep: SweepArgument,
    output: OutputOption = None,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Follow a sweep to its end; Ctrl-C cancels it, as in `sweep`."""
    _follow(sweep, output, server, data_dir, as_json=as_json)


@app.command("resume")
def resume(
    sweep: SweepArgument,
    output: OutputOption = None,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Let a sweep that was canceled, or failed in part, go on, and follow it."""
    _follow(sweep, output, server, data_dir, as_json=as_json, is_resumed=True)


def _follow(
    sweep: str, output: Path | None, server: str | None, data_dir: Path | None, *,
    as_json: bool, is_resumed: bool = False,
) -> None:  # fmt: skip
    with working_service(server, data_dir) as client:
        if is_resumed:
            client.resume_sweep(sweep)
        finish(client, follow(client, sweep, server, quiet=as_json), output, as_json=as_json)


@app.command("cancel")
def cancel(
    sweep: SweepArgument,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Cancel a sweep; its results stay.  Again is fine, exit 3 when it ended otherwise first."""
    with connect(server, data_dir) as client:
        print_found(client.cancel_sweep(sweep), show, as_json=as_json)


@app.command("rm")
def rm(
    sweeps: Annotated[list[str], typer.Argument(help="Sweep ids.")],
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Delete sweeps that have ended, with their jobs."""
    remove("/v1/sweeps", sweeps, server, data_dir, as_json=as_json)

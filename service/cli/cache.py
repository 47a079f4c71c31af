"""`cache`: what the compile cache holds and why something missed."""

from __future__ import annotations

import re
from itertools import islice
from typing import Annotated, Any

import typer

from service.cli.connection import DataDirOption, ServerOption, connect
from service.cli.output import (
    JsonFlag,
    note,
    print_fields,
    print_found,
    print_items,
    print_json,
    print_table,
    print_text,
)

app = typer.Typer(help="The compile cache.", no_args_is_help=True)
_DURATION = re.compile(r"(\d+)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


@app.command("stats")
def stats(
    server: ServerOption = None, data_dir: DataDirOption = None, as_json: JsonFlag = False
) -> None:
    """Print entries, bytes and hits per kind."""
    with connect(server, data_dir) as client:
        print_found(client.get("/v1/cache/stats"), _print_stats, as_json=as_json)


def _print_stats(found: dict[str, Any]) -> None:
    total = {**found, "kind": "total"}
    print_table(("kind", "entries", "size_bytes", "hits"), [*found["kinds"], total])


@app.command("ls")
def ls(
    kind: Annotated[
        str | None, typer.Option(help="schedule, program, simulation, choice, verdict or run.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200)] = 50,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List entries, last used first."""
    query: dict[str, str | int] = {"limit": limit}
    if kind:
        query["kind"] = kind
    with connect(server, data_dir) as client:
        found = list(islice(client.pages("/v1/cache/entries", query), limit))
    columns = ("digest", "kind", "size_bytes", "hits", "filled_by_job")
    print_items(found, columns, as_json=as_json)


@app.command("explain")
def explain(
    key: Annotated[str, typer.Argument(help="Digest of a cache key, or a job id.")],
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what a key is made of and who filled it; for a job, each look-up it made."""
    with connect(server, data_dir) as client:
        if key.startswith("job_"):
            print_found(client.get(f"/v1/jobs/{key}/cache"), _print_events, as_json=as_json)
            return
        print_found(client.get(f"/v1/cache/entries/{key}"), _print_entry, as_json=as_json)


def _print_events(found: dict[str, Any]) -> None:
    print_table(("outcome", "kind", "label", "digest"), found.get("entries") or [])


def _print_entry(entry: dict[str, Any]) -> None:
    print_fields(entry, ("digest", "kind", "size_bytes", "hits", "filled_by_job", "created"))
    print_text("fields:")
    for name, value in entry["fields"].items():
        print_text(f"  {name}: {value}")


@app.command("prune")
def prune(
    unused_for: Annotated[
        str, typer.Option(help="Drop what nobody used for this long, such as 90m, 12h or 30d.")
    ] = "30d",
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Delete entries that have not been used for a while."""
    match = _DURATION.fullmatch(unused_for)
    if match is None:
        raise typer.BadParameter("write a number and s, m, h or d", param_hint="--unused-for")
    seconds = int(match.group(1)) * _SECONDS[match.group(2)]
    with connect(server, data_dir) as client:
        found = client.post("/v1/cache/prune", {"unused_for_s": seconds})
    if as_json:
        print_json(found)
    else:
        note(f"dropped {found['dropped']} entries")

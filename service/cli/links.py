"""`links`: share a job's page, and end that."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from service.cli.connection import LOCAL_URL, DataDirOption, ServerOption, connect
from service.cli.output import JsonFlag, moment, note, print_found, print_items, print_text

app = typer.Typer(help="Links to pages of jobs.", no_args_is_help=True)
_COLUMNS = ("id", "job", "created", "expires", "state")


@app.command("create")
def create(
    job: Annotated[str, typer.Argument(help="Job id.")],
    days: Annotated[int, typer.Option(min=1, max=90, help="How long it is good.")] = 7,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a link to a job's page and print it: nobody can ask for it again."""
    with connect(server, data_dir) as client:
        made: dict[str, Any] = client.post(f"/v1/jobs/{job}/links?days={days}")
        place = "" if client.base_url == LOCAL_URL else client.base_url.rstrip("/")

    def show(link: dict[str, Any]) -> None:
        note(f"{link['id']}: until {moment(link['expires'])}, for whoever has it")
        print_text(f"{place}{link['path']}")

    print_found(made, show, as_json=as_json)


@app.command("ls")
def ls(
    job: Annotated[str | None, typer.Argument(help="Only links to this job.")] = None,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List links that have not ended."""
    path = "/v1/links" if job is None else f"/v1/jobs/{job}/links"
    with connect(server, data_dir) as client:
        found: dict[str, Any] = client.get(path)
    print_items(found["items"], _COLUMNS, _shown, as_json=as_json)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **row, "created": moment(row["created"]), "expires": moment(row["expires"]),
        "state": "live" if row["revoked"] is None else f"revoked {moment(row['revoked'])}",
    }  # fmt: skip


@app.command("revoke")
def revoke(
    link: Annotated[str, typer.Argument(metavar="ID", help="Id of the link, as `ls` lists it.")],
    server: ServerOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """End a link at once."""
    with connect(server, data_dir) as client:
        client.delete(f"/v1/links/{link}")
    note(f"{link} is revoked")

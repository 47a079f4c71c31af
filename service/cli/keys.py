"""`keys`: make, list and revoke API keys."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from service.cli.connection import DataDirOption, ServerOption, connect
from service.cli.output import (
    JsonFlag,
    moment,
    note,
    print_found,
    print_items,
    print_table,
    print_text,
)
from service.keys import Role, Scope

app = typer.Typer(help="API keys of the service.", no_args_is_help=True)
_PAGE = 200
"""As many rows as an answer may have."""


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="For whom or what it is.")],
    scope: Annotated[
        list[Scope] | None,
        typer.Option(help="What it allows; may be repeated (default: read and write)."),
    ] = None,
    role: Annotated[
        Role | None, typer.Option(help="What it allows, by name, in place of --scope.")
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(help="Whose models, specs, jobs and cache it reaches (default: one's own)."),
    ] = None,
    days: Annotated[
        int | None, typer.Option(min=1, max=3660, help="How long it is good (default: for ever).")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="N/WINDOW",
            help="Requests it may send, `600/minute` (default: as settings say).",
        ),
    ] = None,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a key and print it: nobody can ask for it again."""
    if scope and role:
        raise typer.BadParameter("--role says it all; leave out --scope", param_hint="--role")
    allowed = {"scopes": sorted(set(scope))} if scope else {"role": role or Role.DEVELOPER}
    body: dict[str, Any] = {
        "name": name, "project": project, "days": days, "rate": rate, **allowed,
    }  # fmt: skip
    with connect(server, data_dir) as client:
        print_found(client.post("/v1/keys", body), _print_key, as_json=as_json)


def _print_key(made: dict[str, Any]) -> None:
    note(f"{made['id']}: {', '.join(made['scopes'])} in project {made['project']}")
    print_text(made["key"])


@app.command("ls")
def ls(
    server: ServerOption = None, data_dir: DataDirOption = None, as_json: JsonFlag = False
) -> None:
    """List all keys, dead ones too."""
    with connect(server, data_dir) as client:
        found: dict[str, Any] = client.get("/v1/keys")
    columns = ("id", "prefix", "name", "project", "role", "scopes", "expires", "used", "state")
    print_items(found["items"], columns, _shown, as_json=as_json)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    state = "live" if row["live"] else "revoked" if row["revoked"] is not None else "expired"
    return {
        **row,
        "scopes": " ".join(row["scopes"]),
        "role": row["role"] or "",
        "expires": "" if row["expires"] is None else moment(row["expires"]),
        "used": "" if row["last_used"] is None else moment(row["last_used"]),
        "state": state,
    }


@app.command("role")
def set_role(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key, as `ls` lists it.")],
    role: Annotated[Role, typer.Argument(help="What it is to allow.")],
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Let a key do what a role says, no more; servers that have just seen it go on for seconds."""
    with connect(server, data_dir) as client:
        found: dict[str, Any] = client.put(f"/v1/keys/{key_id}/role", {"role": str(role)})
    print_found(found, _print_role, as_json=as_json)


def _print_role(key: dict[str, Any]) -> None:
    note(f"{key['id']}: {key['role']} ({', '.join(key['scopes'])}) in project {key['project']}")


@app.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key, as `ls` lists it.")],
    server: ServerOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """End a key; servers that have just seen it go on for some seconds."""
    with connect(server, data_dir) as client:
        client.delete(f"/v1/keys/{key_id}")
    note(f"{key_id} is revoked")


@app.command("audit")
def audit(
    project: Annotated[str | None, typer.Option(help="Only what this project's did.")] = None,
    key: Annotated[
        str | None, typer.Option(metavar="ID", help="Only what came with this key.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option(metavar="ID", help="Only what changed this job, model, key ...")
    ] = None,
    outcome: Annotated[
        str | None, typer.Option(help="Only what was done, answered, refused or failed.")
    ] = None,
    since: Annotated[
        float | None, typer.Option(metavar="S", help="Only from this time on (epoch seconds).")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many rows.")] = 50,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show who changed what, the youngest first."""
    asked = {"project": project, "key": key, "subject": subject, "outcome": outcome, "since": since}
    params: dict[str, str | int] = {
        name: str(value) for name, value in asked.items() if value is not None
    }
    rows: list[dict[str, Any]] = []
    with connect(server, data_dir) as client:
        while len(rows) < limit:
            params["limit"] = min(limit - len(rows), _PAGE)
            page: dict[str, Any] = client.get("/v1/audit", params)
            rows += page["items"]
            if page["next_cursor"] is None:
                break
            params["cursor"] = page["next_cursor"]
    columns = ("time", "project", "who", "key", "route", "subject", "outcome", "status")
    print_items(rows, columns, _timed, as_json=as_json)


def _timed(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "time": moment(row["time"])}


@app.command("limits")
def limits(
    project: Annotated[
        str | None, typer.Argument(help="Whose (default: one's own, which can be looked at alone).")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N/WINDOW", help="Requests of all its keys together.")
    ] = None,
    max_jobs: Annotated[int | None, typer.Option(min=0, help="Unfinished jobs at a time.")] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=0, help="Bytes that it may keep; 0: no limit.")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="First forget what was set for it.")
    ] = False,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what a project may use and does; with options, set what it may."""
    asked = {"rate": rate, "max_active_jobs": max_jobs, "max_bytes": max_bytes}
    changes = {name: value for name, value in asked.items() if value is not None}
    if project is None and (changes or reset):
        raise typer.BadParameter("name the project whose limits are to change")
    path = "/v1/limits" if project is None else f"/v1/limits/{project}"
    with connect(server, data_dir) as client:
        found: dict[str, Any] = client.get(path)
        if changes or reset:
            found = client.put(path, {**({} if reset else found["own"]), **changes})
    print_found(found, _print_limits, as_json=as_json)


def _print_limits(found: dict[str, Any]) -> None:
    bound = found["max_bytes"] or "no limit"
    print_table(
        ("what", "used", "limit"),
        [
            {"what": "requests", "used": "", "limit": found["rate"] or "no limit"},
            {"what": "unfinished jobs", "used": found["active_jobs"],
             "limit": found["max_active_jobs"]},
            {"what": "bytes", "used": found["kept_bytes"], "limit": bound},
        ],
    )  # fmt: skip

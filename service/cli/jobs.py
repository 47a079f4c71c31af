"""`jobs`: list, look at, follow, cancel, repeat and remove jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.connection import (
    LOCAL_URL,
    DataDirOption,
    ServerOption,
    come_back,
    connect,
    filters,
    remove,
)
from service.cli.exits import Exit, exit_of_job
from service.cli.output import (
    JsonFlag,
    cell,
    moment,
    note,
    print_fields,
    print_found,
    print_items,
    print_json,
    print_json_line,
    print_problem,
    print_text,
)

if TYPE_CHECKING:
    from service.client.events import Event

app = typer.Typer(help="Jobs of the service.", no_args_is_help=True)
JobArgument = Annotated[str, typer.Argument(help="Job id.")]
FIELDS = (
    "id",
    "state",
    "stage",
    "waiting",
    "label",
    "model",
    "hardware",
    "options",
    "created",
    "started",
    "finished",
    "attempts",
    "bundle_sha256",
)


_TITLES = {
    "id": "id",
    "state": "state",
    "stage": "stage",
    "units": "units",
    "cached": "cached",
    "minute": "created",
    "label": "label",
}
"""What a terminal shows of a job in a list; ids of its model and machine are in `jobs show`."""


@app.command("ls")
def ls(
    state: Annotated[str | None, typer.Option(help="Only jobs in this state.")] = None,
    label: Annotated[str | None, typer.Option(help="Only jobs with this label.")] = None,
    model: Annotated[str | None, typer.Option(help="Only jobs on the model of this id.")] = None,
    hardware: Annotated[str | None, typer.Option(help="Only jobs for the spec of this id.")] = None,
    strategy: Annotated[str | None, typer.Option(help="Only jobs that asked for it.")] = None,
    hours: Annotated[
        float | None, typer.Option(min=0, help="Only jobs accepted in the last so many hours.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 20,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List jobs, newest first."""
    since = None if hours is None else repr(time.time() - hours * 3600)
    query = filters(
        limit, state=state, label=label, model=model, hardware=hardware, strategy=strategy,
        since=since,
    )  # fmt: skip
    with connect(server, data_dir) as client:
        found = list(islice(client.jobs(**query), limit))
    columns = ("id", "state", "stage", "units", "cached", "label", "created", "model", "hardware")
    print_items(found, columns, _listed, as_json=as_json, titles=_TITLES)


def _listed(job: dict[str, Any]) -> dict[str, object]:
    at = moment(job.get("created"))
    return {**job, **_counts(job), "created": at, "minute": at[: len("2026-01-01 00:00")]}


@app.command("show")
def show(
    job: JobArgument,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one job; a failed one explains itself."""
    with connect(server, data_dir) as client:
        print_found(client.job(job), _show, as_json=as_json)


@app.command("watch")
def watch(
    job: JobArgument,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Follow a job's events until it ends; the exit code is the job's.

    With --json every line is a document: the events, then the job.
    """
    with connect(server, data_dir) as client, detaching(job, server):
        if client.base_url != LOCAL_URL:
            for event in client.events(job):
                _print_event(event, as_json)
        ended = client.wait(job)
    if as_json:
        print_json_line(ended)
        raise typer.Exit(exit_of_job(ended))
    _end(ended, as_json=as_json)


@app.command("wait")
def wait(
    job: JobArgument,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Give up waiting after this many seconds.")
    ] = None,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Wait until a job ends; the exit code is the job's, 6 when the waiting ends first."""
    with connect(server, data_dir) as client, detaching(job, server):
        ended = client.wait(job, timeout_s=timeout)
    _end(ended, as_json=as_json)


@app.command("logs")
def logs(
    job: JobArgument,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print what each attempt at the job printed."""
    with connect(server, data_dir) as client:
        found = client.get(f"/v1/jobs/{job}/logs")
    if as_json:
        print_json(found)
        return
    attempts = found["attempts"]
    for attempt in attempts if isinstance(attempts, list) else []:
        assert isinstance(attempt, dict)
        note(f"attempt {attempt['number']} on {attempt['worker']}: {attempt['outcome']}")
        print_text(str(attempt["output"] or ""))


@app.command("cancel")
def cancel(
    job: JobArgument,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Cancel a job; again is fine, exit 3 when it ended otherwise first."""
    with connect(server, data_dir) as client:
        print_found(client.cancel(job), _show, as_json=as_json)


@app.command("clone")
def clone(
    job: JobArgument,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Submit the same model, machine and options again."""
    with connect(server, data_dir) as client:
        print_found(client.clone(job), _show, as_json=as_json)


@app.command("rm")
def rm(
    jobs: Annotated[list[str], typer.Argument(help="Job ids.")],
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Delete jobs that have ended, with their artifacts."""
    remove("/v1/jobs", jobs, server, data_dir, as_json=as_json)


@contextmanager
def detaching(job_id: str, server: str | None) -> Iterator[None]:
    """Make Ctrl-C inside the block stop the waiting, not the job, and say how to come back.

    Raises:
        typer.Exit: code 6 after Ctrl-C: the waiting ended before the job.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        note(f"detached: job {job_id} goes on; come back with")
        come_back("jobs watch", job_id, server)
        raise typer.Exit(Exit.TIMED_OUT) from error


def _end(job: dict[str, Any], *, as_json: bool) -> None:
    print_found(job, _show, as_json=as_json)
    raise typer.Exit(exit_of_job(job))


def _show(job: dict[str, Any]) -> None:
    print_fields({**job, **_counts(job)}, (*FIELDS, "units", "cached"))
    if isinstance(job.get("error"), dict):
        print_problem(job["error"])


def _counts(job: dict[str, Any]) -> dict[str, object]:
    """Give units done of all, by solving or from the cache, and those from the cache."""
    progress = job.get("progress") or {}
    solved, cached = progress.get("units_solved", 0), progress.get("units_cached", 0)
    return {"units": f"{solved + cached}/{progress.get('units_total', 0)}", "cached": cached}


def _print_event(event: Event, as_json: bool) -> None:
    if as_json:
        print_json_line({"id": event.id, "type": event.type, "data": event.body})
    else:
        print_text(f"{event.type} {_event_text(event.body)}")


def _event_text(body: dict[str, Any]) -> str:
    """Show what happened; the sequence number and the raw time are for programs."""
    shown = {k: v for k, v in body.items() if v is not None and k not in ("seq", "ts")}
    return " ".join(f"{key}={cell(value)}" for key, value in shown.items())

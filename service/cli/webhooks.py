"""`webhooks`: subscribe to the ends of jobs, and see what was sent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.connection import DataDirOption, ServerOption, connect
from service.cli.exits import Exit
from service.cli.output import (
    JsonFlag,
    moment,
    note,
    print_fields,
    print_found,
    print_items,
    print_table,
    print_text,
)
from service.states import DeliveryState, EventType

if TYPE_CHECKING:
    from service.client import Client

app = typer.Typer(help="Webhooks: messages when jobs end.", no_args_is_help=True)
WebhookArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the webhook, as `ls` lists it.")
]
DeliveryArgument = Annotated[
    str, typer.Argument(metavar="DELIVERY", help="Id of the message, as `deliveries` lists it.")
]
_LOOK_S = 0.2
"""Between two looks at a ping."""


@app.command("create")
def create(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where messages are sent: https.")],
    name: Annotated[str, typer.Option(help="For whom or what it is.")] = "",
    event: Annotated[
        list[EventType] | None, typer.Option(help="What is told; may be repeated (default: all).")
    ] = None,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Subscribe and print the secret: nobody can ask for it again."""
    with connect(server, data_dir) as client:
        made: dict[str, Any] = client.create_webhook(
            url, name=name, events=[str(e) for e in event or ()]
        )
    print_found(made, _print_secret, as_json=as_json)


def _print_secret(made: dict[str, Any]) -> None:
    note(f"{made['id']}: {', '.join(made['events'])} to {made['url']}")
    print_text(made["secret"])


@app.command("ls")
def ls(
    server: ServerOption = None, data_dir: DataDirOption = None, as_json: JsonFlag = False
) -> None:
    """List all webhooks of the project."""
    with connect(server, data_dir) as client:
        found: list[dict[str, Any]] = list(client.webhooks())
    print_items(found, ("id", "name", "url", "events", "state"), _shown, as_json=as_json)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    state = "live"
    if row["disabled"] is not None:
        state = f"disabled {moment(row['disabled'])}"
    elif row["failing_since"] is not None:
        state = f"failing since {moment(row['failing_since'])}"
    return {**row, "events": " ".join(row["events"]), "state": state}


@app.command("show")
def show(
    webhook: WebhookArgument,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one, and why it was disabled if it was."""
    with connect(server, data_dir) as client:
        print_found(client.webhook(webhook), _show, as_json=as_json)


def _show(found: dict[str, Any]) -> None:
    for name in ("failing_since", "disabled", "former_until"):
        found[name] = "" if found[name] is None else moment(found[name])
    print_fields(found, tuple(found))


@app.command("rm")
def rm(
    webhook: WebhookArgument, server: ServerOption = None, data_dir: DataDirOption = None
) -> None:
    """Delete one with its deliveries, also those that wait."""
    with connect(server, data_dir) as client:
        client.delete_webhook(webhook)
    note(f"{webhook} is deleted")


@app.command("rotate")
def rotate(
    webhook: WebhookArgument,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print a new secret; for a day messages carry signatures of both."""
    with connect(server, data_dir) as client:
        print_found(client.rotate_webhook(webhook), _print_secret, as_json=as_json)


@app.command("enable")
def enable(
    webhook: WebhookArgument, server: ServerOption = None, data_dir: DataDirOption = None
) -> None:
    """Send to one again that the server has disabled."""
    with connect(server, data_dir) as client:
        client.enable_webhook(webhook)
    note(f"{webhook} is enabled")


@app.command("ping")
def ping(
    webhook: WebhookArgument,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for what the receiver answers.")
    ] = 30.0,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Send a test message, once, and say what the receiver answered.

    A worker sends it: without one it waits.  Exit code 5 when it was not taken, 6 when nothing is
    known in time.
    """
    with connect(server, data_dir) as client:
        sent = client.ping_webhook(webhook)
        found = _ended(client, webhook, str(sent["id"]), wait)
    print_found(found, _print_log, as_json=as_json)
    if found["state"] == DeliveryState.PENDING:
        raise typer.Exit(Exit.TIMED_OUT)
    if found["state"] != DeliveryState.DELIVERED:
        raise typer.Exit(Exit.SERVICE)


def _ended(client: Client, webhook: str, delivery: str, wait_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + wait_s
    while True:
        found: dict[str, Any] = client.delivery(webhook, delivery)
        if found["state"] != DeliveryState.PENDING or time.monotonic() >= deadline:
            return found
        time.sleep(_LOOK_S)


@app.command("deliveries")
def deliveries(
    webhook: WebhookArgument,
    delivery: Annotated[
        str | None, typer.Argument(metavar="DELIVERY", help="Show every attempt at this one.")
    ] = None,
    state: Annotated[DeliveryState | None, typer.Option(help="Only those in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most this many.")] = 20,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List what was sent, newest first, or every attempt at one message."""
    with connect(server, data_dir) as client:
        if delivery is not None:
            print_found(client.delivery(webhook, delivery), _print_log, as_json=as_json)
            return
        query: dict[str, str | int] = {"limit": limit}
        if state is not None:
            query["state"] = str(state)
        page = client.get(f"/v1/webhooks/{webhook}/deliveries", query)
    print_found(page, _print_deliveries, as_json=as_json)


def _print_deliveries(page: dict[str, Any]) -> None:
    rows = [
        {**row, "created": moment(row["created"]), "job": row["job"] or "",
         "next": "" if row["next_attempt"] is None else moment(row["next_attempt"])}
        for row in page["items"]
    ]  # fmt: skip
    print_table(("id", "type", "job", "state", "attempts", "created", "next"), rows)


def _print_log(found: dict[str, Any]) -> None:
    note(f"{found['id']} ({found['type']}): {found['state']}")
    print_table(
        ("number", "started", "seconds", "status", "error"),
        [
            {
                "number": row["number"], "started": moment(row["started"]),
                "seconds": "" if row["duration_s"] is None else f"{row['duration_s']:.3f}",
                "status": "" if row["status"] is None else row["status"],
                "error": row["error"] or "",
            }
            for row in found["log"]
        ],
    )  # fmt: skip


@app.command("replay")
def replay(
    webhook: WebhookArgument,
    delivery: DeliveryArgument,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Send a message that has ended once more, with the same id."""
    with connect(server, data_dir) as client:
        client.replay_delivery(webhook, delivery)
    note(f"{delivery} is sent again")

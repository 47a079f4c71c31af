"""Where a verb's requests go: a server, or the same API inside this process on a data directory."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.output import note, print_json

if TYPE_CHECKING:
    from service.client import Client
    from service.settings import Settings

LOCAL_URL = "http://tilewright.local"

ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="TILEWRIGHT_SERVER",
        help="URL of a Tilewright server; without one, the data directory is used directly.",
        metavar="URL",
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="TILEWRIGHT_DATA_DIR",
        help="Data directory of the embedded service (default ~/.local/share/tilewright).",
        file_okay=False,
    ),
]


def load_settings(data_dir: Path | None = None, **values: Any) -> Settings:
    """Give the settings of this process, with the command line's choices on top."""
    from service.settings import Settings

    chosen = {name: value for name, value in values.items() if value is not None}
    if data_dir is not None:
        chosen["data_dir"] = data_dir
    return Settings(**chosen)


def quiet_logs() -> None:
    """Send the service's warnings to stderr when it runs inside this command; stdout is data."""
    from service.log import configure

    configure("WARNING", "console")


def filters(limit: int, **given: str | None) -> dict[str, str | int]:
    """The query of a list: how many rows a page may have, and what of `given` was given."""
    return {"limit": min(limit, 100)} | {name: value for name, value in given.items() if value}


def come_back(verb: str, identity: str, server: str | None) -> None:
    """Say how to go on with what a command has left."""
    where = f" --server {shlex.quote(server)}" if server else ""
    note(f"  tilewright {verb} {identity}{where}")


def remove(
    path: str, ids: Sequence[str], server: str | None, data_dir: Path | None, *, as_json: bool
) -> None:
    """Delete what lies at `path`/ID."""
    with connect(server, data_dir) as client:
        for identity in ids:
            client.delete(f"{path}/{identity}")
    if as_json:
        print_json({"removed": list(ids)})


def connect(server: str | None, data_dir: Path | None = None) -> Client:
    """Open a client: to `server`, or to the API in this process.

    The in-process API has no worker: it reads and changes what is stored, it runs no jobs.
    """
    from service.client import Client

    if server:
        return Client(server)
    import httpx

    from service.api.app import create_app
    from service.client.in_process import InProcessTransport
    from service.store.session import migrate

    quiet_logs()
    settings = load_settings(data_dir, allowed_hosts=(httpx.URL(LOCAL_URL).host,))
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    migrate(settings.database_url)
    app = create_app(settings, is_own=True)
    http = httpx.Client(transport=InProcessTransport(app), base_url=LOCAL_URL, timeout=600)
    return Client(LOCAL_URL, http=http)


@contextmanager
def working_service(server: str | None, data_dir: Path | None) -> Iterator[Client]:
    """A client of the server, or of a service on the data directory that runs as long as this."""
    from service.cli.embedded import embedded_service
    from service.client import Client

    if server:
        with Client(server) as client:
            yield client
        return
    settings = load_settings(data_dir)
    with (
        embedded_service(settings.data_dir, workers=settings.workers) as url,
        Client(url) as client,
    ):
        yield client

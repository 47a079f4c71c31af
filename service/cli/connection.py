"""Where a verb's requests go: a server, or the same API inside this process on a data directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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

"""`serve` (API and worker in one process) and `worker` (a worker alone)."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.connection import DataDirOption, load_settings
from service.cli.exits import Exit
from service.cli.failures import Failure
from service.cli.output import JsonFlag, note, print_json, print_text

if TYPE_CHECKING:
    from service.bootstrap import Services
    from service.settings import Settings

FIRST_KEY = "first-key"
"""File of the data directory."""
GRACEFUL_S = 5
"""How long open requests may take to end when the server stops."""


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")
    ] = None,
    data_dir: DataDirOption = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Jobs that run at the same time.")
    ] = None,
    api_only: Annotated[
        bool, typer.Option("--api-only", help="Leave the work to separate `tilewright worker`s.")
    ] = False,
    require_key: Annotated[
        bool | None,
        typer.Option(
            "--require-key",
            help="Ask for an API key on loopback, too; beyond it a server always does.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run everything in one process: the API and a worker, on a data directory.

    When it listens, its URL is printed on stdout.  A server that asks for keys and finds none in
    its database makes a first one, which may do anything, and says in which file it is.
    """
    from service.log import configure

    settings = load_settings(
        data_dir, host=host, port=port, workers=workers, require_key=require_key
    )
    if api_only and settings.embedded:
        raise Failure(
            "TW-OPT-001",
            "--api-only needs a broker that workers can reach",
            remedy="Set TILEWRIGHT_BROKER_URL to a redis:// or amqp:// URL.",
        )
    configure(settings.log_level, settings.log_format)
    listener = listen(settings)
    bound = listener.getsockname()[1]
    name = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{name}:{bound}"

    def announce() -> None:
        if as_json:
            print_json({"url": url, "data_dir": str(settings.data_dir)})
        else:
            print_text(url)

    with listener:
        _run(settings, listener, announce, with_worker=not api_only)


def worker(
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Jobs that run at the same time.")
    ] = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a worker alone: needs TILEWRIGHT_DATABASE_URL, _BROKER_URL and _BLOB_URL."""
    del as_json  # a worker has no output but its log
    from worker.runner.main import run_worker

    code = run_worker(load_settings(data_dir, workers=workers))
    if code:
        raise typer.Exit(Exit.SERVICE)


def listen(settings: Settings) -> socket.socket:
    """Bind before anything starts, so that a taken port is one clear refusal."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY on what this socket accepts; without it, an
    # answer in two packets waits 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(256)
    except OSError as error:
        listener.close()
        raise Failure(
            "TW-CLI-002",
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}",
        ) from error
    listener.set_inheritable(False)
    return listener


def _run(settings: Settings, listener: socket.socket, announce: Any, *, with_worker: bool) -> None:
    """Serve until SIGINT or SIGTERM; the worker starts before and stops after the API."""
    from contextlib import ExitStack

    from service.api.app import create_app
    from service.bootstrap import open_services
    from service.jobs.reconcile import restate_wants
    from service.store.session import migrate

    settings.data_dir.mkdir(parents=True, exist_ok=True)
    services = open_services(settings)
    # uvicorn raises the signal that ended it once more, for whoever had it before.  By default that
    # is the end of this process, before the worker has given back what it runs.
    signal.signal(signal.SIGTERM, _leave)
    with ExitStack() as stack:
        stack.callback(services.close)
        if with_worker:
            _start_worker(services, stack)
        else:
            migrate(settings.database_url)
            restate_wants(services.database)
        if settings.needs_key:
            _make_first_key(services)
        _serve_http(create_app(settings, services), listener, announce, settings.slow_client_s)


def _leave(*_: object) -> None:
    """Unwind: what is open is closed in order."""
    raise SystemExit(0)


def _make_first_key(services: Services) -> None:
    """Where nobody has a key yet, write one to a file that only this user reads."""
    from service.jobs.keys import first_key

    path = services.settings.data_dir / FIRST_KEY

    def keep(text: str) -> None:
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text + "\n")

    if first_key(services.database, keep):
        note(f"the first API key, which may do anything, is in {path}: make others, then revoke it")


def _start_worker(services: Services, stack: Any) -> None:
    from worker.runner.main import EmbeddedWorker

    stack.enter_context(EmbeddedWorker(services))


def _serve_http(app: Any, listener: socket.socket, announce: Any, slow_client_s: float) -> None:
    import uvicorn

    from service.api.heads import PacedProtocol

    class Protocol(PacedProtocol):
        head_s = slow_client_s

    class Announcing(uvicorn.Server):
        """Says where it listens as soon as it does."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if self.started:
                announce()

    config = uvicorn.Config(
        app,
        http=Protocol,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GRACEFUL_S,
        timeout_keep_alive=30,
        server_header=False,
        lifespan="on",
    )
    Announcing(config).run(sockets=[listener])

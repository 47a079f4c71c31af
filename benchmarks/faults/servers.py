"""Servers of one's own, on free ports of loopback: to be killed, hung and started again.

PostgreSQL, Redis, RabbitMQ and an S3 that keeps objects in memory (moto), each a child of this
process with its files in a folder that it is given.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from service.store.pg_programs import find_program
from worker.sandbox.tree_usage import descendants

_NOBODY = 65534
_START_S = 60.0
RABBIT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Not the one on the path, which becomes another user and asks its configuration."""


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def reachable(port: int) -> bool:
    """Whether somebody listens on a port of loopback."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5):
            return True
    except OSError:
        return False


def signal_tree(pid: int, number: int) -> None:
    """Send a signal to a process and all that it started."""
    for one in (pid, *descendants(pid)):
        try:
            os.kill(one, number)
        except ProcessLookupError:
            continue


class Server:
    """A child process that listens on `port`."""

    name = "server"

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """What is started."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """How it is started: `cwd`, `user`."""
        return {}

    def answers(self) -> bool:
        """Whether it does what it is for."""
        return reachable(self.port)

    @property
    def alive(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Of its process; None: it was never started, or stopped."""
        return None if self._process is None else self._process.pid

    def start(self) -> bool:
        """Start and wait until it answers; False: it did not."""
        self.launch()
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self.alive:
            if self.answers():
                return True
            time.sleep(0.1)
        self.stop()
        return False

    def launch(self) -> None:
        """Start, and do not wait."""
        self._process = subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self.options(),
        )

    def stop(self, number: int = signal.SIGINT) -> None:
        """End it by a signal and wait until it is gone, at last by SIGKILL."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def freeze(self) -> None:
        """Let it and its children hang: connections stay open and nothing answers."""
        if self._process is not None:
            signal_tree(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        if self._process is not None:
            signal_tree(self._process.pid, signal.SIGCONT)


def pg_works(url: str) -> bool:
    """Whether a database accepts connections."""
    import psycopg

    try:
        psycopg.connect(url, connect_timeout=3).close()
    except psycopg.Error:
        return False
    return True


class OwnPostgres(Server):
    """A private server in a folder, run as an unprivileged user when we are root.

    `stop` by SIGINT is a fast shutdown, by SIGQUIT an immediate one, as after a crash.
    """

    name = "database"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:
            self._user = {"user": _NOBODY, "group": _NOBODY}
            os.chown(folder, _NOBODY, _NOBODY)
            for parent in folder.parents:  # pytest's base folder is private to root
                if parent in (Path("/tmp"), Path("/")):
                    break
                parent.chmod(0o711)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def create(self) -> bool:
        """Make the cluster; False when there is no server installed or it cannot."""
        initdb = find_program("initdb")
        if initdb is None or find_program("postgres") is None:
            return False
        cluster = str(self._folder / "cluster")
        made = subprocess.run(
            [initdb, "-D", cluster, "-U", "postgres", "-A", "trust", "--no-sync"],
            capture_output=True,
            check=False,
            cwd=self._folder,
            **self._user,
        )
        return made.returncode == 0

    def command(self) -> list[str]:
        cluster, port = str(self._folder / "cluster"), str(self.port)
        sockets = str(self._folder)
        return [str(find_program("postgres")), "-D", cluster, "-p", port, "-k", sockets,
                "-h", "127.0.0.1"]  # fmt: skip

    def options(self) -> dict[str, Any]:
        return {"cwd": self._folder, **self._user}

    def answers(self) -> bool:
        return reachable(self.port) and pg_works(self.url)


class OwnRedis(Server):
    """A private Redis that keeps nothing when it ends."""

    name = "broker"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._binary = shutil.which("redis-server") or shutil.which("valkey-server")

    @property
    def installed(self) -> bool:
        return self._binary is not None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        return [str(self._binary), "--port", str(self.port), "--bind", "127.0.0.1",
                "--save", "", "--appendonly", "no"]  # fmt: skip

    def options(self) -> dict[str, Any]:
        return {"cwd": self._folder}


class Names(Server):
    """Where the nodes of an Erlang system find each other; RabbitMQ does not start without."""

    name = "names"

    def command(self) -> list[str]:
        return [str(shutil.which("epmd")), "-address", "127.0.0.1", "-port", str(self.port)]


class OwnRabbit(Server):
    """A private RabbitMQ, as Debian installs it, that keeps its queues in a folder."""

    name = "broker"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder / "rabbit"
        self._folder.mkdir()
        self._inner_port = free_port()
        self.names = Names()

    @property
    def installed(self) -> bool:
        return RABBIT.exists() and shutil.which("epmd") is not None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def command(self) -> list[str]:
        return [str(RABBIT)]

    def options(self) -> dict[str, Any]:
        folder = self._folder
        return {"cwd": folder, "env": {
            "PATH": os.environ["PATH"], "HOME": str(folder),
            "ERL_EPMD_PORT": str(self.names.port), "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "faults@localhost", "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port), "RABBITMQ_DIST_PORT": str(self._inner_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS":
                "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia", "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_LOGS": "-", "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_PLUGINS_EXPAND_DIR": f"{folder}/plugins",
            # The machine's own configuration is not this one's.
            "RABBITMQ_CONF_ENV_FILE": "/dev/null", "RABBITMQ_CONFIG_FILE": f"{folder}/none",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{folder}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/none",
        }}  # fmt: skip

    def answers(self) -> bool:
        from kombu import Connection
        from kombu.exceptions import KombuError

        try:
            with Connection(self.url, connect_timeout=2) as connection:
                connection.connect()
        except (OSError, KombuError):
            return False
        return True

    def start(self) -> bool:
        return self.names.start() and super().start()

    def stop(self, number: int = signal.SIGKILL) -> None:
        """The shell that started it ends, and so do the server and its own children."""
        if self._process is not None:
            signal_tree(self._process.pid, number)
        super().stop(number)


class OwnS3(Server):
    """An S3 whose objects live in its memory, with one bucket."""

    name = "store"
    bucket = "tw-bucket"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def answers(self) -> bool:
        request = urllib.request.Request(f"{self.endpoint}/{self.bucket}", method="PUT")
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except (urllib.error.URLError, OSError):
            return False
        return True

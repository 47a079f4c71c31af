"""What documents print in fenced blocks, and a checkout in which their commands run as printed.

A block `sh` holds commands, one a line; `# exit 3` at a line's end is the status that it ends with.
A block `text` right behind it holds lines of what they print, in this order, `...` for what is left
out.  A block `python` is run, too.  Any other block with a file's name behind its language
(`yaml chip.yaml`) is that file.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from service.cli.main import app

REPO = Path(__file__).resolve().parent.parent
PRINTED_PORT = "8000"
PRINTED_URL = f"http://127.0.0.1:{PRINTED_PORT}"
LINKED = ("examples", "docs", "benchmarks", "pyproject.toml", "docker-compose.yml")
"""What of the repository the commands of documents name."""


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block: the words behind its opening, and its text."""

    info: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command line without its comment."""

    line: str
    status: int = 0


def fences(document: str) -> list[Fence]:
    """All fenced blocks of a document, in order."""
    found = re.findall(r"^```([^\n`]*)\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    return [Fence(tuple(info.split()), text) for info, text in found]


def section(document: str, title: str) -> str:
    """What stands under a heading of the second level."""
    return document.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def commands_of(fence: Fence) -> list[Command]:
    """Command lines of one block; none where it is none of commands."""
    if fence.info != ("sh",):
        return []
    found = []
    for row in fence.text.replace("\\\n", " ").splitlines():
        line, _, comment = re.sub(r"(?:^|\s+)(?=#\s)", "\0", row, count=1).partition("\0")
        if line.strip():
            status = re.search(r"\bexit (\d)\b", comment)
            found.append(Command(line.strip(), int(status[1]) if status else 0))
    return found


def commands(document: str) -> list[Command]:
    """Command lines of all blocks of a document."""
    return [command for fence in fences(document) for command in commands_of(fence)]


def missing_line(shown: str, printed: str) -> str | None:
    """The first shown line that was not printed behind those before it; blanks are equal."""
    lines: Iterator[str] = iter([" ".join(line.split()) for line in printed.splitlines()])
    for line in shown.splitlines():
        wanted = " ".join(line.split())
        if wanted not in {"", "..."} and wanted not in lines:
            return line
    return None


class Checkout:
    """A working folder with what the repository has, and a data directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        self.folder.mkdir()
        for name in LINKED:
            (self.folder / name).symlink_to(REPO / name)
        self._data = folder / "data"
        self._server: subprocess.Popen[str] | None = None
        self._url = ""

    def run(self, command: Command) -> str:
        """What a command prints on stdout; of a server, its address."""
        if serving := re.fullmatch(r"((?:\w+=\S+ )*)tilewright (serve .*)", command.line):
            given = dict(pair.split("=", 1) for pair in serving[1].split())
            return self._serve(shlex.split(serving[2]), given)
        line = command.line.replace(PRINTED_URL, self._url or PRINTED_URL)
        if line.startswith("tilewright ") and not set(line) & set("|>$*&;"):
            return self._invoke(line, command.status)
        return self._shell(line, command.status)

    def run_python(self, text: str) -> str:
        """What a block of Python prints."""
        done = subprocess.run(
            [sys.executable, "-c", text], cwd=self.folder, env=self._environment(),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stderr}"
        return done.stdout

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TILEWRIGHT_")}
        return {**kept, "PYTHONPATH": str(REPO), "TILEWRIGHT_DATA_DIR": str(self._data)}

    def _invoke(self, line: str, status: int) -> str:
        unset = {name: None for name in os.environ if name.startswith("TILEWRIGHT_")}
        with contextlib.chdir(self.folder):
            given = unset | {"TILEWRIGHT_DATA_DIR": str(self._data)}
            done = CliRunner().invoke(app, shlex.split(line)[1:], env=given)
        assert done.exit_code == status, f"{line}\n{done.output}"
        return str(done.stdout)

    def _shell(self, line: str, status: int) -> str:
        tool = self.folder.parent / "bin" / "tilewright"
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m service.cli.main "$@"\n')
        tool.chmod(0o755)
        environment = self._environment()
        environment["PATH"] = f"{tool.parent}:{Path(sys.executable).parent}:{environment['PATH']}"
        done = subprocess.run(
            ["bash", "-euc", line], cwd=self.folder, env=environment, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _serve(self, words: list[str], given: dict[str, str]) -> str:
        self.close()  # of two servers on one folder and port the second would be refused
        # The printed port may be taken on the machine that runs the tests.
        words = ["0" if word == PRINTED_PORT else word for word in words]
        assert "0" in words
        # Its log goes nowhere: a pipe that nobody reads would fill up and block it.
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "service.cli.main", *words],
            cwd=self.folder, env=self._environment() | given, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._server = server
        assert server.stdout is not None
        self._url = server.stdout.readline().strip()
        assert self._url.startswith("http://127.0.0.1:"), words
        return self._url

    def close(self) -> None:
        """Stop the server."""
        if self._server is not None:
            self._server.terminate()
            self._server.communicate(timeout=30)
            self._server = None

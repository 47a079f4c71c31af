"""The commands README prints under "Use" run as printed, from a checkout.

Each is a test of its own, in a folder where the earlier ones that it builds on have run: whose
files it names, or whose server it asks.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from service.cli.main import app

REPO = Path(__file__).resolve().parent.parent.parent
README = (REPO / "README.md").read_text(encoding="utf-8")
PRINTED_PORT = "8000"
PRINTED_URL = f"http://127.0.0.1:{PRINTED_PORT}"
DELIVERED = {
    "report.json", "report.html", "run.json", "layers.csv", "trace.json.gz", "model.twb",
}  # fmt: skip


def use_commands() -> list[str]:
    """Give the command lines of the "Use" section's first block, comments cut off."""
    section = README.split("\n## Use\n", 1)[1].split("\n## ", 1)[0]
    block = section.split("```")[1]
    lines = [" ".join(shlex.split(line, comments=True)) for line in block.splitlines()]
    return [line for line in lines if line]


COMMANDS = use_commands()


def made_by(line: str) -> set[str]:
    """What later commands may name: files, folders, a server."""
    _, *words = shlex.split(line)
    made = {words[k + 1] for k, word in enumerate(words) if word == "-o"}
    if words[:2] == ["model", "example"]:
        made |= {words[2], words[words.index("--input") + 1]}
    if words[:2] == ["backend", "new"]:
        made.add(words[2])
    if words[0] == "serve":
        made.add(PRINTED_URL)
    return made


class Checkout:
    """A working folder with the repository's examples and a data directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        self.folder.mkdir()
        (self.folder / "examples").symlink_to(REPO / "examples")
        self._data = folder / "data"
        self._printed: dict[str, str] = {}
        self._servers: list[subprocess.Popen[str]] = []

    def run(self, line: str) -> str:
        """What a command prints; it and those that it builds on run once."""
        if line not in self._printed:
            named = {word.split("/")[0] for word in shlex.split(line)} | set(shlex.split(line))
            for earlier in COMMANDS[: COMMANDS.index(line)]:
                if made_by(earlier) & named - made_by(line):
                    self.run(earlier)
            self._printed[line] = self._serve(line) if " serve " in line else self._invoke(line)
        return self._printed[line]

    def _invoke(self, line: str) -> str:
        server = next((url for url in self._printed.values() if url.startswith("http://127.")), "")
        program, *words = shlex.split(line.replace(PRINTED_URL, server))
        assert program == "tilewright"
        unset = {name: None for name in os.environ if name.startswith("TILEWRIGHT_")}
        with contextlib.chdir(self.folder):
            given = unset | {"TILEWRIGHT_DATA_DIR": str(self._data)}
            done = CliRunner().invoke(app, words, env=given)
        assert done.exit_code == 0, f"{line}\n{done.output}"
        return str(done.stdout)

    def _serve(self, line: str) -> str:
        """Start the server; gives its address."""
        # The printed port may be taken on the machine that runs the tests.
        program, *words = shlex.split(line.replace(f"--port {PRINTED_PORT}", "--port 0"))
        assert program == "tilewright"
        assert "0" in words
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TILEWRIGHT_")}
        # Its log goes nowhere: a pipe that nobody reads would fill up and block it.
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "service.cli.main", *words],
            cwd=self.folder,
            env={**kept, "PYTHONPATH": str(REPO), "TILEWRIGHT_DATA_DIR": str(self._data)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._servers.append(server)
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), line
        return url

    def close(self) -> None:
        """Stop the servers."""
        for process in self._servers:
            process.terminate()
            process.communicate(timeout=30)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    made = Checkout(tmp_path_factory.mktemp("readme"))
    yield made
    made.close()


def test_there_are_commands_and_one_server() -> None:
    assert len(COMMANDS) >= 8
    assert all(line.startswith("tilewright ") for line in COMMANDS)
    assert sum(line.startswith("tilewright serve ") for line in COMMANDS) == 1


@pytest.mark.document
@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_works_as_printed(line: str, checkout: Checkout) -> None:
    printed = checkout.run(line)
    if line.endswith(" -o out"):
        assert {file.name for file in (checkout.folder / "out").iterdir()} >= DELIVERED
    elif line.startswith("tilewright run "):
        with np.load(checkout.folder / "out.npz") as arrays:
            probabilities = arrays["probabilities"]
        assert probabilities.shape == (1, 10)
        np.testing.assert_allclose(probabilities.sum(), 1.0, rtol=1e-5)
    elif line == "tilewright layers out":
        assert printed.count("\n") >= 2
    elif line == "tilewright hardware ls":
        assert "stcp920-inferred" in printed
    elif line == "tilewright explain TW-MODEL-004":
        assert "cycle" in printed
    elif line == "tilewright explain layer 0 out":
        assert "with twice as much" in printed
    elif line == "tilewright certify nests":
        assert "0 of which do not hold" in " ".join(printed.split())


def test_two_set_up_commands_and_every_exit_code() -> None:
    indented = re.findall(r"^    (\S.*)$", README.split("\n## Use\n")[0], flags=re.MULTILINE)
    assert [line for line in indented if line.startswith("pip ")] == [
        "pip install . && tilewright demo",
        "pip install '.[test]' && pytest",
    ]
    for code in ("0 ok", "2 usage", "3 input", "4 unsupported", "5 service", "6 timed", "7 cancel"):
        assert code in " ".join(README.split())

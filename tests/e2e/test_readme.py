"""The commands README prints under "Use" run as printed, from a checkout.

Each is a test of its own, in a folder where the earlier ones that it builds on have run: whose
files it names, or whose server it asks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from document_commands import PRINTED_URL, REPO, Checkout, Command, commands, section

README = (REPO / "README.md").read_text(encoding="utf-8")
DELIVERED = {
    "report.json", "report.html", "run.json", "layers.csv", "trace.json.gz", "model.twb",
}  # fmt: skip
COMMANDS = [command.line for command in commands(section(README, "Use"))]


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


class Readme(Checkout):
    """A checkout in which a command, and those that it builds on, run once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._printed: dict[str, str] = {}

    def printed(self, line: str) -> str:
        """What a command prints."""
        if line not in self._printed:
            named = {word.split("/")[0] for word in shlex.split(line)} | set(shlex.split(line))
            for earlier in COMMANDS[: COMMANDS.index(line)]:
                if made_by(earlier) & named - made_by(line):
                    self.printed(earlier)
            self._printed[line] = self.run(Command(line))
        return self._printed[line]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Readme]:
    made = Readme(tmp_path_factory.mktemp("readme"))
    yield made
    made.close()


def test_there_are_commands_and_one_server() -> None:
    assert len(COMMANDS) >= 8
    assert all(line.startswith("tilewright ") for line in COMMANDS)
    assert sum(line.startswith("tilewright serve ") for line in COMMANDS) == 1


@pytest.mark.document
@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_works_as_printed(line: str, checkout: Readme) -> None:
    printed = checkout.printed(line)
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

"""The commands README prints under "Use" run as printed, in order, from a checkout."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

REPO = Path(__file__).resolve().parent.parent.parent
README = (REPO / "README.md").read_text(encoding="utf-8")
PRINTED_PORT = "8000"
DELIVERED = {"report.json", "report.html", "layers.csv", "trace.json.gz", "model.twb"}
COMMAND_LIMIT_S = 60


def use_commands() -> list[str]:
    """Give the command lines of the "Use" section's first block, comments cut off."""
    section = README.split("\n## Use\n", 1)[1].split("\n## ", 1)[0]
    block = section.split("```")[1]
    lines = [" ".join(shlex.split(line, comments=True)) for line in block.splitlines()]
    return [line for line in lines if line]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Give an environment whose `tilewright` is this checkout, with a data directory of its own."""
    programs = tmp_path / "bin"
    programs.mkdir()
    command = programs / "tilewright"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m service.cli.main "$@"\n')
    command.chmod(0o755)
    values = {k: v for k, v in os.environ.items() if not k.startswith("TILEWRIGHT_")}
    return values | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPO),
        "TILEWRIGHT_DATA_DIR": str(tmp_path / "data"),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a working folder in which the repository's examples lie where README says."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "examples").symlink_to(REPO / "examples")
    return folder


@pytest.fixture
def servers() -> Iterator[list[subprocess.Popen[str]]]:
    """Collect the servers a test starts, and stop them."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.terminate()
        process.communicate(timeout=30)


def test_every_command_works_as_printed(
    environment: dict[str, str], folder: Path, servers: list[subprocess.Popen[str]]
) -> None:
    commands = use_commands()
    assert len(commands) >= 8
    assert all(line.startswith("tilewright ") for line in commands)
    url = f"http://127.0.0.1:{PRINTED_PORT}"
    printed: dict[str, str] = {}
    for line in commands:
        if line.startswith("tilewright serve "):
            # The printed port may be taken on the machine that runs the tests.
            words = shlex.split(line.replace(f"--port {PRINTED_PORT}", "--port 0"))
            assert "0" in words
            # Its log goes nowhere: a pipe that nobody reads would fill up and block it.
            server = subprocess.Popen(
                words,
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            servers.append(server)
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:"), line
            continue
        done = subprocess.run(
            shlex.split(line.replace(f"http://127.0.0.1:{PRINTED_PORT}", url)),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        printed[" ".join(line.split()[1:3])] = done.stdout
    assert len(servers) == 1
    assert {file.name for file in (folder / "out").iterdir()} >= DELIVERED
    with np.load(folder / "out.npz") as arrays:
        probabilities = arrays["probabilities"]
    assert probabilities.shape == (1, 10)
    np.testing.assert_allclose(probabilities.sum(), 1.0, rtol=1e-5)
    assert printed["layers out"].count("\n") >= 2
    assert "stcp920-inferred" in printed["hardware ls"]
    assert "cycle" in printed["explain TW-MODEL-004"]


def test_two_set_up_commands_and_every_exit_code() -> None:
    indented = re.findall(r"^    (\S.*)$", README.split("\n## Use\n")[0], flags=re.MULTILINE)
    assert [line for line in indented if line.startswith("pip ")] == [
        "pip install . && tilewright demo",
        "pip install '.[test]' && pytest",
    ]
    for code in ("0 ok", "2 usage", "3 input", "4 unsupported", "5 service", "6 timed", "7 cancel"):
        assert code in " ".join(README.split())

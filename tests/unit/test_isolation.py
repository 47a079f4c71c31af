"""Which tier is chosen, and that what is said of it is what was tried."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from service.settings import Settings
from worker.compiler.errors import CompilerError
from worker.sandbox import isolation as module
from worker.sandbox.isolation import HOLDS, LACKS, IsolationChoice, Mounts, Tier, isolation

Pretend = Callable[[str | None], None]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Pretend]:
    """Put a program in bubblewrap's place: a shell script, or none."""

    def make(script: str | None) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        if script is not None:
            program = folder / "bwrap"
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        module.probed.cache_clear()

    yield make
    monkeypatch.undo()
    module.probed.cache_clear()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "bubblewrap is not installed"),
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "No permissions"),
        ("exit 0", "does not work"),  # it ran nothing
    ],
)
def test_a_bubblewrap_that_does_not_work_is_not_claimed(
    pretend: Pretend, script: str | None, reason: str
) -> None:
    pretend(script)
    found = isolation(IsolationChoice.AUTO)
    assert found.tier is not Tier.BUBBLEWRAP
    assert reason in found.reason
    with pytest.raises(CompilerError) as caught:
        isolation(IsolationChoice.BUBBLEWRAP)
    assert caught.value.code == "TW-SVC-018"
    assert reason in caught.value.message


def test_a_bubblewrap_without_disable_userns_is_used_without(pretend: Pretend) -> None:
    pretend('for a; do [ "$a" = --disable-userns ] && exit 1; done; echo works')
    found = isolation()
    assert found.tier is Tier.BUBBLEWRAP
    assert "--disable-userns" not in found.command
    assert "--unshare-net" in found.command


def test_the_setting_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_ISOLATION", "limits")
    chosen = isolation(Settings().isolation)
    assert chosen.tier is not Tier.BUBBLEWRAP
    assert chosen.wrap(("true",), Mounts(), Path("/")) == ["true"]


def test_doctor_says_what_the_tier_holds_and_lacks(pretend: Pretend) -> None:
    pretend(None)
    shown = " ".join(CliRunner().invoke(app, ["doctor"]).output.split())
    tier = isolation().tier
    assert f"{tier}, limits only: bubblewrap is not installed" in shown
    for sentence in (*HOLDS[tier], *LACKS[tier]):
        assert sentence in shown, sentence
    assert "reach every network address" in shown


def test_a_data_directory_within_a_shown_folder_is_hidden(tmp_path: Path) -> None:
    found = isolation()
    if found.tier is not Tier.BUBBLEWRAP:
        pytest.skip(f"only {found.tier} here: {found.reason}")
    shown = Path(os.__file__).parent  # in every view
    command = found.wrap(("true",), Mounts(hidden=(shown, tmp_path)), Path("/"))
    covered = [command[k + 1] for k, word in enumerate(command) if word == "--tmpfs"]
    assert str(shown) in covered
    assert str(tmp_path) not in covered
    at = command.index(str(shown))
    last_shown = max(k for k, word in enumerate(command) if word == "--ro-bind")
    assert command[at - 1] == "--tmpfs"
    assert at > last_shown


def test_an_installation_below_tmp_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual environments are made there; the payload's own /tmp must not lie over them."""
    found = isolation()
    if found.tier is not Tier.BUBBLEWRAP:
        pytest.skip(f"only {found.tier} here: {found.reason}")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        (folder / "module.py").write_text("found")
        monkeypatch.setattr(sys, "prefix", str(folder))
        shown = found.wrap(["/bin/cat", str(folder / "module.py")], Mounts(), Path("/"))
        said = subprocess.run(shown, capture_output=True, text=True, check=False, timeout=30)
        assert said.stdout == "found", said.stderr
    finally:
        shutil.rmtree(folder)

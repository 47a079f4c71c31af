"""Loops are compiled once for all payloads, outside of their sandbox, and numba takes them."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from worker.sandbox import compiled_loops
from worker.sandbox.compiled_loops import (
    GIVEN,
    LOOPS,
    PACKAGE,
    copy_compiled_loops,
    ensure_compiled_loops,
    folder_of,
)
from worker.sandbox.payload import Workplace, payload_env


@pytest.fixture(scope="module")
def loops() -> Path:
    """Those of this installation, made now unless an earlier compile has made them."""
    top = compiled_loops.home()
    assert top is not None
    for _ in range(300):
        ensure_compiled_loops()
        if folder_of(top).is_dir():
            break
        time.sleep(0.2)  # another process of this test run is making them
    return folder_of(top)


def never(folder: Path) -> None:
    raise AssertionError(f"compiled again into {folder}")


def test_every_loop_of_the_sources_is_there(loops: Path) -> None:
    used = {
        name
        for path in PACKAGE.rglob("*.py")
        if path.name != "jit.py"
        for name in re.findall(r"\b(?:loop_for|compiled)\(\s*(\w+)", path.read_text())
    }
    found = {path.name.split("-")[0] for path in loops.rglob("*.nbi")}
    assert {name.split(".")[1] for name in found} == used
    assert {name.split(".")[0] for name in found} == {Path(name).stem for name in LOOPS}


def test_a_payload_gets_them_and_compiles_nothing(loops: Path, tmp_path: Path) -> None:
    place = Workplace(tmp_path / "job")
    place.create()
    given = {path: path.stat().st_mtime_ns for path in (place.temp / "numba").rglob("*.nb[ic]")}
    assert len(given) == len(list(loops.rglob("*.nb[ic]"))) > 0
    environment = payload_env(place, os.defpath)
    subprocess.run(
        [sys.executable, "-P", "-m", "worker.children.compile_loops"], env=environment, check=True
    )
    after = {path: path.stat().st_mtime_ns for path in (place.temp / "numba").rglob("*.nb[ic]")}
    assert after == given


def test_they_are_compiled_once(
    loops: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_loops, "compile_into", never)
    ensure_compiled_loops()
    made: list[Path] = []
    monkeypatch.setattr(compiled_loops, "compile_into", made.append)  # fails: it leaves nothing
    ensure_compiled_loops(tmp_path)
    ensure_compiled_loops(tmp_path)
    assert len(made) == 1
    copy_compiled_loops(tmp_path / "target", tmp_path)
    assert not list((tmp_path / "target").iterdir())


def test_whoever_finds_another_at_it_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_loops, "compile_into", never)
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        ensure_compiled_loops(tmp_path)
    assert not folder_of(tmp_path).exists()


def test_without_a_place_for_them_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    ensure_compiled_loops(tmp_path / "file")
    copy_compiled_loops(tmp_path / "target", tmp_path / "file")
    assert not (tmp_path / "target").exists()

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    ensure_compiled_loops()
    copy_compiled_loops(tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_other_sources_have_other_loops_and_the_oldest_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_loops, "compile_into", lambda folder: None)
    copy = tmp_path / "worker"
    monkeypatch.setattr(compiled_loops, "PACKAGE", copy)
    made = []
    for number in range(10):
        for name in (*GIVEN, *LOOPS):
            path = copy / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#" * number)
        made.append(folder_of(tmp_path / "loops"))
        ensure_compiled_loops(tmp_path / "loops")
        os.utime(made[-1], (number, number))
    assert len(set(made)) == 10
    assert [path.is_dir() for path in made] == [False] * 2 + [True] * 8

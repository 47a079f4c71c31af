"""Folders of payloads go with their starter, or tell others that it was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from service.store.blobs import KEEP_UPLOADS_S, sweep_spool
from worker.sandbox.held import held_folder, is_held, own_folder, sweep_unheld, unheld

_HOLD = """
import sys
from pathlib import Path
from worker.sandbox.held import own_folder
with own_folder(Path(sys.argv[1]), "standing") as folder:
    print(folder.name, flush=True)
    input()
"""


def test_a_folder_is_held_until_its_block_ends(tmp_path: Path) -> None:
    with own_folder(tmp_path / "asked", "explain") as folder:
        assert folder.name.startswith("explain-")
        assert is_held(folder)
        assert unheld(folder.parent) == []
        assert sweep_unheld(folder.parent) == 0
    assert not folder.exists()
    assert not is_held(folder)


def test_a_folder_goes_when_its_block_breaks(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"), own_folder(tmp_path, "explain"):
        raise OSError("full")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_leaves_is_cleared_away(tmp_path: Path) -> None:
    command = (sys.executable, "-c", _HOLD, str(tmp_path))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        folder = tmp_path / holder.stdout.readline().decode().strip()
        assert sweep_unheld(tmp_path) == 0
        holder.kill()
        holder.wait()
    assert unheld(tmp_path) == [folder]
    assert sweep_unheld(tmp_path) == 1
    assert not folder.exists()


def test_a_folder_that_is_cleared_away_before_it_is_held_is_made_again(tmp_path: Path) -> None:
    """Whoever sweeps may see it in the moment between its making and its lock."""
    folder = tmp_path / "asked" / "standing-1"
    done = threading.Event()

    def sweep() -> None:
        while not done.is_set():
            sweep_unheld(folder.parent)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for _ in range(200):
            with held_folder(folder):
                assert is_held(folder)
                (folder / "file").touch()
    finally:
        done.set()
        sweeper.join()


def test_old_uploads_go_whole_and_young_ones_stay(tmp_path: Path) -> None:
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    old = time.time() - KEEP_UPLOADS_S - 60
    for name, is_old in {
        "gone.data": True, "gone.json": True, "finished.json": True, "begun.new": True,
        "slow.json": True, "slow.data": False, "young.data": False,
    }.items():  # fmt: skip
        (uploads / name).touch()
        if is_old:
            os.utime(uploads / name, (old, old))
    (tmp_path / "a.part").touch()
    assert sweep_spool(tmp_path, older_than_s=0.0) == 5
    assert sorted(path.name for path in uploads.iterdir()) == [
        "slow.data", "slow.json", "young.data",
    ]  # fmt: skip
    assert not (tmp_path / "a.part").exists()

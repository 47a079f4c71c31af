"""Folders of payloads, held by a lock for as long as their starter lives.

Whoever is killed leaves its folder behind; that nobody holds it tells others that it may go.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Make it anew, and let others see that it is in use until the block, or this process, ends."""
    descriptor = _make(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _make(folder: Path) -> int:
    """A locked descriptor of a new folder; again, where it was cleared away before the lock."""
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)


@contextmanager
def own_folder(parent: Path, what: str) -> Iterator[Path]:
    """A new held folder below `parent`, which goes with the block; `what` begins its name."""
    folder = parent / f"{what}-{secrets.token_hex(8)}"
    try:
        with held_folder(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_held(folder: Path) -> bool:
    """Whether a process is within `held_folder`; False also if there is no such folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def unheld(parent: Path) -> list[Path]:
    """Folders below `parent` whose process was killed."""
    return [path for path in sorted(parent.glob("*")) if not is_held(path)]


def sweep_unheld(parent: Path) -> int:
    """Remove them; give how many."""
    found = unheld(parent)
    for path in found:
        shutil.rmtree(path, ignore_errors=True)
    return len(found)

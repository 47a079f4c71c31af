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
        with _locked(folder, wait=True) as is_free:
            if is_free:
                shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except (FileExistsError, FileNotFoundError):
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_at(descriptor, folder):
            return descriptor
        os.close(descriptor)


def _is_at(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        return False


@contextmanager
def _locked(folder: Path, *, wait: bool = False) -> Iterator[bool | None]:
    """Whether the folder's lock could be had, and it is for as long as the block lasts; None: there
    is no such folder.

    A folder is cleared away under its lock alone: else a new one of this name would go instead.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield None
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True if _is_at(descriptor, folder) else None
    finally:
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
    with _locked(folder) as is_free:
        return is_free is False


def unheld(parent: Path) -> list[Path]:
    """Folders below `parent` whose process was killed."""
    return [path for path in sorted(parent.glob("*")) if not is_held(path)]


def sweep_unheld(parent: Path) -> int:
    """Remove them; give how many.

    Each under its lock: who is about to hold it waits, and makes it anew.
    """
    count = 0
    for path in unheld(parent):
        with _locked(path) as is_free:
            if is_free:
                shutil.rmtree(path, ignore_errors=True)
                count += 1
    return count

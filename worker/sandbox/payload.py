"""How a payload of ours is started: a Python module in a process of its own, on its own folders."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from worker.sandbox.compiled_loops import copy_compiled_loops
from worker.sandbox.isolation import Mounts
from worker.sandbox.wire import ProtocolError

_IMPORT_ROOT = Path(__file__).parents[2]
_NUMBA = "numba"


@dataclass(frozen=True, slots=True)
class Workplace:
    """Folders of one payload, all below one that its starter removes."""

    root: Path

    @property
    def given(self) -> Path:
        """What the payload reads; read-only where something can make it so."""
        return self.root / "given"

    @property
    def out(self) -> Path:
        """What it leaves."""
        return self.root / "out"

    @property
    def temp(self) -> Path:
        """Its home and temporary folder."""
        return self.root / "temp"

    @property
    def build(self) -> Path:
        """Where it compiles C.  Nothing is ever taken over from here: another payload would run
        what this one may have put there."""
        return self.root / "build"

    @property
    def loops(self) -> Path:
        """Where compiled loops are, and numba puts what it compiles."""
        return self.temp / _NUMBA

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.root / "output.log"

    def create(self) -> None:
        """Make the folders, and put the compiled loops where numba looks for them."""
        for folder in (self.given, self.out, self.temp, self.build):
            folder.mkdir(parents=True)
        copy_compiled_loops(self.loops)

    def view(self, search_path: str, hidden: Path, more_read_only: tuple[Path, ...] = ()) -> Mounts:
        """What the payload sees."""
        return Mounts(
            (self.given, *more_read_only),
            (self.out, self.temp, self.build),
            (hidden,),
            search_path,
        )


def payload_argv(module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module of ours."""
    return (sys.executable, "-P", "-m", module, *arguments)


def payload_env(
    place: Workplace,
    search_path: str,
    *,
    threads: int = 1,
    python_path: tuple[str, ...] = (),
) -> Mapping[str, str]:
    """Its whole environment.  Nothing of the starter's own: that may hold credentials."""
    return {
        "PATH": search_path,
        "PYTHONPATH": ":".join((str(_IMPORT_ROOT), *python_path)),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONFAULTHANDLER": "1",
        "LANG": "C.UTF-8",
        "HOME": str(place.temp),
        "TMPDIR": str(place.temp),
        "NUMBA_CACHE_DIR": str(place.loops),
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        # Each arena reserves address space, which is what the memory limit counts.
        "MALLOC_ARENA_MAX": "2",
    }


def open_left(folder: Path, file_name: str) -> BinaryIO:
    """Open a file that a child left below `folder`, which it may be changing at this moment.

    Each folder on the way is opened within the one before it, and none through a link: a check of
    the path first would leave time to put a link there.

    Raises:
        ProtocolError: the name leaves the folder, or is not a regular file.
    """
    relative = Path(file_name)
    if relative.is_absolute() or not relative.parts or ".." in relative.parts:
        raise ProtocolError(f"file {file_name!r} is outside the output folder")
    folders: list[int] = []
    try:
        folders.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
        for name in relative.parts[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            folders.append(os.open(name, flags, dir_fd=folders[-1]))
        # O_NONBLOCK: opening a named pipe must not hang the worker.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(relative.parts[-1], flags, dir_fd=folders[-1])
    except (OSError, ValueError) as error:
        raise ProtocolError(f"file {file_name!r} cannot be read: {error}") from error
    finally:
        for opened in folders:
            os.close(opened)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ProtocolError(f"file {file_name!r} is not a regular file")
    return os.fdopen(descriptor, "rb")

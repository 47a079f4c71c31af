"""The files that a gate file names: of a folder, or of a commit of the repository it is in.

Paths are relative to the gate file's folder, with `/`.  Nothing is written into the repository.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

LFS_HEAD = b"version https://git-lfs.github.com/spec/"
_LFS_MOST = 1024
"""A pointer of Git LFS is shorter."""
_WILD = frozenset("*?[")


class Tree(Protocol):
    """Files to choose from and to read."""

    def names(self, pattern: str) -> list[str]:
        """Paths that a glob matches, sorted."""
        ...

    def file(self, path: str) -> Path | None:
        """The file on this machine; None: there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder as it is."""

    root: Path

    def names(self, pattern: str) -> list[str]:
        if not _is_glob(pattern):
            return [pattern] if (self.root / pattern).is_file() else []
        fixed = Path(*_fixed(pattern))
        found: list[str] = []
        for where, folders, files in os.walk(self.root / fixed):
            folders[:] = sorted(name for name in folders if name != ".git")
            at = Path(where).relative_to(self.root)
            found += [(at / name).as_posix() for name in files]
        return sorted(path for path in found if matches(path, pattern))

    def file(self, path: str) -> Path | None:
        found = self.root / path
        return found if found.is_file() else None


def matches(path: str, pattern: str) -> bool:
    """Whether a glob matches a path: `*` and `?` within a part, `**` any number of parts."""
    return _match(path.split("/"), pattern.split("/"))


def _match(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(_match(parts[k:], patterns[1:]) for k in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], patterns[0]) and _match(parts[1:], patterns[1:])


def _is_glob(pattern: str) -> bool:
    return bool(_WILD & set(pattern))


def _fixed(pattern: str) -> list[str]:
    """Parts before the first that is a pattern."""
    parts = pattern.split("/")
    first = next(k for k, part in enumerate(parts) if _is_glob(part))
    return parts[:first]


def is_lfs_pointer(path: Path) -> bool:
    """Whether a file is what Git LFS leaves where the contents were not fetched."""
    if path.stat().st_size > _LFS_MOST:
        return False
    return path.read_bytes().startswith(LFS_HEAD)

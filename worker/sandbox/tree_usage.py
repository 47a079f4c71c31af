"""What a tree of processes uses in total.  Standard library only; Linux.

The kernel limits one process or one file; a payload that starts many processes or writes many
files has as many limits.  So the supervisor adds up, a few times a second.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_BLOCK_BYTES = 512
_ENTRY_BYTES = 4096
"""An empty file or folder costs the file system this much too."""
MOST_ENTRIES = 65_536
"""Files and folders a payload may keep: counting more would take too long."""


def parents() -> dict[int, int]:
    """Read the parent of every process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    found[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
    return found


def descendants(root: int) -> list[int]:
    """List the processes below `root`."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found, frontier = [], [root]
    while frontier:
        below = children.get(frontier.pop(), [])
        found += below
        frontier += below
    return found


def memory_bytes(processes: Sequence[int], enough: int) -> int:
    """Resident memory of `processes` together.

    Pages that several share count once each time; only where that is more than `enough` are they
    counted by shares, which costs a walk over all pages.
    """
    total = sum(map(_resident_bytes, processes))
    return total if total <= enough else sum(map(_share_bytes, processes))


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0  # it is gone


def _share_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # gone, or a kernel without this file: 0 for the former, all pages for the latter
    return _resident_bytes(pid)


@dataclass(frozen=True, slots=True)
class Files:
    """What a payload keeps on disk."""

    num_bytes: int
    entries: int


def files(folders: Sequence[str], processes: Sequence[int]) -> Files:
    """Space of everything in `folders`, and of removed files that `processes` still hold.

    Counting stops when there are more than `MOST_ENTRIES`.
    """
    num_bytes = entries = 0
    seen: set[tuple[int, int]] = set()
    for status in _statuses(folders):
        entries += 1
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            num_bytes += max(status.st_blocks * _BLOCK_BYTES, _ENTRY_BYTES)
        if entries > MOST_ENTRIES:
            return Files(num_bytes, entries)
    for pid in processes:
        for where, size in (*_opened(pid), *_mapped(pid)):
            if where not in seen:
                seen.add(where)
                num_bytes += size
    return Files(num_bytes, entries)


def _statuses(folders: Sequence[str]) -> Iterator[os.stat_result]:
    frontier = list(folders)
    while frontier:
        try:
            with os.scandir(frontier.pop()) as entries:
                for entry in entries:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue  # it is gone
                    yield status
                    if stat.S_ISDIR(status.st_mode):
                        frontier.append(entry.path)
        except OSError:
            continue


def _opened(pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Removed files that a process has open: which, and the bytes they occupy."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        try:
            status = os.stat(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
            yield (status.st_dev, status.st_ino), status.st_blocks * _BLOCK_BYTES


def _mapped(pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Removed files that a process has mapped: which, and the bytes up to the mapping's end.

    Anonymous shared memory shows as such a file too; it is memory, and counted as that.
    """
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.endswith(" (deleted)\n") and "/dev/zero (deleted)" not in line:
                    span, _, offset, device, inode = line.split(maxsplit=5)[:5]
                    low, high = (int(text, 16) for text in span.split("-"))
                    major, minor = (int(text, 16) for text in device.split(":"))
                    size = int(offset, 16) + high - low
                    yield (os.makedev(major, minor), int(inode)), size
    except OSError:
        return

"""A disk that can be full: a small tmpfs where mounting is allowed.

Elsewhere a library in front of the C library's calls says ENOSPC for what lies below a folder while
a file named `full` stands beside it, and where that cannot be built either, no disk is full.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_PIECE = bytes(1 << 20)
_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int is_full(int fd) {
  const char *flag = getenv("FAULTS_FULL"), *below = getenv("FAULTS_BELOW");
  char link[64], path[PATH_MAX];
  if (!flag || !below || access(flag, F_OK)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return !strncmp(path, below, strlen(below));
}
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
ssize_t write(int fd, const void *bytes, size_t count) {
  if (is_full(fd)) { errno = ENOSPC; return -1; }
  return REAL(write)(fd, bytes, count);
}
ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
  if (is_full(fd)) { errno = ENOSPC; return -1; }
  return REAL(pwrite)(fd, bytes, count, at);
}
ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
  if (is_full(fd)) { errno = ENOSPC; return -1; }
  return REAL(pwrite64)(fd, bytes, count, at);
}
"""


class Disk:
    """A folder whose disk is full while it is told to be."""

    def __init__(self, folder: Path, mib: int) -> None:
        """`folder` is made; `mib` is the size of its tmpfs."""
        folder.mkdir(parents=True)
        self.folder = folder
        self._ballast = folder / "ballast"
        self._flag = folder.parent / f"{folder.name}.full"
        self._library = folder.parent / f"{folder.name}.shim.so"
        self.is_mounted = _runs("mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder))
        self.is_injected = not self.is_mounted and self._build()

    def _build(self) -> bool:
        compiler = shutil.which("cc") or shutil.which("gcc")
        source = self._library.with_suffix(".c")
        source.write_text(_SHIM)
        command = (str(compiler), "-shared", "-fPIC", "-O1", "-o", str(self._library), str(source))
        return compiler is not None and _runs(*command, "-ldl")

    @property
    def words(self) -> str:
        """How it becomes full."""
        if self.is_mounted:
            return "a tmpfs that is filled"
        return "ENOSPC injected by a library" if self.is_injected else "never: cannot be made here"

    @property
    def environment(self) -> dict[str, str]:
        """What processes need that write to it."""
        if not self.is_injected:
            return {}
        return {"LD_PRELOAD": str(self._library), "FAULTS_FULL": str(self._flag),
                "FAULTS_BELOW": f"{self.folder}/"}  # fmt: skip

    def fill(self) -> None:
        """From now on nothing more can be written."""
        if self.is_injected:
            self._flag.touch()
        if not self.is_mounted:
            return
        with self._ballast.open("wb", buffering=0) as file:
            piece = _PIECE
            while piece:
                try:
                    file.write(piece)
                except OSError:
                    piece = piece[: len(piece) // 2]

    def empty(self) -> None:
        """There is room again."""
        self._flag.unlink(missing_ok=True)
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount; its files are gone."""
        if self.is_mounted:
            _runs("umount", str(self.folder)) or _runs("umount", "-l", str(self.folder))


def _runs(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False

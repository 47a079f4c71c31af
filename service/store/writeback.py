"""Start writing a growing file to disk while it is still growing.

Left alone, the kernel keeps a file of a gigabyte in memory until the final sync, which then waits
for the whole disk write after the last byte has arrived.
"""

from __future__ import annotations

import os

WINDOW_BYTES = 8 << 20


class EarlyWriteback:
    """Follows one writer; hints only, so it changes no content and promises no durability."""

    def __init__(self, descriptor: int, start: int = 0) -> None:
        self._descriptor = descriptor
        self._done = start
        self._is_known = hasattr(os, "posix_fadvise")  # not on macOS

    def reached(self, size: int) -> None:
        """Say that the file has `size` bytes, all handed to the kernel."""
        if self._is_known and size - self._done >= WINDOW_BYTES:
            # The advice writes dirty pages back without waiting; those on their way stay cached.
            os.posix_fadvise(
                self._descriptor, self._done, size - self._done, os.POSIX_FADV_DONTNEED
            )
            self._done = size

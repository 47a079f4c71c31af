"""A C compiler that finds the disk full says nothing about the code that it was given."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from worker.compiler.package import build
from worker.sandbox.answering import failure_frame


def test_a_full_disk_is_told_as_one(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'unit0.s: No space left on device' >&2\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(OSError, match="No space left") as caught:
        build.flags_for(compiler)
    assert caught.value.errno == errno.ENOSPC
    assert failure_frame(caught.value)["problem"]["code"] == "TW-SVC-030"

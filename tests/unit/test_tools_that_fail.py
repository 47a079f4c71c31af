"""A C compiler that finds the disk full, or is killed, says nothing of the code it was given."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from worker.compiler.errors import CompilerError
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


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("echo 'cc: fatal error: Killed signal terminated program cc1' >&2; exit 1", "TW-SVC-031"),
        ("echo 'error: unable to execute command: Killed' >&2; exit 254", "TW-SVC-031"),
        ("kill -9 $$", "TW-SVC-031"),
        ("kill -11 $$", "TW-INT-001"),
        ("echo 'error: expected expression' >&2; exit 1", "TW-INT-001"),
    ],
    ids=["gcc", "clang", "itself", "crash", "code"],
)
def test_who_was_killed_rejected_nothing(tmp_path: Path, script: str, code: str) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    with pytest.raises(CompilerError) as caught:
        build.flags_for(compiler)
    assert caught.value.code == code

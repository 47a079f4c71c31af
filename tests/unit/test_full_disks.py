"""A full disk passes: it is nobody's refusal, and no fault of a strategy."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.api import spool
from service.errors import TooLarge, Unavailable
from worker.compiler.errors import DISK_FULL
from worker.compiler.faults import Fault, attempt

MIB = 1 << 20


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_strategy_that_meets_a_full_disk_is_not_blamed(number: int) -> None:
    """Another way would end well, and with other bytes than the next run of the same."""

    def work() -> int:
        raise OSError(number, os.strerror(number))

    with pytest.raises(OSError, match=os.strerror(number)):
        attempt("naive", "1", "schedule", work)


def test_a_strategy_whose_file_is_gone_is_stopped() -> None:
    def work() -> int:
        raise FileNotFoundError(errno.ENOENT, "gone")

    found = attempt("naive", "1", "schedule", work)
    assert isinstance(found, Fault)
    assert found.is_passing


def _disk(monkeypatch: pytest.MonkeyPatch, *, size_bytes: int, free_bytes: int) -> None:
    stats = SimpleNamespace(f_bavail=free_bytes // MIB, f_blocks=size_bytes // MIB, f_frsize=MIB)
    monkeypatch.setattr(spool.os, "statvfs", lambda folder: stats)


def test_a_body_waits_for_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _disk(monkeypatch, size_bytes=1000 * MIB, free_bytes=0)
    with pytest.raises(Unavailable) as refused:
        spool.check_declared(554, limit_bytes=10 * MIB, folder=tmp_path)
    assert refused.value.to_problem()["code"] == DISK_FULL
    assert (refused.value.to_problem()["limit"], refused.value.to_problem()["actual"]) == (0, 554)
    assert refused.value.to_problem()["retryable"] is True
    assert refused.value.headers["Connection"] == "close"  # nobody reads what follows


def test_a_body_that_no_disk_here_holds_is_too_large(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _disk(monkeypatch, size_bytes=100 * MIB, free_bytes=100 * MIB)
    with pytest.raises(TooLarge) as refused:
        spool.check_declared(40 * MIB, limit_bytes=1000 * MIB, folder=tmp_path)
    assert refused.value.to_problem()["limit"] == 36 * MIB
    spool.check_declared(36 * MIB, limit_bytes=1000 * MIB, folder=tmp_path)

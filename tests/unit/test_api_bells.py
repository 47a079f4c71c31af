"""Deferred doorbells: batched, off the request path, none forgotten at the end."""

from __future__ import annotations

import threading

from sqlalchemy.exc import OperationalError

from service.api.bells import BATCH, DeferredOutbox
from service.outbox import Outbox


class Recorder(Outbox):
    """Stands for the real outbox; may be held up or fail."""

    def __init__(self, *, fail_first: bool = False) -> None:
        self.gate = threading.Event()
        self.batches: list[tuple[str, ...]] = []
        self.fail_first = fail_first

    def flush(self, item_ids: tuple[str, ...] | None = None) -> int:
        self.gate.wait(10)
        if self.fail_first:
            self.fail_first = False
            raise OperationalError("UPDATE", {}, Exception("locked"))
        assert item_ids is not None
        self.batches.append(item_ids)
        return len(item_ids)


def test_submits_do_not_wait_and_bells_are_rung_in_batches() -> None:
    inner = Recorder()
    bells = DeferredOutbox(inner)
    names = [f"item{i}" for i in range(BATCH + 5)]
    for name in names:
        assert bells.flush((name,)) == 0
    assert inner.batches == []
    inner.gate.set()
    bells.close()
    assert [name for batch in inner.batches for name in batch] == names
    assert max(map(len, inner.batches)) <= BATCH
    assert len(inner.batches) <= 3


def test_a_database_fault_does_not_end_the_ringing() -> None:
    inner = Recorder(fail_first=True)
    inner.gate.set()
    bells = DeferredOutbox(inner)
    bells.flush(("lost",))
    bells.close()
    bells.flush(("next",))
    bells.close()
    assert inner.batches == [("next",)]


def test_closing_without_bells_is_fine() -> None:
    DeferredOutbox(Recorder()).close()

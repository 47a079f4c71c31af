"""When a server says that it is not ready: nobody works, though there is work."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from service.api import readiness
from service.api.readiness import STALLED_S, Readiness
from service.errors import Unavailable
from service.settings import Settings, Traces
from service.tracing import Tracing


def checked(monkeypatch: pytest.MonkeyPatch, **stats: Any) -> dict[str, Any]:
    found = SimpleNamespace(
        **{
            "workers_alive": 1,
            "oldest_ready_s": 0.0,
            "quiet_s": None,
            "items_by_state": (),
            **stats,
        }
    )
    monkeypatch.setattr(readiness.query, "queue_stats", lambda _: found)
    monkeypatch.setattr(readiness.query, "list_workers", lambda _: ())
    off = Tracing(Settings(traces=Traces()))
    unused: Any = SimpleNamespace(head=lambda _: None)
    return asyncio.run(Readiness(unused, unused, None, off).check())


def test_work_that_waits_behind_other_work_is_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker and three long jobs are no fault: a balancer must not take the server away."""
    facts = checked(
        monkeypatch, oldest_ready_s=STALLED_S * 9, items_by_state=(("leased", 1), ("ready", 2))
    )
    assert facts["oldest_ready_s"] == STALLED_S * 9


def test_between_two_items_nothing_is_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by 20 minutes of hostile requests: 503 while the queue was being worked off."""
    checked(monkeypatch, oldest_ready_s=STALLED_S * 2, quiet_s=0.4, items_by_state=(("ready", 2),))


@pytest.mark.parametrize(
    ("stats", "said"),
    [
        (
            {"oldest_ready_s": STALLED_S + 1, "items_by_state": (("ready", 2),)},
            "no worker takes it",
        ),
        (
            {
                "oldest_ready_s": STALLED_S + 9,
                "quiet_s": STALLED_S + 1,
                "items_by_state": (("ready", 2),),
            },
            "no worker takes it",
        ),
        ({"workers_alive": 0}, "no worker is alive"),
    ],
)
def test_nobody_works(monkeypatch: pytest.MonkeyPatch, stats: dict[str, Any], said: str) -> None:
    with pytest.raises(Unavailable, match=said):
        checked(monkeypatch, **stats)

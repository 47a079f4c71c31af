"""Streams of one sweep share what they read."""

from __future__ import annotations

import asyncio

import pytest

from service.api.sweep_looks import SweepLooks
from service.jobs.sweeps import Sweep
from service.states import SweepState
from service.store.records import SweepRecord


def sweep(sweep_id: str) -> Sweep:
    record = SweepRecord(
        id=sweep_id, owner="local", label=None, fields=(), options={}, priority=0,
        wall_limit_s=None, traceparent=None, state=SweepState.RUNNING, items_total=0, created=0.0,
        finished=None, cancel_requested=None, event_seq=1, explore=None,
    )  # fmt: skip
    return Sweep(record, ())


class Counted:
    """A database that counts who asks."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken = False

    def find(self, sweep_id: str) -> Sweep | None:
        self.asked.append(sweep_id)
        if self.broken:
            raise OSError("away")
        return None if sweep_id == "none" else sweep(sweep_id)


def test_a_hundred_streams_read_once() -> None:
    database = Counted()

    async def all_of_them() -> None:
        looks = SweepLooks(database.find, pace_s=60.0)
        found = await asyncio.gather(*(looks.look("a") for _ in range(100)), looks.look("none"))
        assert {look.sweep.record.id for look in found if look is not None} == {"a"}
        assert found[-1] is None
        assert sorted(database.asked) == ["a", "none"]

    asyncio.run(all_of_them())


def test_a_look_is_not_older_than_its_pace() -> None:
    database = Counted()

    async def twice() -> None:
        looks = SweepLooks(database.find, pace_s=0.0)
        await looks.look("a")
        await looks.look("a")
        assert database.asked == ["a", "a"]

    asyncio.run(twice())


def test_who_goes_away_takes_nobody_along_and_a_fault_is_not_kept() -> None:
    database = Counted()

    async def one_leaves() -> None:
        looks = SweepLooks(database.find, pace_s=60.0)
        leaving, staying = (asyncio.create_task(looks.look("a")) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await staying) is not None
        database.broken = True
        for _ in range(2):
            with pytest.raises(OSError, match="away"):
                await looks.look("b")
        assert database.asked == ["a", "b", "b"]

    asyncio.run(one_leaves())

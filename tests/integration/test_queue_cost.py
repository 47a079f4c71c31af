"""What is asked of the queue costs the same whether ten jobs wait in it or a thousand.

SQLite counts the instructions of its own machine, so cost is a number and no time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from service_fixtures import Desk, MakeSettings
from sqlalchemy import event, insert, select, update
from sqlalchemy.orm import Session

from service.jobs import claim as protocol
from service.settings import Settings
from service.store.records import Standing
from service.store.repos import items, jobs, workers
from service.store.repos.rows import few_lengths
from service.store.tables import ItemRow, JobItemRow, JobRow

OpenDesk = Callable[[Settings], Desk]
MANY = 1000
OFFER = "a 1\nb 1"
Ask = Callable[[Session, str], object]


def _claim(session: Session, item_id: str) -> object:
    return items.claim(session, "me", 10.0, 1.0, ["a 1"])


def _mark(session: Session, item_id: str) -> object:
    """As after a submit: the item that came last."""
    return items.mark_dispatched(
        session, older_than_s=30.0, limit=20, served=["a 1"], item_ids=(item_id,)
    )


def _nudge(session: Session, item_id: str) -> object:
    return items.mark_dispatched(session, older_than_s=0.0, limit=1, served=["a 1"])


def _read(session: Session, item_id: str) -> object:
    return jobs.get(session, item_id.partition(":")[0])


ASKED: dict[str, Ask] = {
    "claim": _claim,
    "mark the last": _mark,
    "nudge": _nudge,
    "what is wanted": lambda session, item_id: items.wants_of_ready(session),
    "promote": lambda session, item_id: items.promote(session),
    "who is alive": lambda session, item_id: workers.offers_alive(session, 60.0),
    "read a job": _read,
}


@pytest.fixture
def desk(make_settings: MakeSettings, open_desk: OpenDesk) -> Desk:
    return open_desk(make_settings(redispatch_s=30.0))


def _fill(desk: Desk, count: int) -> str:
    """So many queued jobs like one that was submitted; the id of the last one's item."""
    first = desk.submit().id
    with desk.services.database.write() as session:
        rows = {}
        for table in (JobRow, ItemRow, JobItemRow):
            columns = table.__table__.c
            rows[table] = dict(session.execute(select(*columns)).mappings().first() or {})
        rows[ItemRow] |= {"strategies": "a 1", "dispatched_at": None}
        session.connection().exec_driver_sql("UPDATE work_item SET strategies = 'a 1'")
        for number in range(count):
            job, item = f"{first}{number:06d}", f"{first}{number:06d}:compile"
            later = {"created": rows[JobRow]["created"] + number}
            session.execute(insert(JobRow).values({**rows[JobRow], "id": job, **later}))
            session.execute(insert(ItemRow).values({**rows[ItemRow], "id": item, **later}))
            session.execute(
                insert(JobItemRow).values({**rows[JobItemRow], "job_id": job, "item_id": item})
            )
    return item


def _instructions(desk: Desk, ask: Ask, item_id: str) -> int:
    count = 0

    def counted() -> int:
        nonlocal count
        count += 1
        return 0

    with desk.services.database.write() as session:
        driver = session.connection().connection.driver_connection
        assert driver is not None
        driver.set_progress_handler(counted, 1)
        try:
            ask(session, item_id)
        finally:
            driver.set_progress_handler(None, 1)
        session.rollback()
    return count


@pytest.mark.parametrize("asked", ASKED)
def test_a_long_queue_costs_no_more(asked: str, desk: Desk) -> None:
    few = _instructions(desk, ASKED[asked], _fill(desk, 10))
    desk.submit(label="another")
    many = _instructions(desk, ASKED[asked], _fill(desk, MANY))
    assert many <= 1.2 * few + 40, (few, many)


def test_unfinished_jobs_are_counted_by_an_index_alone(desk: Desk) -> None:
    few = _instructions(
        desk, lambda session, _: jobs.count_active(session, "local"), _fill(desk, 10)
    )
    count = _instructions(
        desk, lambda session, _: jobs.count_active(session, "local"), _fill(desk, MANY)
    )
    assert count - few <= 5 * (MANY + 1), (few, count)


def test_what_is_wanted_is_told_once_in_order(desk: Desk) -> None:
    _fill(desk, 30)
    with desk.services.database.write() as session:
        assert items.wants_of_ready(session) == ["a 1"]
        session.connection().exec_driver_sql(
            "UPDATE work_item SET strategies = CASE rowid % 3 WHEN 0 THEN '' WHEN 1 THEN 'b 1'"
            " ELSE 'a 1' END"
        )
        assert items.wants_of_ready(session) == ["", "a 1", "b 1"]
        session.connection().exec_driver_sql("UPDATE work_item SET state = 'done'")
        assert items.wants_of_ready(session) == []


def test_the_oldest_of_the_highest_priority_is_claimed(desk: Desk) -> None:
    names = [desk.submit(priority=p, label=f"{n}").id for n, p in enumerate((0, 5, 5, -1))]
    claimed = []
    while (held := protocol.claim(desk.services.database, "me", 10.0)) is not None:
        claimed.append(held.job.id)
    assert claimed == [names[1], names[2], names[0], names[3]]


def test_no_more_bells_are_out_than_slots(desk: Desk) -> None:
    """Of many submits; what is left unrung is rung by who ends an item, or by a reconciler."""
    services = desk.services
    with services.database.write() as session:
        workers.register(
            session, worker_id="w", host="h", pid=1, slots=3, version="0", sandbox_tier="",
            strategies="",
        )  # fmt: skip
    made = [desk.submit(label=f"{number}").id for number in range(6)]

    def rung() -> list[str]:
        with services.database.read() as session:
            query = select(ItemRow.id).where(ItemRow.dispatches > 0).order_by(ItemRow.created)
            return [item_id.partition(":")[0] for item_id in session.scalars(query)]

    assert rung() == made[:3]
    assert protocol.claim(services.database, "w", 10.0) is not None
    made.append(desk.submit(label="after a claim").id)
    assert rung() == [*made[:3], made[6]]
    with services.database.write() as session:  # nobody has answered: they may have been lost
        session.execute(update(ItemRow).values(dispatched_at=ItemRow.dispatched_at - 6.0))
    made.append(desk.submit(label="later").id)
    assert rung() == [*made[:3], *made[6:]]
    assert services.outbox.flush() == 3  # a reconciler rings for the rest
    assert rung() == made


def test_the_watched_are_asked_for_in_few_statements(desk: Desk) -> None:
    """However many: SQLite keeps each that is different, and a long one takes much room."""
    ids = [desk.submit().id for _ in range(3)]
    others = [f"job_{number:026d}" for number in range(97)]
    seen: set[str] = set()

    def note(conn: object, cursor: object, statement: str, *_: object) -> None:
        seen.add(statement)

    database = desk.services.database
    event.listen(database.engine, "before_cursor_execute", note)
    with database.read() as session:
        for count in range(len(others) + 1):
            found = jobs.standings(session, {*ids, *others[:count]})
            assert found == dict.fromkeys(ids, Standing(1, is_over=False))
        assert jobs.standings(session, []) == {}
    event.remove(database.engine, "before_cursor_execute", note)
    assert len([one for one in seen if "event_seq" in one]) == 7  # 4 to 128 names, and none


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9, 1000])
def test_few_lengths_name_the_same(count: int) -> None:
    names = [str(number) for number in range(count)]
    found = few_lengths(reversed(names))
    assert set(found) == set(names) and found == sorted(found)
    assert len(found).bit_count() == 1 and count <= len(found) < 2 * count

"""Foreign specs are read apart: limited, killable, replaced, and the event loop stays free."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from api_fixtures import PRESET, Serve, assert_problem

from service.api import spec_readers
from worker.compiler.errors import DISK_FULL
from worker.sandbox import compiled_loops
from worker.sandbox import standing as module
from worker.sandbox.isolation import IsolationChoice
from worker.sandbox.sandbox import Limits
from worker.sandbox.standing import Ended, Overdue, Standing

MIB = 1 << 20
YAML = {"Content-Type": "application/yaml"}
SPEC = f"inherits: {PRESET}\nname: mine\n"


@pytest.fixture
def standing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standing]:
    """Our payload in the place of one of `worker`: a module that the child can import."""
    source = Path(__file__).parents[1] / "hanging_payload.py"
    shutil.copy(source, tmp_path / source.name)
    real = module.payload_env
    monkeypatch.setattr(
        module, "payload_env", lambda place, path: real(place, path, python_path=(str(tmp_path),))
    )
    limits = Limits(60, 300 * MIB, 10 * MIB, 8, MIB)
    with Standing(
        "hanging_payload", limits=limits, choice=IsolationChoice.LIMITS,
        search_path="/usr/bin", hidden=tmp_path / "hidden", parent=tmp_path / "asked",
    ) as made:  # fmt: skip
        yield made


def process(standing: Standing) -> int:
    return int(standing.ask({"op": "echo"}, b"", 20).head["answer"]["process"])


def test_one_process_answers_until_it_fails(standing: Standing) -> None:
    first = process(standing)
    assert process(standing) == first
    started = time.monotonic()
    with pytest.raises(Overdue):
        standing.ask({"op": "hang"}, b"", 0.5)
    assert time.monotonic() - started < 5
    second = process(standing)
    assert second != first
    for op in ("end", "nonsense", "memory"):
        with pytest.raises(Ended) as ended:
            standing.ask({"op": op}, b"", 20)
        assert ended.value.report.out_of_memory == (op == "memory")
    assert process(standing) != second


def test_one_that_died_or_grew_old_while_idle_is_replaced_unseen(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = process(standing)
    os.kill(first, signal.SIGKILL)
    time.sleep(0.5)
    second = process(standing)
    assert second != first
    later = time.monotonic() + 31  # over half of its time
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: later))
    third = process(standing)
    assert third != second
    assert process(standing) == third


def test_a_spec_is_read_by_a_process_that_stays(serve: Serve) -> None:
    served = serve(worker=False)
    stored = served.http.post("/v1/hardware", content=SPEC, headers=YAML)
    assert stored.status_code == 201, stored.text
    assert stored.json()["document"]["name"] == "mine"
    assert (
        served.http.post("/v1/hardware", json={"inherits": PRESET, "name": "mine"}).json()["id"]
        == stored.json()["id"]
    ), "one code for YAML and JSON"
    job = served.submit(hardware={"inherits": PRESET, "name": "mine"})
    assert job["hardware"] == stored.json()["id"]
    found = served.http.post("/v1/hardware/lint", content=SPEC, headers=YAML).json()
    assert (found["valid"], found["machine_digest"]) == (True, stored.json()["machine_digest"])
    refused = served.http.post("/v1/hardware", content=f"{SPEC}nonsense: 1\n", headers=YAML)
    assert assert_problem(refused, 422, "TW-SPEC-001")["errors"][0]["pointer"] == "/nonsense"
    broken = served.http.post("/v1/hardware", content=b"name: \xff\n", headers=YAML)
    assert_problem(broken, 422, "TW-SPEC-004")


def test_a_full_disk_is_said_and_passes(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where a reader is begun; what was half made of it goes."""
    made = compiled_loops.folder_of(tmp_path / "loops") / "order"
    made.mkdir(parents=True)
    (made / "sync.nbi").write_bytes(b"")
    monkeypatch.setattr(compiled_loops, "home", lambda: tmp_path / "loops")
    real = shutil.copyfile

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    served = serve(worker=False)
    monkeypatch.setattr(shutil, "copyfile", full)
    refused = served.http.post("/v1/hardware", content=SPEC, headers=YAML)
    assert_problem(refused, 503, DISK_FULL)
    assert not list(tmp_path.rglob("standing-*"))
    monkeypatch.setattr(shutil, "copyfile", real)
    assert served.http.post("/v1/hardware", content=SPEC, headers=YAML).status_code == 201


def test_a_spec_that_takes_too_long_is_killed_while_the_server_answers(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than readers; whoever waits holds no thread and leaves the loop alone."""
    hold = threading.Event()
    real = Standing.ask

    def late(self: Standing, head: object, body: bytes, limit_s: float) -> object:
        if b"slow" in body:
            hold.wait(20)
            raise Overdue
        return real(self, head, body, limit_s)  # type: ignore[arg-type]  # only passed on

    monkeypatch.setattr(Standing, "ask", late)
    served = serve(worker=False)

    async def crowd() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
            slow = [
                asyncio.create_task(
                    http.post("/v1/hardware/lint", content=f"name: slow{k}", headers=YAML)
                )
                for k in range(60)
            ]
            await asyncio.sleep(0.5)
            started = time.monotonic()
            for path in ("/healthz", "/v1/jobs", "/v1/models"):
                assert (await http.get(path)).status_code == 200
            assert time.monotonic() - started < 5
            hold.set()
            return list(await asyncio.gather(*slow))

    for response in asyncio.run(crowd()):
        problem = assert_problem(response, 422, "TW-SPEC-004")
        assert problem["limit"] == spec_readers.LIMIT_S


def test_who_waits_too_long_for_a_reader_is_told_to_come_back(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = threading.Event()
    entered = threading.Semaphore(0)

    def late(*_: object) -> object:
        entered.release()
        hold.wait(20)
        raise Overdue

    monkeypatch.setattr(Standing, "ask", late)
    monkeypatch.setattr(spec_readers, "WAIT_S", 0.2)
    served = serve(worker=False)
    threads = [
        threading.Thread(
            target=lambda: httpx.post(
                f"{served.url}/v1/hardware/lint", content="a: 1", headers=YAML
            )
        )
        for _ in range(spec_readers.READERS)
    ]
    for thread in threads:
        thread.start()
    try:
        assert all(entered.acquire(timeout=20) for _ in threads)
        response = served.http.post("/v1/hardware/lint", content="a: 1", headers=YAML)
        assert assert_problem(response, 503, "TW-SVC-005")["retryable"]
        assert response.headers["retry-after"] == "5"
    finally:
        hold.set()
        for thread in threads:
            thread.join()

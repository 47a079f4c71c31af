"""Payloads that try to get out: what each tier keeps in, run as real jobs."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from onnx_models import conv_net
from service_fixtures import Desk, MakeSettings

from service.jobs import query
from service.settings import Settings
from service.states import JobState
from service.store.blobs import put_bytes, read_bytes
from worker.compiler.cache import MemoryCache
from worker.compiler.options import CompileOptions, VerifyMode
from worker.runner.conversation import Conversation, answer
from worker.runner.main import EmbeddedWorker
from worker.sandbox.isolation import IsolationChoice, Tier, isolation
from worker.sandbox.payload import open_left
from worker.sandbox.wire import Message, ProtocolError

OpenDesk = Callable[[Settings], Desk]
SECRET = b"nobody may read this"


@pytest.fixture(params=[pytest.param("limits", marks=pytest.mark.campaign), "auto"])
def tier(request: pytest.FixtureRequest) -> IsolationChoice:
    """Limits alone, and bubblewrap where it works."""
    choice = IsolationChoice(request.param)
    found = isolation(choice)
    if choice is IsolationChoice.AUTO and found.tier is not Tier.BUBBLEWRAP:
        pytest.skip(f"only {found.tier} here: {found.reason}")
    return choice


@pytest.fixture
def bubblewrap() -> IsolationChoice:
    found = isolation()
    if found.tier is not Tier.BUBBLEWRAP:
        pytest.skip(f"only {found.tier} here: {found.reason}")
    return IsolationChoice.BUBBLEWRAP


@pytest.fixture
def listeners(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Sockets of this machine: TCP on loopback, UNIX by path and by abstract name."""
    path, name = str(tmp_path / "socket"), f"@tilewright-test-{os.getpid()}"
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.socket(family))
            for family in (socket.AF_INET, socket.AF_UNIX, socket.AF_UNIX)
        ]
        opened[0].bind(("127.0.0.1", 0))
        opened[1].bind(path)
        opened[2].bind("\0" + name[1:])
        for sock in opened:
            sock.listen()
        yield {"port": opened[0].getsockname()[1], "unix": [path, name]}


def test_nothing_outside_is_read_written_or_reached(
    make_settings: MakeSettings,
    open_desk: OpenDesk,
    tmp_path: Path,
    listeners: dict[str, Any],
    bubblewrap: IsolationChoice,
) -> None:
    settings = make_settings(isolation=bubblewrap, runner="hostile_payloads:explores")
    desk = open_desk(settings)
    secret, kernel = tmp_path / "secret", settings.build_dir / "kernels-1.so"
    secret.write_bytes(SECRET)
    kernel.parent.mkdir(parents=True, exist_ok=True)
    kernel.write_bytes(SECRET)
    blob = put_bytes(desk.services.blobs, SECRET, "text/plain")
    blob_path = next(p for p in settings.data_dir.rglob("*") if blob.sha256 in p.name)
    outside = [secret, kernel, blob_path, settings.data_dir / "tilewright.db"]
    system = ["/etc/shadow", "/etc/passwd", "/proc/1/root/etc/passwd", f"/proc/{os.getpid()}/maps"]
    fresh = [settings.build_dir / "kernels-2.so", settings.data_dir / "planted", Path("/planted"),
             Path("/usr/planted"), Path("/dev/planted"), Path("/etc/planted"),
             Path(pytest.__file__).parent / "planted", Path(isolation.__code__.co_filename).parent
             / "planted.py"]  # fmt: skip
    places = {
        "read": [*map(str, outside), *system],
        "write": [*map(str, outside), *map(str, fresh)],
        "open": [
            "/proc/sys/kernel/core_pattern",
            "/proc/sysrq-trigger",
            "/proc/sys/vm/overcommit_memory",
        ],
        "list": [str(settings.data_dir), "/", "/home", "/etc"],
        "pids": [os.getpid(), os.getppid()],
        **listeners,
    }
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit({"name": "toy", "places": places}).id, timeout_s=60)
    assert job.state is JobState.SUCCEEDED, job.error
    (artifact,) = query.list_artifacts(desk.services.database, job.id)
    said = json.loads(read_bytes(desk.services.blobs, artifact.sha256))
    # The tests' folders lie below /tmp, and the payload has a /tmp of its own that it may write:
    # whether something arrived outside is looked at from outside.
    private = {f"{way} {path}" for way in ("write", "C writes") for path in (*outside, *fresh)
               if path.is_relative_to("/tmp")}  # fmt: skip
    assert [what for what, worked in said["worked"].items() if worked and what not in private] == []
    assert {"tilewright.db", "blobs", "build"}.isdisjoint(said["before"][str(settings.data_dir)])
    assert "shadow" not in said["before"]["/etc"] and "home" not in said["before"]["/"]
    assert not said["before"].get("/home")
    assert said["own"] == {"out": True, "C": True}
    assert not any("TILEWRIGHT" in name or "AWS" in name for name in said["environment"])
    assert (settings.data_dir / "tilewright.db").read_bytes()[:6] == b"SQLite"
    assert blob_path.read_bytes() == kernel.read_bytes() == secret.read_bytes() == SECRET
    assert [path for path in fresh if path.exists()] == []


@pytest.mark.parametrize(
    ("payload", "code", "words"),
    [
        ("crowd_of_memory", "TW-SVC-009", "memory"),
        ("many_files", "TW-SVC-017", "more files"),
        ("held_files", "TW-SVC-017", "more files"),
        ("forks", "TW-SVC-006", "too many processes"),
    ],
)
def test_limits_hold_over_all_processes_and_files(
    payload: str,
    code: str,
    words: str,
    make_settings: MakeSettings,
    open_desk: OpenDesk,
    tier: IsolationChoice,
) -> None:
    settings = make_settings(
        isolation=tier, runner=f"hostile_payloads:{payload}", file_limit_bytes=8 << 20,
        process_limit=64, max_attempts=1,
    )  # fmt: skip
    desk = open_desk(settings)
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id, timeout_s=25)
    assert job.state is JobState.FAILED
    assert job.error is not None and job.error["code"] == code, job.error
    assert words in str(job.error), job.error


@pytest.mark.campaign  # three real compiles
def test_what_a_job_planted_in_the_cache_does_not_reach_the_next(
    make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    """Every entry of the first job is poisoned; the second verifies, and equals an uncached one."""
    memory = Settings.model_fields["memory_base_bytes"].default
    settings = make_settings(runner="planting_payload:plants", memory_base_bytes=memory)
    model = conv_net().SerializeToString()
    made = []
    for runner, cached in (
        ("", True),
        ("worker.job.job:run_job", True),
        ("worker.job.job:run_job", False),
    ):
        changes = {"runner": runner} if runner else {}
        desk = open_desk(settings.model_copy(update=changes))
        options = CompileOptions(verify=VerifyMode.FULL, no_cache=not cached)
        with EmbeddedWorker(desk.services):
            order = desk.submit({"preset": "stcp920-inferred"}, model=model, options=options)
            made.append(desk.wait(order.id, timeout_s=120))
    _, good, fresh = made
    assert [job.state for job in made] == [JobState.SUCCEEDED] * 3, [job.error for job in made]
    assert (good.units_solved, good.units_cached) == (fresh.units_solved, fresh.units_cached)
    assert good.bundle_digest == fresh.bundle_digest


def test_a_child_may_store_a_limited_amount() -> None:
    """Beyond the limit of the cache it is dropped; keys that are no keys end the child."""
    kept = MemoryCache()
    said = Conversation(cache_bytes_left=10_000)
    for number in range(20):
        head = {"op": "cache_put", "kind": "program", "fields": [["n", str(number)]]}
        answer(Message(head, b"x" * 2000), None, None, kept, said)  # type: ignore[arg-type]
    assert 0 < sum(map(len, kept.entries.values())) <= 10_000
    for fields in ([["a"] * 2] * 17, [["a", "x" * 257]], [["a", "\ud800"]], [["a", 1]], "ab", [[]]):
        bad = Message({"op": "cache_put", "kind": "program", "fields": fields}, b"")
        with pytest.raises(ProtocolError):
            answer(bad, None, None, kept, said)  # type: ignore[arg-type]


def test_an_artifact_below_a_swapped_link_is_not_read(tmp_path: Path) -> None:
    """The worker itself reads artifacts: no link may lead it out, whenever it appears."""
    out, secret = tmp_path / "out", tmp_path / "outside" / "secret"
    for folder in (out / "a", secret.parent):
        folder.mkdir(parents=True)
    (out / "a" / "secret").write_bytes(b"harmless")
    (out / "b").symlink_to(secret.parent)
    secret.write_bytes(SECRET)
    done = threading.Event()

    def swap() -> None:
        names = bytes(out / "a"), bytes(out / "b")
        while not done.is_set():
            exchange = 2
            ctypes.CDLL(None).renameat2(-100, names[0], -100, names[1], exchange)

    swapper = threading.Thread(target=swap)
    swapper.start()
    read = set()
    try:
        for _ in range(2000):
            try:
                with open_left(out, "a/secret") as file:
                    read.add(file.read())
            except ProtocolError:
                read.add(b"refused")
    finally:
        done.set()
        swapper.join()
    assert read == {b"harmless", b"refused"}

"""Several compiles of a gate at once: order, width, failures, interrupts, and the same verdict."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path

import pytest
from gate_documents import JsonCompiler
from gate_repository import TeamRepository

from service.gate.gate import Asked, Gate
from service.gate.runs import Outcome
from service.gate.together import Threads
from service.orders.order import Order

WAIT_S = 30.0
GATE = """
schema: 1
models: [{path: m/*.onnx}]
hardware: [{spec: chip.yaml}, {preset: kapla-edge}]
baseline: {source: merge-base, branch: main}
regressions: [{figure: latency_cycles, percent: 1}]
"""


@pytest.mark.parametrize("num", [1, 2, 3, 7])
def test_results_are_in_the_order_of_the_calls(num: int) -> None:
    assert Threads(num)([partial(pow, k, 2) for k in range(5)]) == [0, 1, 4, 9, 16]
    nothing: list[Callable[[], int]] = []
    assert Threads(num)(nothing) == []


def test_as_many_as_were_asked_for_run_at_once() -> None:
    meet = threading.Barrier(3)
    # Each waits for two others: fewer threads than three would never get past it.
    Threads(3)([partial(meet.wait, WAIT_S) for _ in range(9)])
    lock, most, now = threading.Lock(), 0, 0

    def count() -> None:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.01)
        with lock:
            now -= 1

    Threads(3)([count] * 12)
    assert most <= 3


def test_one_at_a_time_is_this_thread() -> None:
    assert Threads(1)([threading.get_ident] * 3) == [threading.get_ident()] * 3


def test_after_a_failure_nothing_is_begun_and_the_cause_is_raised() -> None:
    threads = Threads(2)
    begun: list[int] = []

    def fails() -> int:
        begun.append(1)
        raise ValueError("the cause")

    def is_told() -> int:
        begun.append(0)
        assert threads.stop.wait(WAIT_S)
        raise RuntimeError("a consequence")

    with pytest.raises(ValueError, match="the cause"):
        threads([is_told, fails, *[partial(begun.append, 2)] * 5])  # type: ignore[list-item]
    assert sorted(begun) == [0, 1]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As from a terminal: who is started in the background is deaf to interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_reaches_whoever_asked_and_tells_the_others() -> None:
    threads = Threads(2)
    told = threading.Event()

    def interrupts() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def is_told() -> None:
        if threads.stop.wait(WAIT_S):
            told.set()

    with pytest.raises(KeyboardInterrupt):
        threads([is_told, interrupts])
    assert told.wait(WAIT_S)


@dataclass
class Meeting(JsonCompiler):
    """Goes on only when two compiles are under way; `JsonCompiler` does the rest."""

    meet: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))

    def outcome(self, order: Order) -> Outcome:
        self.meet.wait(WAIT_S)
        return super().outcome(order)


@pytest.fixture
def team(tmp_path: Path) -> TeamRepository:
    made = TeamRepository(tmp_path / "team")
    models = {f"m/{name}.onnx": f'{{"x": {k + 100}}}' for k, name in enumerate("abc")}
    made.commit({"gate.yaml": GATE, "chip.yaml": "slower_by: 1", **models}, "first")
    made.git("checkout", "-q", "-b", "work")
    made.write({"chip.yaml": "slower_by: 2", "m/b.onnx": '{"refuse": "it is a loop"}'})
    return made


def test_a_verdict_is_the_same_however_many_are_compiled_at_once(team: TeamRepository) -> None:
    told: dict[str, list[str]] = {}

    def verdict(compiler: JsonCompiler, threads: Threads) -> str:
        lines = told.setdefault(type(compiler).__name__, [])
        asked = Asked(team.root / "gate.yaml", date(2026, 6, 1))
        gate = Gate(asked, compiler, lines.append, together=threads)
        return str(gate.verdict(gate.head()).as_json())

    alone = verdict(JsonCompiler(), Threads(1))
    assert "it is a loop" in alone
    assert verdict(Meeting(), Threads(2)) == alone
    assert sorted(told["Meeting"]) == sorted(told["JsonCompiler"])
    assert len(told["Meeting"]) == 12

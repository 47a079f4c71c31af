"""A step of a strategy that never ends is stopped: its unit goes another way, the job goes on."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compile_ports import ports_of
from onnx_models import repeated_layers, saved

from worker.compiler.cache import MemoryCache
from worker.compiler.faults import Fault, attempt, limited_by
from worker.compiler.frontend.limits import Limits
from worker.compiler.ir.graph import Graph
from worker.compiler.isa.program import UnitCall
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.judge.figures import Figures
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.compiler.strategies.graphturbo.strategy import GraphTurboStrategy
from worker.job.watchdog import STRIKES, Watchdog

LIMIT_S = 0.3
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def no_strategy_faults() -> None:
    """Faults are what these tests seed: the guard of the other tests is off."""


@pytest.fixture(scope="module", autouse=True)
def _compiled_loops(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Loops are compiled once per installation, which no limit of these tests allows for."""
    compiled(tmp_path_factory.mktemp("once"), MemoryCache())


def dog(limit_s: float = LIMIT_S) -> Watchdog:
    return Watchdog(limit_s, tick_s=0.1)  # 0.5 ms of it pass for idle: a traced handler fits


def spin(*_: object) -> Any:
    while True:
        pass


def spin_and_catch(*_: object) -> Any:
    while True:
        try:
            spin()
        except Exception:
            continue


def wait(*_: object) -> Any:
    threading.Event().wait()


def catch_once() -> Any:
    try:
        spin()
    except BaseException:
        spin()


@pytest.mark.parametrize(
    ("work", "spent"),
    [(spin, "CPU"), (spin_and_catch, "CPU"), (catch_once, "CPU"), (wait, "waiting")],
)
def test_a_step_that_hangs_is_a_fault(work: Callable[[], Any], spent: str) -> None:
    with limited_by(dog()):
        found = attempt("toy", "1", "schedule", work)
    says = f"timed out after {LIMIT_S} s of {spent}"
    assert found == Fault("toy", "1", "schedule", says, is_passing=True)


def test_what_ends_is_left_alone_and_no_timer_stays() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with limited_by(dog()):
        assert attempt("toy", "1", "schedule", lambda: 3) == 3
        broken = attempt("toy", "1", "schedule", lambda: 1 // 0)
    assert isinstance(broken, Fault) and not broken.is_passing
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_time_between_the_steps_is_nobodys() -> None:
    watched = dog(0.2)
    with limited_by(watched):
        for _ in range(6):
            assert attempt("toy", "1", "schedule", lambda: burn(0.1)) is None
            burn(0.1)


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_short_waits_between_work_are_no_hang() -> None:
    def work() -> None:
        for _ in range(8):
            time.sleep(0.1)
            burn(0.005)

    with limited_by(dog(0.2)):
        assert attempt("toy", "1", "schedule", work) is None


def test_steps_of_the_compiler_are_not_limited() -> None:
    with limited_by(dog(0.05)):
        assert attempt("toy", "1", "lower", lambda: burn(0.2)) is None


def test_a_strategy_that_hangs_again_and_again_is_not_asked_any_more() -> None:
    watched = dog(0.05)
    with limited_by(watched):
        for _ in range(STRIKES):
            attempt("toy", "1", "schedule", spin)
        late = attempt("toy", "1", "group", lambda: 3)
        other = attempt("fine", "1", "group", lambda: 3)
    assert late == Fault(
        "toy", "1", "group", f"not asked, because {STRIKES} of its steps timed out", is_passing=True
    )
    assert other == 3


def test_another_thread_is_not_limited() -> None:
    found: list[object] = []
    watched = dog(0.05)

    def work() -> None:
        with limited_by(watched):
            found.append(attempt("toy", "1", "schedule", lambda: burn(0.2)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [None]


def compiled(folder: Path, cache: MemoryCache) -> CompiledModel:
    """Twice MatMul and Relu; one kernel of all is the best."""
    path = saved(repeated_layers(2), folder)
    ports = ports_of(cache, lambda unit: Figures(1 if len(unit.schedule.graph.ops) > 1 else 10**6))
    options = CompileOptions(strategy="graphturbo")
    on = load_preset("stcp920-inferred")
    return compile_model(path, "m", on, options, ports, Limits())


def strategies_of(model: CompiledModel) -> list[str]:
    calls = [c for c in model.linked.program.calls if isinstance(c, UnitCall)]
    return [model.units[call.unit].schedule.strategy for call in calls]


CANDIDATES = GraphTurboStrategy.candidates


def hang_on_large(self: GraphTurboStrategy, unit: Graph, *given: Any) -> Iterator[Any]:
    """Four operators are too many for it; two are not."""
    if len(unit.ops) > 2:
        spin()
    yield from CANDIDATES(self, unit, *given)


def test_a_unit_that_hangs_goes_another_way_and_is_told(tmp_path: Path, monkeypatch: Patch) -> None:
    cache = MemoryCache()
    with monkeypatch.context() as patch, limited_by(dog(2.0)):
        patch.setattr(GraphTurboStrategy, "candidates", hang_on_large)
        model = compiled(tmp_path, cache)
    assert strategies_of(model) == ["graphturbo", "graphturbo"]
    told = [text for code, text in model.warnings if code == "STRATEGY_FALLBACK"]
    assert len(told) == 1
    version = GraphTurboStrategy().version
    assert f"graphturbo {version} failed at step schedule: timed out after 2 s of CPU" in told[0]
    again = compiled(tmp_path, cache)  # no cache keeps that it hung: it may have been the machine
    assert strategies_of(again) == ["graphturbo"]
    assert "STRATEGY_FALLBACK" not in dict(again.warnings)


def test_a_grouping_that_hangs_leaves_the_last_resort(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(GraphTurboStrategy, "group", spin)
    with limited_by(dog(2.0)):
        model = compiled(tmp_path, MemoryCache())
    assert strategies_of(model) == ["naive"] * 4


def test_a_stopped_step_leaves_the_answer_of_the_others_alone(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    plain = compiled(tmp_path, MemoryCache())
    monkeypatch.setattr(GraphTurboStrategy, "candidates", spin)
    texts: list[tuple[str, ...]] = []
    for limit_s in (1.0, 2.0):
        with limited_by(dog(limit_s)):
            model = compiled(tmp_path, MemoryCache())
        texts.append(tuple(unit.schedule_text for unit in model.units))
    assert texts[0] == texts[1]
    assert replace(model, warnings=()).made_by == "naive" != plain.made_by

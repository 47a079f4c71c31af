"""A strategy that breaks at any step: the job ends well, by another way, and the report says so."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from compile_ports import ports_of
from onnx_models import repeated_layers, saved

from worker.compiler.cache import MemoryCache
from worker.compiler.descriptors import strategies
from worker.compiler.errors import InternalError
from worker.compiler.frontend.limits import Limits
from worker.compiler.ir.graph import Graph
from worker.compiler.isa.program import UnitCall, UnitProgram
from worker.compiler.judge import units
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.judge.figures import Figures
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.compiler.schedule.nodes import Schedule, Seq
from worker.compiler.schedule.stages import Group, Grouping, check_grouping
from worker.compiler.strategies.graphturbo.strategy import GraphTurboStrategy
from worker.compiler.strategies.naive.strategy import NaiveStrategy
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress


@pytest.fixture(autouse=True)
def no_strategy_faults() -> None:
    """Faults are what these tests seed: the guard of the other tests is off."""


ON = load_preset("stcp920-inferred")
LAYERS = 2
CANDIDATES = GraphTurboStrategy.candidates
OPTIONS = CompileOptions(strategy="graphturbo")
Patch = pytest.MonkeyPatch


def compiled(
    folder: Path, cache: MemoryCache | None = None, many: int = 1, layers: int = LAYERS
) -> CompiledModel:
    """`layers` times MatMul and Relu; kernels of more than `many` operators are the best."""
    path = saved(repeated_layers(layers), folder)
    ports = ports_of(
        cache or MemoryCache(),
        lambda unit: Figures(1 if len(unit.schedule.graph.ops) > many else 10**6),
    )
    return compile_model(path, "m", ON, OPTIONS, ports, Limits())


def kernels(model: CompiledModel) -> list[tuple[str, int]]:
    calls = [c for c in model.linked.program.calls if isinstance(c, UnitCall)]
    return [(model.units[c.unit].schedule.strategy, len(c.onnx_nodes)) for c in calls]


def faults(model: CompiledModel) -> list[str]:
    return [text for code, text in model.warnings if code == "STRATEGY_FALLBACK"]


def crash(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("seeded")


def a_crash_in(method: str) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(GraphTurboStrategy, method, crash)


def an_illegal_schedule(patch: Patch) -> None:
    """Nothing of the group is computed."""
    candidates = GraphTurboStrategy.candidates

    def empty(self: GraphTurboStrategy, *given: Any) -> Any:
        for found in candidates(self, *given):
            yield replace(found, root=Seq(())) if isinstance(found, Schedule) else found

    patch.setattr(GraphTurboStrategy, "candidates", empty)


def no_candidate(patch: Patch) -> None:
    patch.setattr(GraphTurboStrategy, "candidates", lambda *_: iter(()))


def a_lost_operator(patch: Patch) -> None:
    group = GraphTurboStrategy.group

    def less(self: GraphTurboStrategy, *given: Any) -> Grouping:
        found = group(self, *given)
        first, *rest = found.groups
        return Grouping(found.graph, (Group(first.ops[1:]), *rest))

    patch.setattr(GraphTurboStrategy, "group", less)


def in_large_kernels(name: str, step: Callable[..., Any]) -> Callable[[Patch], None]:
    """A step after the strategy breaks for GraphTurbo's schedules."""

    def broken(schedule: Schedule, *given: Any) -> Any:
        return crash() if schedule.strategy == "graphturbo" else step(schedule, *given)

    return lambda patch: patch.setattr(f"worker.compiler.judge.units.{name}", broken)


def a_program_without_an_end(patch: Patch) -> None:
    """Lowering writes a program that `verify_program` refuses."""

    def wrong(schedule: Schedule, *given: Any) -> UnitProgram:
        program = lower_unit(schedule, *given)
        if schedule.strategy == "naive":
            return program
        return replace(program, operands=())

    patch.setattr("worker.compiler.judge.units.lower_unit", wrong)


def generate(*given: Any) -> str:
    from worker.compiler.codegen.kernel import generate_kernel

    return generate_kernel(*given)


STEPS: dict[str, tuple[Callable[[Patch], None], str]] = {
    "group": (a_crash_in("group"), "group: ZeroDivisionError: seeded"),
    "lost operator": (a_lost_operator, "group: VerifyError"),
    "candidates": (a_crash_in("candidates"), "schedule: ZeroDivisionError: seeded"),
    "no candidate": (no_candidate, "schedule: InternalError"),
    "illegal schedule": (an_illegal_schedule, "schedule: VerifyError"),
    "lower": (in_large_kernels("lower_unit", lower_unit), "lower: ZeroDivisionError: seeded"),
    "illegal program": (a_program_without_an_end, "lower: "),
    "codegen": (in_large_kernels("generate_kernel", generate), "codegen: ZeroDivisionError"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_fault_at_any_step_ends_in_kernels_of_naive(
    step: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    breaks, says = STEPS[step]
    breaks(monkeypatch)
    model = compiled(tmp_path)
    found = kernels(model)
    assert {strategy for strategy, _ in found} == {"naive"}
    assert sum(nodes for _, nodes in found) == 2 * LAYERS
    warnings = faults(model)
    assert warnings
    name = f"graphturbo {GraphTurboStrategy().version}"
    assert all(says in text and name in text for text in warnings)
    assert len(warnings) == len(set(warnings))


def test_without_faults_nothing_is_said(tmp_path: Path) -> None:
    model = compiled(tmp_path)
    assert kernels(model) == [("graphturbo", 2 * LAYERS)]
    assert faults(model) == []


def several(self: GraphTurboStrategy, *given: Any) -> Iterator[Schedule]:
    """Two equal candidates that only the prediction tells apart."""
    first = next(CANDIDATES(self, *given))
    assert isinstance(first, Schedule)
    yield first
    yield replace(first, predicted_cycles=first.predicted_cycles + 1)


def test_a_fault_of_a_later_candidate_leaves_the_first(tmp_path: Path, monkeypatch: Patch) -> None:
    def then_crash(self: GraphTurboStrategy, *given: Any) -> Iterator[Schedule]:
        yield next(several(self, *given))
        crash()

    monkeypatch.setattr(GraphTurboStrategy, "candidates", then_crash)
    model = compiled(tmp_path)
    assert kernels(model) == [("graphturbo", 2 * LAYERS)]
    assert len(faults(model)) == 1


@pytest.mark.parametrize("step", ["lower_unit", "audit", "generate_kernel"])
def test_a_fault_of_the_first_candidate_leaves_later_ones(
    step: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    broken: list[int] = []
    works = getattr(units, step)

    def first_breaks(schedule: Schedule, *given: Any) -> Any:
        if schedule.strategy == "graphturbo":
            broken.append(schedule.predicted_cycles)
            if schedule.predicted_cycles == broken[0]:
                crash()
        return works(schedule, *given)

    monkeypatch.setattr(GraphTurboStrategy, "candidates", several)
    monkeypatch.setattr(units, step, first_breaks)
    model = compiled(tmp_path)
    assert kernels(model) == [("graphturbo", 2 * LAYERS)]
    assert [unit.schedule.predicted_cycles for unit in model.units] == [broken[0] + 1]
    assert len(faults(model)) == 1


def test_what_breaks_whole_may_work_in_halves(tmp_path: Path, monkeypatch: Patch) -> None:
    def large_break(self: GraphTurboStrategy, unit: Graph, *given: Any) -> Any:
        return crash() if len(unit.ops) > 4 else CANDIDATES(self, unit, *given)

    monkeypatch.setattr(GraphTurboStrategy, "candidates", large_break)
    model = compiled(tmp_path, layers=4)
    assert kernels(model) == [("graphturbo", 4), ("graphturbo", 4)]


def test_a_fault_is_known_to_the_cache_until_the_version_changes(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    cache = MemoryCache()
    with monkeypatch.context() as patch:
        a_crash_in("candidates")(patch)
        first = compiled(tmp_path, cache)
    again = compiled(tmp_path, cache)  # the strategy is whole, its version is not another one
    assert first.warnings == again.warnings
    assert kernels(first) == kernels(again)
    assert {event.outcome for event in again.cache_events} == {"hit"}
    newer = replace(strategies()["graphturbo"], version="newer")
    others = {**strategies(), "graphturbo": newer}
    monkeypatch.setattr("worker.compiler.judge.entrants.strategies", lambda: others)
    assert kernels(compiled(tmp_path, cache)) == [("graphturbo", 2 * LAYERS)]


def test_when_naive_breaks_too_the_error_names_the_node(tmp_path: Path, monkeypatch: Patch) -> None:
    a_crash_in("candidates")(monkeypatch)
    monkeypatch.setattr(NaiveStrategy, "candidates", crash)
    with pytest.raises(InternalError) as raised:
        compiled(tmp_path)
    assert raised.value.code == "TW-INT-004"
    node = raised.value.place.node
    assert node
    assert node in raised.value.message
    assert "ZeroDivisionError: seeded" in raised.value.message


def test_memory_is_nobodys_fault(tmp_path: Path, monkeypatch: Patch) -> None:
    def full(*_: object) -> Any:
        raise MemoryError

    monkeypatch.setattr(GraphTurboStrategy, "candidates", full)
    with pytest.raises(MemoryError):
        compiled(tmp_path)


def test_a_job_with_a_fault_verifies_and_reports_it(tmp_path: Path, monkeypatch: Patch) -> None:
    an_illegal_schedule(monkeypatch)
    path, out = saved(repeated_layers(LAYERS), tmp_path), tmp_path / "out"
    options = CompileOptions.from_json({"strategy": "graphturbo", "verify": "full"})
    request = JobRequest(path, "m", {"preset": ON.name}, options, tmp_path / "build")
    run_job(request, out, MemoryCache(), NoProgress())
    report = json.loads((out / "report.json").read_bytes())
    assert report["verification"]["passed"] is True
    found = [w["message"] for w in report["warnings"] if w["code"] == "STRATEGY_FALLBACK"]
    assert all(name in found[0] for name in _nodes(path))
    assert all("graphturbo" in text and "VerifyError" in text for text in found)


def _nodes(path: Path) -> list[str]:
    return [node.name for node in onnx.load(path).graph.node]


def _graph(model: CompiledModel) -> Graph:
    (graph,) = model.region_graphs
    return graph


def test_a_grouping_in_an_illegal_order_is_refused(tmp_path: Path) -> None:
    graph = _graph(compiled(tmp_path))
    alone = tuple(Group((op.name,)) for op in graph.ops)
    check_grouping(Grouping(graph, alone), graph)
    with pytest.raises(InternalError, match="order"):
        check_grouping(Grouping(graph, alone[::-1]), graph)
    with pytest.raises(InternalError, match="partition"):
        check_grouping(Grouping(graph, (*alone, alone[0])), graph)
    with pytest.raises(InternalError, match="interface"):
        check_grouping(Grouping(replace(graph, outputs=()), alone), graph)

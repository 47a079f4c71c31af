"""Kernels of a group: one for all, one each where that is faster, halves where it does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compile_ports import ports_of
from onnx_models import repeated_layers, saved
from strategy_options import of_variant

from worker.compiler.cache import MemoryCache
from worker.compiler.cost.fit import not_fusible
from worker.compiler.errors import Shortfall
from worker.compiler.frontend.limits import Limits
from worker.compiler.heuristics import Heuristic
from worker.compiler.ir.graph import Graph
from worker.compiler.isa.program import UnitCall
from worker.compiler.judge import regions
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.judge.figures import Figures
from worker.compiler.judge.pool import UnitPool
from worker.compiler.judge.units import Unit
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions, Effort
from worker.compiler.pipeline import compile_model
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.strategies.graphturbo.descriptor import Variant
from worker.compiler.strategies.graphturbo.strategy import GraphTurboStrategy

ON = load_preset("stcp920-inferred")
LAYERS = 4
LAUNCH = ON.launch_latency_cycles
"""A launch of each kernel counts as well."""


def compiled(
    folder: Path,
    unit_cycles: Callable[[Unit], int],
    variant: Variant = Variant.FULL,
    effort: Effort = Effort.NORMAL,
    without: tuple[Heuristic, ...] = (),
) -> CompiledModel:
    """`LAYERS` times MatMul and Relu."""
    options = CompileOptions(
        strategy="graphturbo",
        strategy_options=of_variant(variant),
        effort=effort,
        without=without,
    )
    path = saved(repeated_layers(LAYERS), folder)
    ports = ports_of(MemoryCache(), lambda unit: Figures(unit_cycles(unit)))
    return compile_model(path, "m", ON, options, ports, Limits())


def kernels(model: CompiledModel) -> list[tuple[str, int]]:
    """(strategy, ONNX nodes) of every call of a kernel."""
    calls = [c for c in model.linked.program.calls if isinstance(c, UnitCall)]
    return [(model.units[c.unit].schedule.strategy, len(c.onnx_nodes)) for c in calls]


def slow_groups(cycles: int) -> Callable[[Unit], int]:
    """Units of GraphTurbo take `cycles`, every single operator takes 100."""
    return lambda unit: cycles if unit.schedule.strategy == "graphturbo" else 100


def test_a_group_that_is_faster_is_one_kernel(tmp_path: Path) -> None:
    assert kernels(compiled(tmp_path, slow_groups(1))) == [("graphturbo", 2 * LAYERS)]


def test_a_group_that_is_slower_than_its_operators_is_split(tmp_path: Path) -> None:
    found = kernels(compiled(tmp_path, slow_groups(10**9)))
    assert found == [("naive", 1)] * (2 * LAYERS)


@pytest.mark.parametrize(("slower_by", "count"), [(0, 1), (1, 2 * LAYERS)])
def test_of_equal_cycles_one_kernel_wins(tmp_path: Path, slower_by: int, count: int) -> None:
    """Operators alone pay a launch each, the group pays one."""
    number = 2 * LAYERS
    apart = number * 100 + (number - 1) * LAUNCH
    assert len(kernels(compiled(tmp_path, slow_groups(apart + slower_by)))) == count


@pytest.mark.parametrize("variant", [Variant.V1, Variant.V3])
def test_variants_of_the_ablation_are_not_second_guessed(tmp_path: Path, variant: Variant) -> None:
    found = kernels(compiled(tmp_path, slow_groups(10**9), variant))
    assert found == [("graphturbo", 2 * LAYERS)]


def refuse_above(most: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """GraphTurbo plans units of at most so many operators; sizes it is asked for, in order."""
    asked: list[int] = []
    candidates = GraphTurboStrategy.candidates

    def limited(
        self: GraphTurboStrategy, unit: Graph, *given: Any
    ) -> Iterator[Schedule | Shortfall]:
        asked.append(len(unit.ops))
        if len(unit.ops) > most:
            yield not_fusible(tuple(op.name for op in unit.ops))
        else:
            yield from candidates(self, unit, *given)

    monkeypatch.setattr(GraphTurboStrategy, "candidates", limited)
    return asked


def test_what_does_not_fit_is_tried_in_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = refuse_above(LAYERS, monkeypatch)
    model = compiled(tmp_path, slow_groups(1))
    assert kernels(model) == [("graphturbo", LAYERS), ("graphturbo", LAYERS)]
    assert asked == [2 * LAYERS, LAYERS]  # the halves are equal: one unit, solved once
    assert len(model.units) == 1


def test_without_halves_what_does_not_fit_runs_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = refuse_above(LAYERS, monkeypatch)
    model = compiled(tmp_path, slow_groups(1), without=(Heuristic.HALVES,))
    assert kernels(model) == [("naive", 1)] * (2 * LAYERS)
    assert asked == [2 * LAYERS]


def test_halves_that_are_slower_are_split_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_above(LAYERS, monkeypatch)
    found = kernels(compiled(tmp_path, slow_groups(10**9)))
    assert found == [("naive", 1)] * (2 * LAYERS)


def test_halves_are_kept_where_the_whole_is_slower(tmp_path: Path) -> None:
    """Only the group of everything is slow: not all of its operators have to run alone."""

    def cycles(unit: Unit) -> int:
        return 10**9 if len(unit.schedule.graph.ops) > LAYERS else 1

    model = compiled(tmp_path, cycles)
    assert kernels(model) == [("graphturbo", LAYERS), ("graphturbo", LAYERS)]


def test_what_is_vast_and_slow_is_not_halved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cycles(unit: Unit) -> int:
        return 10**9 if len(unit.schedule.graph.ops) > LAYERS else 1

    monkeypatch.setattr(regions, "MOST_HALVED", 1)
    model = compiled(tmp_path, cycles)
    assert kernels(model) == [("naive", 1)] * (2 * LAYERS)


def test_what_fits_in_no_size_runs_operator_by_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = refuse_above(0, monkeypatch)
    found = kernels(compiled(tmp_path, slow_groups(1)))
    assert found == [("naive", 1)] * (2 * LAYERS)
    # Eight, two times four (equal), two times two each: groups of less than four are not halved.
    assert asked == [8, 4, 2]


def test_of_compared_candidates_only_the_best_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three candidates are compared and the second wins."""
    pools: list[UnitPool] = []
    create, candidates = UnitPool.__init__, GraphTurboStrategy.candidates

    def noted(self: UnitPool, *given: Any) -> None:
        create(self, *given)
        pools.append(self)

    def three(self: GraphTurboStrategy, *given: Any) -> Iterator[Schedule | Shortfall]:
        first = next(candidates(self, *given))
        assert isinstance(first, Schedule)
        for predicted in (30, 10, 20):
            yield replace(first, predicted_cycles=predicted)

    monkeypatch.setattr(UnitPool, "__init__", noted)
    monkeypatch.setattr(GraphTurboStrategy, "candidates", three)
    model = compiled(tmp_path, lambda unit: unit.schedule.predicted_cycles)
    assert kernels(model) == [("graphturbo", 2 * LAYERS)]
    assert [unit.schedule.predicted_cycles for unit in model.units] == [10]
    (pool,) = pools
    kept = [key.candidate for key, unit in pool.known.items() if isinstance(unit, Unit)]
    assert kept == [1]


def test_the_fast_effort_asks_for_the_best_guess_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    candidates = GraphTurboStrategy.candidates

    def counted(self: GraphTurboStrategy, *given: Any) -> Iterator[Schedule | Shortfall]:
        first = next(candidates(self, *given))
        for number in range(5):
            drawn.append(number)
            yield first

    monkeypatch.setattr(GraphTurboStrategy, "candidates", counted)
    for effort, count in ((Effort.FAST, 1), (Effort.NORMAL, 3), (Effort.THOROUGH, 5)):
        drawn.clear()
        compiled(tmp_path, slow_groups(1), effort=effort)
        assert drawn == list(range(count))


def test_what_is_handed_over_says_to_whom_and_why(tmp_path: Path) -> None:
    model = compiled(tmp_path, slow_groups(10**9))
    assert {(row.strategy, row.to) for row in model.handed} == {("graphturbo", "naive")}
    assert {node for row in model.handed for node in row.nodes} == {
        node for c in model.linked.program.calls for node in c.onnx_nodes
    }
    assert all("worse by latency" in row.why for row in model.handed)
    assert compiled(tmp_path, slow_groups(1)).handed == ()

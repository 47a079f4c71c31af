"""Strategies compete: the mixture, each alone, and what each objective makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compile_ports import ports_of
from onnx_models import conv_net, repeated_layers, saved

from worker.compiler.cache import MemoryCache
from worker.compiler.errors import Shortfall
from worker.compiler.frontend.limits import Limits
from worker.compiler.isa.program import UnitCall
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.judge.figures import Figures
from worker.compiler.judge.units import Unit
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions, Objective
from worker.compiler.pipeline import compile_model
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.strategies.graphturbo.strategy import GraphTurboStrategy
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress

ON = load_preset("stcp920-inferred")


def compiled(
    folder: Path, figures: Callable[[Unit], Figures], objective: Objective = Objective.LATENCY
) -> CompiledModel:
    path = saved(repeated_layers(2), folder)
    options = CompileOptions(objective=objective)
    return compile_model(path, "m", ON, options, ports_of(MemoryCache(), figures), Limits())


def winners(model: CompiledModel) -> set[str]:
    calls = [c for c in model.linked.program.calls if isinstance(c, UnitCall)]
    return {model.units[call.unit].schedule.strategy for call in calls}


def by_strategy(turbo: Figures, naive: Figures) -> Callable[[Unit], Figures]:
    return lambda unit: turbo if unit.schedule.strategy == "graphturbo" else naive


def test_objectives_have_winners_of_their_own(tmp_path: Path) -> None:
    """One kernel of GraphTurbo, or one for each of four operators."""
    figures = by_strategy(Figures(100, 900.0, 90), Figures(10**6, 200.0, 10))
    assert winners(compiled(tmp_path, figures)) == {"graphturbo"}
    assert winners(compiled(tmp_path, figures, Objective.ENERGY)) == {"naive"}
    assert winners(compiled(tmp_path, figures, Objective.OFFCHIP)) == {"naive"}
    assert winners(compiled(tmp_path, figures, Objective.EDP)) == {"graphturbo"}


def test_each_measure_has_a_candidate_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three candidates for one unit the first is the fastest, the last the most frugal; of two
    that are equally frugal the faster one."""
    drawn = [Figures(100, 900.0, 90), Figures(300, 200.0, 50), Figures(200, 200.0, 50)]
    candidates = GraphTurboStrategy.candidates

    def three(self: GraphTurboStrategy, *given: Any) -> Iterator[Schedule | Shortfall]:
        first = next(candidates(self, *given))
        assert isinstance(first, Schedule)
        for number in range(3):
            yield replace(first, predicted_cycles=number)

    def figures(unit: Unit) -> Figures:
        is_turbo = unit.schedule.strategy == "graphturbo"
        return drawn[unit.schedule.predicted_cycles] if is_turbo else Figures(10**6, 1e6, 10**6)

    monkeypatch.setattr(GraphTurboStrategy, "candidates", three)
    for objective, number in ((Objective.LATENCY, 0), (Objective.ENERGY, 2), (Objective.EDP, 2)):
        model = compiled(tmp_path, figures, objective)
        assert [unit.schedule.predicted_cycles for unit in model.units] == [number], objective


def test_losers_are_named_with_figures_and_reason(tmp_path: Path) -> None:
    model = compiled(tmp_path, by_strategy(Figures(100, 900.0), Figures(10**6, 200.0)))
    chosen, *others = model.programs
    assert chosen.name == model.strategy == "graphturbo"
    assert [row.name for row in others] == ["naive"]
    assert others[0].figures is not None
    assert others[0].figures.cycles == 4 * 10**6
    assert "4e+04 times the least" in others[0].reason


@pytest.mark.parametrize("preset", ["stcp920-inferred", "a100", "kapla-edge", "dpu-zu"])
@pytest.mark.parametrize("objective", list(Objective))
def test_auto_is_never_worse_than_a_strategy_alone(
    preset: str, objective: Objective, tmp_path: Path
) -> None:
    path, cache = saved(conv_net(), tmp_path), MemoryCache()
    column = {
        Objective.LATENCY: "latency_cycles", Objective.ENERGY: "energy_pj",
        Objective.OFFCHIP: "offchip_bytes", Objective.PEAK_MEMORY: "peak_bytes",
    }  # fmt: skip

    def measured(strategy: str) -> float:
        asked = {"strategy": strategy, "objective": str(objective), "verify": "none"}
        out = tmp_path / strategy
        request = JobRequest(
            path, "m", {"preset": preset}, CompileOptions.from_json(asked), tmp_path / "build"
        )
        run_job(request, out, cache, NoProgress())
        row = json.loads((out / "report.json").read_bytes())["strategies"][0]
        if objective is Objective.EDP:
            return float(row["latency_cycles"]) * float(row["energy_pj"])
        return float(row[column[objective]])

    assert measured("auto") <= min(measured("naive"), measured("graphturbo"))

"""Elections are remembered by what decides them; caps bound what may win."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compile_ports import ports_of
from onnx import numpy_helper
from onnx_models import repeated_layers, saved

from worker.compiler.cache import CacheKind, MemoryCache
from worker.compiler.errors import CompilerError, OptionError
from worker.compiler.frontend.limits import Limits
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.judge.figures import Figures
from worker.compiler.judge.units import Unit
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model

ON = load_preset("stcp920-inferred")
FAST_AND_HUNGRY = {"graphturbo": Figures(1_000, 9e9, 10), "naive": Figures(50_000, 1e5, 90)}
"""Of a kernel by strategy; one of graphturbo's stands against eight of naive's."""


def compiled(
    folder: Path,
    cache: MemoryCache,
    asked: Mapping[str, Any] | None = None,
    *,
    on: Machine = ON,
    model: onnx.ModelProto | None = None,
    watched: Callable[[Unit], None] = lambda unit: None,
) -> CompiledModel:
    options = CompileOptions.from_json(dict(asked or {}))
    path = saved(model or repeated_layers(4), folder)

    def figures(unit: Unit) -> Figures:
        watched(unit)
        return FAST_AND_HUNGRY[unit.schedule.strategy]

    return compile_model(path, "m", on, options, ports_of(cache, figures), Limits())


def verdict_of(model: CompiledModel) -> str:
    (event,) = (e for e in model.cache_events if e.kind == CacheKind.VERDICT)
    return event.outcome


def test_the_second_compile_makes_only_the_winner(tmp_path: Path) -> None:
    cache = MemoryCache()
    first = compiled(tmp_path, cache)
    asked: list[str] = []
    second = compiled(tmp_path, cache, watched=lambda unit: asked.append(unit.schedule.strategy))
    assert (verdict_of(first), verdict_of(second)) == ("miss", "hit")
    assert "naive" in {p.name for p in first.programs} and "naive" not in asked
    assert all(event.outcome == "hit" for event in second.cache_events)
    assert second.programs == first.programs and second.strategy == first.strategy == "graphturbo"
    assert second.linked.program.calls == first.linked.program.calls
    assert [u.kernel for u in second.units] == [u.kernel for u in first.units]
    assert second.placement == first.placement and second.handed == first.handed


@pytest.mark.parametrize(
    "asked",
    [{"objective": "energy"}, {"effort": "fast"}, {"max_power_w": 1e6}, {"max_latency_ms": 1e6},
     {"partition": "greedy"}, {"strategy_options": {"graphturbo": {"variant": "v1"}}}],
)  # fmt: skip
def test_what_decides_an_election_is_in_its_key(tmp_path: Path, asked: dict[str, Any]) -> None:
    cache = MemoryCache()
    compiled(tmp_path, cache)
    assert verdict_of(compiled(tmp_path, cache, asked)) == "miss"
    assert verdict_of(compiled(tmp_path, cache, asked)) == "hit"
    assert verdict_of(compiled(tmp_path, cache, {"seed": 5, "verify": "none"})) == "hit"


def test_another_machine_or_structure_is_another_election(tmp_path: Path) -> None:
    cache = MemoryCache()
    compiled(tmp_path, cache)
    assert verdict_of(compiled(tmp_path, cache, on=replace(ON, clock_hz=ON.clock_hz / 2))) == "miss"
    assert verdict_of(compiled(tmp_path, cache, model=repeated_layers(5))) == "miss"
    assert verdict_of(compiled(tmp_path, cache, on=replace(ON, name="other"))) == "hit"


def test_values_count_where_they_are_small(tmp_path: Path) -> None:
    """Shapes, axes and scales decide what is compiled; weights do not."""
    cache = MemoryCache()
    small, large = repeated_layers(2, 64), repeated_layers(2, 256)
    for model, outcome in ((small, "miss"), (large, "hit")):
        compiled(tmp_path, cache, model=model)
        (weight, *_) = model.graph.initializer
        values = numpy_helper.to_array(weight)
        assert (values.nbytes > 1 << 16) == (outcome == "hit")
        weight.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values + 1), weight.name))
        assert verdict_of(compiled(tmp_path, cache, model=model)) == outcome


def test_text_among_the_initializers_is_no_obstacle(tmp_path: Path) -> None:
    """Its bytes cannot be had: the signature ended in a ValueError."""
    model = repeated_layers(2)
    model.graph.node.append(onnx.helper.make_node("StringConcat", ["a", "a"], ["b"], name="text"))
    model.graph.initializer.append(
        onnx.helper.make_tensor("a", onnx.TensorProto.STRING, [2], [b"x", b"y"])
    )
    model.graph.output.append(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.STRING, [2]))
    model.opset_import[0].version = 20
    cache = MemoryCache()
    assert verdict_of(compiled(tmp_path, cache, model=model)) == "miss"
    assert verdict_of(compiled(tmp_path, cache, model=model)) == "hit"


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"names":["gone"]}', b"\xff", "other way"])
def test_a_bad_entry_is_a_miss(tmp_path: Path, damage: bytes | str) -> None:
    cache = MemoryCache()
    first = compiled(tmp_path, cache)
    (digest,) = (d for d, key in cache.keys.items() if key.kind is CacheKind.VERDICT)
    if isinstance(damage, str):
        damage = cache.entries[digest].replace(b'"graphturbo"', b'"welder"')
    cache.entries[digest] = damage
    again = compiled(tmp_path, cache)
    assert verdict_of(again) == "miss" and again.programs == first.programs


def test_the_cap_decides_where_the_objective_alone_would_not(tmp_path: Path) -> None:
    """Watts of graphturbo: 9e-3 J in 1000 cycles; naive takes 8 kernels' energy and time."""
    free = compiled(tmp_path, MemoryCache())
    assert free.strategy == "graphturbo"
    capped = compiled(tmp_path, MemoryCache(), {"max_power_w": 1.0})
    assert capped.strategy == "naive"
    loser = next(p for p in capped.programs if p.name == "graphturbo")
    watts = 9e9 * 1e-12 / (1_000 / ON.clock_hz)
    assert loser.reason == f"{watts:.4g} W, more than 1 W"
    assert "of at most 1 W" in capped.programs[0].reason
    limit = 8 * 50_000 / ON.clock_hz * 1e3 / 2
    frugal = {"objective": "energy"}
    assert compiled(tmp_path, MemoryCache(), frugal).strategy == "naive"
    timely = compiled(tmp_path, MemoryCache(), frugal | {"max_latency_ms": limit})
    assert timely.strategy == "graphturbo"


@pytest.mark.parametrize("strategy", ["auto", "naive", "graphturbo"])
def test_caps_that_nothing_meets_are_refused_with_figures(tmp_path: Path, strategy: str) -> None:
    asked = {"strategy": strategy, "max_latency_ms": 1e-7}
    with pytest.raises(CompilerError) as refused:
        compiled(tmp_path, MemoryCache(), asked)
    assert refused.value.code == "TW-PLAN-003"
    assert "ms, more than 1e-07 ms" in refused.value.message
    named = [finding.message.partition(":")[0] for finding in refused.value.findings]
    assert named == (["graphturbo", "naive"] if strategy == "auto" else [strategy])


@pytest.mark.parametrize("cap", ["max_power_w", "max_latency_ms"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "5", 1e13])
def test_a_cap_is_a_positive_number(cap: str, value: object) -> None:
    with pytest.raises(OptionError) as refused:
        CompileOptions.from_json({cap: value})
    assert refused.value.place.pointer == f"/options/{cap}"

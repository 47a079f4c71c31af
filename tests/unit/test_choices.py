"""Which candidate is the best for a unit is found once, and kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from compile_ports import ports_of
from onnx_models import repeated_layers, saved

from worker.compiler.cache import CacheKey, CacheKind, MemoryCache
from worker.compiler.frontend.limits import Limits
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.judge.figures import Figures
from worker.compiler.judge.units import Unit
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model

ON = load_preset("simba")


class Counting(MemoryCache):
    """Counts what is asked by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[CacheKind] = Counter()

    def get(self, key: CacheKey) -> bytes | None:
        self.asked[key.kind] += 1
        return MemoryCache.get(self, key)


def cycles(unit: Unit) -> Figures:
    """The longer a program, the faster: what is best is never the first candidate."""
    length = unit.program.num_instructions
    return Figures(1_000_000_000 - length, float(length), length)


def compiled(folder: Path, cache: MemoryCache, seen: list[Unit], **asked: Any) -> CompiledModel:
    options = CompileOptions.from_json({"strategy": "naive", **asked})
    path = saved(repeated_layers(3, 64), folder)

    def figures(unit: Unit) -> Figures:
        seen.append(unit)
        return cycles(unit)

    return compile_model(path, "m", ON, options, ports_of(cache, figures), Limits())


def texts(model: CompiledModel) -> list[str]:
    return [unit.schedule_text for unit in model.units]


def test_a_second_compile_reads_the_best_alone(tmp_path: Path) -> None:
    cache, first, second = Counting(), list[Unit](), list[Unit]()
    one = compiled(tmp_path, cache, first)
    assert len(first) > len(one.units), "several candidates of each"
    cache.asked.clear()
    two = compiled(tmp_path, cache, second)
    assert texts(one) == texts(two) and one.linked.program.calls == two.linked.program.calls
    assert len(second) <= len(two.units)
    assert cache.asked[CacheKind.SCHEDULE] == cache.asked[CacheKind.PROGRAM] == len(two.units)
    assert all(event.outcome == "hit" for event in two.cache_events)
    assert {event.kind for event in two.cache_events} >= {"choice", "schedule", "program"}


@pytest.mark.parametrize("objective", ["energy", "offchip"])
def test_another_objective_is_another_choice(tmp_path: Path, objective: str) -> None:
    cache = Counting()
    by_latency = compiled(tmp_path, cache, [])
    asked = compiled(tmp_path, cache, [], objective=objective)
    alone = compiled(tmp_path, MemoryCache(), [], objective=objective)
    assert texts(asked) == texts(alone) != texts(by_latency)


@pytest.mark.parametrize("damage", ["number", "no figures", "another", "garbage", "too few"])
def test_an_entry_that_is_none_of_the_candidates_is_found_anew(tmp_path: Path, damage: str) -> None:
    cache = MemoryCache()
    one = compiled(tmp_path, cache, [])
    for digest, key in cache.keys.items():
        if key.kind is not CacheKind.CHOICE:
            continue
        found = msgspec.json.decode(cache.entries[digest])
        for best in found.values():
            if damage == "number":
                best["number"] = 9
            elif damage == "no figures":
                best["figures"] = None
            elif damage == "another":
                best["number"] = 10_000
        if damage == "too few":
            found.popitem()
        text = b"{" if damage == "garbage" else msgspec.json.encode(found)
        cache.entries[digest] = text
    assert texts(compiled(tmp_path, cache, [])) == texts(one)

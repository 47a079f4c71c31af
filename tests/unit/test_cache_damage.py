"""A cache entry that is not what was stored is a miss; --require-cache names it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from algebra_graphs import conv

from worker.compiler.cache import CacheKind, MemoryCache
from worker.compiler.errors import Infeasible, OptionError, Shortfall
from worker.compiler.ir.signature import canonicalize
from worker.compiler.judge import units
from worker.compiler.judge.entrants import entrant
from worker.compiler.judge.units import Unit, UnitSolver
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions


def solver(cache: MemoryCache, *, require: bool = False) -> UnitSolver:
    options = CompileOptions(require_cache=require)
    return UnitSolver.create(load_preset("kapla-edge"), entrant("naive", options), options, cache)


@pytest.mark.parametrize("kind", [CacheKind.SCHEDULE, CacheKind.PROGRAM])
@pytest.mark.parametrize(
    "damage",
    [
        b"\xff\x00",
        b"\x00",
        b"\x92\xa1a\x01",
        b"\x92\xa1\x80\xc4\x00",
        b'{"demand":1}',
        b"{\xff",
        b"\x80",
    ],
)
def test_unreadable_entries_are_misses(kind: CacheKind, damage: bytes) -> None:
    cache = MemoryCache()
    canonical = canonicalize(conv(1, 3, 8, 6, 3, 1, 1))
    solver(cache).solve(canonical, "layer")
    (digest,) = [d for d, key in cache.keys.items() if key.kind is kind]
    cache.entries[digest] = damage
    again = solver(cache)
    assert isinstance(again.solve(canonical, "layer"), Unit)
    assert [e.kind for e in again.events if e.outcome == "miss"] == [str(kind)]


def test_that_something_does_not_fit_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = MemoryCache()
    canonical = canonicalize(conv(1, 3, 8, 6, 3, 1, 1))
    first = solver(cache)
    home, *small = first.machine.levels
    small = [replace(level, capacity_bytes=16) for level in small]
    first = replace(first, machine=replace(first.machine, levels=(home, *small)))
    shortfall = first.solve(canonical, "layer")
    assert isinstance(shortfall, Shortfall)
    again = replace(first, events=[])
    monkeypatch.setattr(UnitSolver, "candidate", None)  # a second search would fail
    assert again.solve(canonical, "layer") == shortfall
    assert [event.outcome for event in again.events] == ["hit"]


def test_a_schedule_without_addresses_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = MemoryCache()
    canonical = canonicalize(conv(1, 3, 8, 6, 3, 1, 1))
    shortfall = Shortfall("memory:L1", 9, 8, "bytes", (("a", 9),), ("make L1 larger",))

    def refuse(*_: object) -> None:
        raise Infeasible("no addresses", shortfall)

    monkeypatch.setattr(units, "lower_unit", refuse)
    assert solver(cache).solve(canonical, "layer") == shortfall
    monkeypatch.setattr(units, "lower_unit", None)  # a second lowering would fail
    again = solver(cache)
    assert again.solve(canonical, "layer") == shortfall
    assert [event.outcome for event in again.events] == ["hit", "hit"]


@pytest.mark.parametrize("missing", [CacheKind.SCHEDULE, CacheKind.PROGRAM])
def test_required_entries_are_named_by_kind_and_node(missing: CacheKind) -> None:
    cache = MemoryCache()
    canonical = canonicalize(conv(1, 3, 8, 6, 3, 1, 1))
    solver(cache).solve(canonical, "layer")
    (digest,) = [d for d, key in cache.keys.items() if key.kind is missing]
    del cache.entries[digest]
    again = solver(cache, require=True)
    with pytest.raises(OptionError) as refusal:
        again.solve(canonical, "layer")
    assert refusal.value.code == "TW-OPT-002"
    assert str(missing) in refusal.value.message
    assert refusal.value.place.node == "layer"
    assert refusal.value.actual == digest
    assert again.events[-1].outcome == "miss"

"""A cache entry that is not what was stored is refused with a code; --require-cache names it."""

from __future__ import annotations

import pytest
from algebra_graphs import conv

from worker.compiler.cache import CacheKind, MemoryCache
from worker.compiler.errors import OptionError, VerifyError
from worker.compiler.ir.signature import canonicalize
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.strategies.registry import strategy_for
from worker.compiler.units import UnitSolver


def solver(cache: MemoryCache, *, require: bool = False) -> UnitSolver:
    options = CompileOptions(require_cache=require)
    return UnitSolver.create(
        load_preset("kapla-edge"), strategy_for(options.strategy), options, cache
    )


@pytest.mark.parametrize("kind", [CacheKind.SCHEDULE, CacheKind.KERNEL])
@pytest.mark.parametrize(
    "damage", [b"\xff\x00", b"\x00", b"\x92\xa1a\x01", b"\x92\xa1\x80\xc4\x00"]
)
def test_unreadable_entries_are_refused_with_a_code(kind: CacheKind, damage: bytes) -> None:
    cache = MemoryCache()
    canonical = canonicalize(conv(1, 3, 8, 6, 3, 1, 1))
    solver(cache).solve(canonical, "layer")
    (digest,) = [d for d, key in cache.keys.items() if key.kind is kind]
    cache.entries[digest] = damage
    with pytest.raises(VerifyError) as refusal:
        solver(cache).solve(canonical, "layer")
    assert refusal.value.code == "TW-INT-002"


@pytest.mark.parametrize("missing", [CacheKind.SCHEDULE, CacheKind.KERNEL])
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

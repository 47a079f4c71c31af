"""Cache keys: every field that decides a result changes the key, and hits are verified again."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import NoReturn

import numpy as np
import pytest
from algebra_graphs import conv
from strategy_options import of_variant

from worker.compiler.cache import CacheKey, CacheKind, MemoryCache
from worker.compiler.errors import Infeasible, Shortfall
from worker.compiler.faults import Fault
from worker.compiler.ir.signature import Canonical, canonicalize
from worker.compiler.isa.program import Opcode
from worker.compiler.isa.verify import verify_program
from worker.compiler.judge.entrants import Entrant, entrant, entrants
from worker.compiler.judge.units import Unit, UnitSolver, encode_unit, unit_digest
from worker.compiler.machine import load_machine, load_preset
from worker.compiler.options import CompileOptions, Objective
from worker.compiler.strategies.graphturbo.descriptor import Variant


def solver(preset: str = "kapla-edge", **options: object) -> UnitSolver:
    chosen = replace(CompileOptions(), **options)  # type: ignore[arg-type]
    return UnitSolver.create(load_preset(preset), entrants(chosen)[0][-1], chosen, MemoryCache())


def test_every_field_of_a_key_changes_its_digest() -> None:
    fields = solver().schedule_key("0" * 64).fields
    base = CacheKey(CacheKind.SCHEDULE, fields)
    digests = {base.digest, CacheKey(CacheKind.PROGRAM, fields).digest}
    for k, (name, value) in enumerate(fields):
        changed = (*fields[:k], (name, value + "x"), *fields[k + 1 :])
        digests.add(CacheKey(CacheKind.SCHEDULE, changed).digest)
    assert len(digests) == len(fields) + 2
    assert {name for name, _ in fields} == {
        "signature",
        "machine",
        "strategy",
        "strategy_version",
        "strategy_options",
        "distribution",
        "budget",
        "measures",
        "candidate",
        "ir_version",
    }


def test_options_that_decide_no_schedule_are_not_in_the_key() -> None:
    key = solver().schedule_key("s").digest
    assert solver(seed=5, require_cache=True).schedule_key("s").digest == key


def test_objectives_are_in_the_key_by_what_they_sum_up() -> None:
    keys = {o: solver(objective=o).schedule_key("s").digest for o in Objective}
    assert len(set(keys.values())) == len(Objective)
    capped = solver(objective=Objective.ENERGY, max_latency_ms=1.0).schedule_key("s").fields
    assert dict(capped)["measures"] == "energy latency"


def test_the_variant_is_in_the_key_of_graphturbo_only() -> None:
    asked = [CompileOptions(strategy="graphturbo", strategy_options=of_variant(v)) for v in Variant]
    keys = {solver_of(entrant("graphturbo", a), a).schedule_key("s").digest for a in asked}
    assert len(keys) == len(Variant)
    naive = {solver_of(entrant("naive", a), a).schedule_key("s").digest for a in asked}
    assert naive == {solver().schedule_key("s").digest}


def solver_of(way: Entrant, options: CompileOptions) -> UnitSolver:
    return UnitSolver.create(load_preset("kapla-edge"), way, options, MemoryCache())


def test_what_lowering_finds_no_addresses_for_is_a_shortfall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = Shortfall("L1", 2048, 1024, "bytes", (("a", 1024), ("b", 1024)), ("a larger L1",))

    def overflow(*_: object) -> NoReturn:
        raise Infeasible("level L1 overflows", short)

    monkeypatch.setattr("worker.compiler.judge.units.lower_unit", overflow)
    one = solver()
    assert one.solve(canonicalize(conv(1, 3, 8, 6, 3, 1, 1)), "conv") == short


@pytest.mark.parametrize("step", ["verify", "lower_unit"])
@pytest.mark.parametrize("error", [FileNotFoundError, ZeroDivisionError])
def test_what_the_machine_is_to_blame_for_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, step: str, error: type[Exception]
) -> None:
    """A folder that vanished, a full disk: no other run may be told so from the cache."""
    one, canonical = solver(), canonicalize(conv(1, 3, 8, 6, 3, 1, 1))

    def broken(*_: object) -> NoReturn:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(f"worker.compiler.judge.units.{step}", broken)
        assert isinstance(one.solve(canonical, "conv"), Fault)
    again = one.solve(canonical, "conv")
    assert isinstance(again, Unit if error is FileNotFoundError else Fault)


def test_machine_is_in_the_key_by_content_not_by_name() -> None:
    key = solver().schedule_key("s").digest
    renamed = load_machine({"inherits": "kapla-edge", "name": "other"})
    faster = load_machine({"inherits": "kapla-edge", "name": "other", "clock_hz": 600e6})
    base = solver()
    same = UnitSolver.create(renamed, base.entrant, base.options, MemoryCache())
    changed = UnitSolver.create(faster, base.entrant, base.options, MemoryCache())
    assert same.schedule_key("s").digest == key
    assert changed.schedule_key("s").digest != key


def test_a_hit_gives_the_same_unit_and_is_recorded() -> None:
    one = solver()
    canonical = canonicalize(conv(1, 3, 8, 6, 3, 1, 1))
    first = one.solve(canonical, "conv")
    second = one.solve(canonical, "conv")
    assert isinstance(first, Unit)
    assert isinstance(second, Unit)
    assert first.kernel == second.kernel
    assert first.schedule == second.schedule
    assert first.program.instructions.tobytes() == second.program.instructions.tobytes()
    assert [e.outcome for e in one.events] == ["miss"] * 2 + ["hit"] * 2


def test_a_unit_that_is_only_compared_has_no_kernel() -> None:
    one = solver()
    cache = one.cache
    assert isinstance(cache, MemoryCache)
    canonical = canonicalize(conv(1, 3, 8, 6, 3, 1, 1))
    compared = one.lowered(canonical, "conv")
    assert isinstance(compared, Unit) and not compared.kernel
    kinds = [str(key.kind) for key in cache.keys.values()]
    assert kinds == ["schedule", "program"]
    kept = one.coded(compared)
    assert one.coded(kept) is kept
    again = solver()
    again.cache = cache
    found = again.solve(canonical, "conv")
    assert isinstance(found, Unit)
    assert found.kernel == kept.kernel != ""
    assert found.schedule_text == kept.schedule_text == compared.schedule_text
    assert [event.outcome for event in again.events] == ["hit"] * 2


def _outcomes(again: UnitSolver, canonical: Canonical, good: Unit) -> list[str]:
    """Solve again, expect the same unit, and give what the cache answered."""
    again.events.clear()
    found = again.solve(canonical, "conv")
    assert isinstance(found, Unit)
    assert (found.schedule_text, found.kernel) == (good.schedule_text, good.kernel)
    assert encode_unit(found.program) == encode_unit(good.program)
    return [event.outcome for event in again.events]


def test_an_illegal_schedule_in_the_cache_is_a_miss() -> None:
    one = solver()
    canonical = canonicalize(conv(1, 3, 8, 6, 3, 1, 1))
    good = one.solve(canonical, "conv")
    assert isinstance(good, Unit)
    key = one.schedule_key(canonical.signature)
    cache = one.cache
    assert isinstance(cache, MemoryCache)
    text = cache.entries[key.digest].decode()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("move ")]
    cache.entries[key.digest] = "\n".join(lines).encode()
    assert _outcomes(one, canonical, good) == ["miss", "hit"]


@pytest.mark.parametrize("stored", [b"", b"{", b"{}", b"TWPROG05", b"TWPROG99" + bytes(64)])
def test_a_damaged_program_in_the_cache_is_a_miss(stored: bytes) -> None:
    one = solver()
    canonical = canonicalize(conv(1, 3, 8, 6, 3, 1, 1))
    good = one.solve(canonical, "conv")
    assert isinstance(good, Unit)
    cache = one.cache
    assert isinstance(cache, MemoryCache)
    key = one.program_key(good.schedule_text).digest
    assert cache.entries[key] == encode_unit(good.program)
    for damaged in (stored, cache.entries[key][:-8]):
        cache.entries[key] = damaged
        assert _outcomes(one, canonical, good) == ["hit", "miss"]


def test_an_illegal_program_in_the_cache_is_a_miss() -> None:
    """It reads well, and a buffer of it lies outside its memory, or it is another unit's."""
    one = solver()
    canonical = canonicalize(conv(1, 3, 8, 6, 3, 1, 1))
    good = one.solve(canonical, "conv")
    assert isinstance(good, Unit)
    cache = one.cache
    assert isinstance(cache, MemoryCache)
    key = one.program_key(good.schedule_text).digest
    first = good.program.buffers[0]
    outside = replace(first, address=first.address + (1 << 40))
    for planted in (
        replace(good.program, buffers=(outside, *good.program.buffers[1:])),
        replace(good.program, signature="0" * 64),
    ):
        cache.entries[key] = encode_unit(planted)
        assert _outcomes(one, canonical, good) == ["hit", "miss"]


def test_a_program_that_is_legal_and_wrong_is_lowered_anew() -> None:
    """Two transfers of a planted program have changed places: the audit finds it."""
    one = solver()
    canonical = canonicalize(conv(1, 3, 32, 6, 3, 1, 1))
    good = one.solve(canonical, "conv")
    assert isinstance(good, Unit)
    cache = one.cache
    assert isinstance(cache, MemoryCache)
    rows = good.program.instructions.copy()
    loads = np.flatnonzero((rows["opcode"] == int(Opcode.LOAD)) & (rows["src_offset"] > 0))
    rows["src_offset"][loads[0]] = 0  # another part of the operand
    planted = replace(good.program, instructions=rows)
    verify_program(planted, one.machine)
    cache.entries[one.program_key(good.schedule_text).digest] = encode_unit(planted)
    assert _outcomes(one, canonical, good) == ["hit", "hit"]


def test_no_text_that_will_be_run_is_stored() -> None:
    """C comes from the schedule and program of this process: no entry can plant it."""
    one = solver()
    unit = one.solve(canonicalize(conv(1, 3, 8, 6, 3, 1, 1)), "conv")
    assert isinstance(unit, Unit)
    assert "tw_machine *m" in unit.kernel
    cache = one.cache
    assert isinstance(cache, MemoryCache)
    assert not [d for d, value in cache.entries.items() if b"tw_machine" in value]


def test_the_digest_of_a_program_is_that_of_its_bytes() -> None:
    unit = solver().solve(canonicalize(conv(1, 3, 8, 6, 3, 1, 1)), "conv")
    assert isinstance(unit, Unit)
    assert unit_digest(unit.program) == sha256(encode_unit(unit.program)).hexdigest()


def test_first_writer_wins() -> None:
    cache = MemoryCache()
    key = CacheKey(CacheKind.PROGRAM, (("a", "b"),))
    cache.put(key, b"one")
    cache.put(key, b"two")
    assert cache.get(key) == b"one"


def test_the_schedule_of_another_unit_is_a_miss() -> None:
    one = solver()
    mine = canonicalize(conv(1, 3, 8, 6, 3, 1, 1))
    other = canonicalize(conv(1, 3, 8, 6, 3, 1, 0))
    good = one.solve(mine, "mine")
    assert isinstance(good, Unit)
    assert not isinstance(one.solve(other, "other"), Shortfall)
    cache = one.cache
    assert isinstance(cache, MemoryCache)
    stolen = cache.entries[one.schedule_key(other.signature).digest]
    cache.entries[one.schedule_key(mine.signature).digest] = stolen
    assert _outcomes(one, mine, good) == ["miss", "hit"]

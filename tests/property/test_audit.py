"""The audit of lowered programs against byte-by-byte brute force, on faults put in by seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from audit_cases import CASES
from audit_oracle import is_sound, passes
from program_faults import FAULTS

from worker.compiler.audit.audit import audit
from worker.compiler.errors import VerifyError
from worker.compiler.lower import buffers, lower
from worker.compiler.lower.emit import emit
from worker.compiler.lower.lower import lower_unit
from worker.compiler.lower.rows import hazards, storage
from worker.compiler.lower.rows.storage import Touch
from worker.compiler.machine import load_preset
from worker.compiler.schedule.text import parse_schedule


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_brute_force(name: str) -> None:
    schedule, machine = CASES[name]()
    program = lower_unit(schedule, machine, "0" * 64)
    assert is_sound(schedule, machine, program)
    assert passes(schedule, machine, program)
    rng = np.random.default_rng(7)
    for kind, fault in FAULTS.items():
        for _ in range(2):
            broken = fault(program, rng)
            found = not passes(schedule, machine, broken)
            if kind == "astray":  # the walk knows addresses only, by which buffers may agree
                assert found
            elif kind == "crowded":  # the walk's values suffer like the program's: it proves less
                assert found or is_sound(schedule, machine, broken)
            else:
                assert found != is_sound(schedule, machine, broken), kind


def test_finds_each_of_fifty_faults() -> None:
    """Dropped, doubled, early and misplaced instructions that brute force calls harmful."""
    made = [f() for f in CASES.values()]
    programs = [(s, m, lower_unit(s, m, "0" * 64)) for s, m in made]
    rng = np.random.default_rng(2026)
    for kind in ("dropped", "doubled", "early", "hasty", "misplaced"):
        harmful = 0
        while harmful < 10:
            schedule, machine, program = programs[int(rng.integers(len(programs)))]
            broken = FAULTS[kind](program, rng)
            if is_sound(schedule, machine, broken):
                continue
            harmful += 1
            assert not passes(schedule, machine, broken), kind


BROKEN: dict[str, tuple[object, str, Callable[..., object]]] = {
    "no order of writes": (storage, "ordered_writes", lambda *_: False),
    "identities are not values": (storage, "reads_identity", lambda *_: False),
    "no shared addresses": (storage.Storages, "shares_addresses", lambda *_: False),
    "nothing conflicts": (buffers, "conflicts", lambda spans, _: (frozenset(),) * len(spans)),
    "one slot": (storage, "slots", lambda *_: np.zeros((), dtype=np.int64)),
    "one core's iterations": (
        emit, "core_ids", lambda base, *_: np.array(base, dtype=np.int64)
    ),
    "homes need no token": (
        lower, "home_hazards", lambda *_: hazards.HomeHazards((), frozenset())
    ),
    "no wait for readers": (
        storage, "Touch",
        lambda *a, **k: replace(Touch(*a, **k), waits_free=False, starts_value=False),
    ),
    "no wait for writers": (
        storage, "Touch", lambda *a, **k: replace(Touch(*a, **k), waits_ready=False)
    ),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_finds_what_broken_lowering_makes(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    monkeypatch.setattr(*BROKEN[broken])
    harmful = 0
    for make in CASES.values():
        schedule, machine = make()
        program = lower_unit(schedule, machine, "0" * 64)
        if not is_sound(schedule, machine, program):
            harmful += 1
            assert not passes(schedule, machine, program)
    assert harmful, "this change breaks nothing here"


STRIDED = """schedule naive cycles=1
graph
  input x: f32[4,8,3]
  tensor y: f32[32]
  op sums (i:4:parallel, j:8:parallel, k:3:reduce) write y[8*i + j] reduce=add = $0 from n {}
    read x[i, j, k]
  output y
tree
  loop time v0 2
    place y L1 [4*v0:28] init=identity
      seq
        loop time v1 4
          place x L1 [v1:1, 4*v0:4, 0:3]
            seq
              move x DDR : L1 [v1:1, 4*v0:4, 0:3]
              compute sums VME [v1:1, 4*v0:4, 0:3]
        move y L1 : DDR [4*v0:28]
"""


def test_a_box_with_holes_is_found_in_the_program() -> None:
    """What GraphTurbo once stored: rows of 4 columns drained as one box, over their neighbours."""
    schedule, machine = parse_schedule(STRIDED), load_preset("stcp920-inferred")
    program = lower_unit(schedule, machine, "0" * 64)
    with pytest.raises(VerifyError) as refused:
        audit(schedule, program, machine)
    assert refused.value.rule == "once"

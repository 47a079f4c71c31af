"""Oracles price instructions: their answers are the machine's, and what is no answer is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from instruction_chips import chip, cv, priced
from kernel_toys import matmul_graph
from numpy import int64

from worker.compiler import vendors
from worker.compiler.cache import CacheKind, MemoryCache, NullCache
from worker.compiler.cost.calls import CallRate
from worker.compiler.cost.compute import contraction, pace_of
from worker.compiler.errors import InternalError, OptionError, SpecError
from worker.compiler.faults import limited_by
from worker.compiler.ir.dtype import DType
from worker.compiler.machine import digest, load_machine
from worker.compiler.machine.digest import machine_document, machine_of
from worker.compiler.machine.intrinsic import Answers, CallSize, stepped
from worker.compiler.oracles import OracleCall, asked
from worker.compiler.vendors import OracleDescriptor
from worker.job.watchdog import Watchdog

Calls = Sequence[OracleCall]
HEARD: list[Calls] = []
_COUNTER = count(1)


def area(calls: Calls) -> list[int]:
    """A call takes a cycle for every 512 points, and 10 to start."""
    HEARD.append(calls)
    return [10 + -(-c.extents[0] * c.extents[1] * c.extents[2] // 512) for c in calls]


def slow(calls: Calls) -> list[int]:
    return [20 * cycles for cycles in area(calls)]


def whole(calls: Calls) -> list[int64]:
    """numpy's integers are integers."""
    return [int64(cycles) for cycles in area(calls)]


def raises(calls: Calls) -> list[int]:
    raise KeyError(calls[0].instruction)


def exits(calls: Calls) -> list[int]:
    raise SystemExit(len(calls))


def hangs(calls: Calls) -> list[int]:
    while True:
        hash(calls[0].engine)


def negative(calls: Calls) -> list[int]:
    return [-1 for _ in calls]


def fractional(calls: Calls) -> list[float]:
    return [1.5 for _ in calls]


def truthful(calls: Calls) -> list[bool]:
    return [True for _ in calls]


def short(calls: Calls) -> list[int]:
    return [1 for _ in calls[1:]]


def number(calls: Calls) -> int:
    return len(calls)


def changing(calls: Calls) -> list[int]:
    return [next(_COUNTER) for _ in calls]


GOOD = (area, slow, whole)
RUDE = (raises, exits, hangs, negative, fractional, truthful, short, number, changing)
BROUGHT: dict[str, Any] = {
    f"{f.__name__}_oracle": OracleDescriptor(f.__name__, "1", "", f"test_oracles:{f.__name__}")
    for f in (*GOOD, *RUDE)
}
BROUGHT["broken"] = OracleDescriptor("Broken", "1", "", "test_oracles:area")
BROUGHT["none"] = 3


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def found(group: str) -> list[EntryPoint]:
        assert group == vendors.ORACLES
        return [EntryPoint(name, f"test_oracles:{name}", group) for name in BROUGHT]

    monkeypatch.setitem(sys.modules, "test_oracles", sys.modules[__name__])
    for name, descriptor in BROUGHT.items():
        monkeypatch.setattr(sys.modules[__name__], name, descriptor, raising=False)
    monkeypatch.setattr(vendors, "entry_points", found)
    vendors.installed_oracles.cache_clear()
    HEARD.clear()
    yield
    vendors.installed_oracles.cache_clear()


def by(oracle: str, **more: Any) -> dict[str, Any]:
    """The instruction of `cv`, priced by an oracle at every half of its extents."""
    document = {**cv(1), "oracle": oracle, "granule": [1, 32, 4, 8, 3, 3, 8], **more}
    return {k: v for k, v in document.items() if k != "cycles" and v is not None}


def test_what_an_oracle_says_is_what_the_kernel_takes(tmp_path: Any) -> None:
    fast, text, named = priced(tmp_path, chip(by("area")))
    slower, _, _ = priced(tmp_path, chip(by("slow")))
    assert (named, "intrinsic=cv" in text) == ("cv", True)
    plain, text, _ = priced(tmp_path, chip(patterns=()))
    assert fast < slower <= plain
    avoided, text, _ = priced(tmp_path, chip(by("slow", granule=None)))
    assert avoided <= plain


def test_it_is_asked_once_in_one_batch_of_typed_calls() -> None:
    document = chip(by("area"))
    document["capabilities"]["layout"] = {
        "activations": "NHWC", "weights": "OHWI", "op_types": ["Conv"],
    }  # fmt: skip
    cache, machine = MemoryCache(), load_machine(document)
    first = asked(machine, cache)
    batch, again = HEARD
    (engine,) = (e for e in machine.engines if e.intrinsics)
    asked_first = [(32, 32, 72), (32, 32, 144), (64, 32, 72), (64, 32, 144)]
    assert [c.extents for c in batch[:4]] == asked_first
    assert len(batch) == 4 * len(engine.macs_per_cycle)
    assert set(again) <= set(batch)
    left, right, result = batch[0].operands
    assert (left.role, left.extents, left.dtype, left.layout) == ("left", (32, 72), "i8", "NHWC")
    assert (right.extents, right.layout, result.extents, result.dtype) == (
        (72, 32), "OHWI", (32, 32), "i32",
    )  # fmt: skip
    assert asked(machine, cache) == first and len(HEARD) == 2
    (key,) = cache.keys.values()
    assert key.kind is CacheKind.ORACLE
    assert dict(key.fields)["oracle"] == "area" and dict(key.fields)["version"] == "1"


def test_nobody_is_asked_where_the_cache_must_know() -> None:
    cache, machine = MemoryCache(), load_machine(chip(by("area")))
    heard = len(HEARD)
    with pytest.raises(OptionError) as caught:
        asked(machine, cache, is_known=True)
    assert (caught.value.code, caught.value.place.pointer) == (
        "TW-OPT-002", "/engines/0/intrinsics/0/oracle"
    )  # fmt: skip
    assert len(HEARD) == heard and not cache.entries
    assert asked(machine, cache) == asked(machine, cache, is_known=True)


def test_answers_are_part_of_the_machine() -> None:
    fast, slower = (asked(load_machine(chip(by(o))), NullCache()) for o in ("area", "slow"))
    assert digest(fast) != digest(slower)
    back = machine_of(machine_document(fast))
    assert back.engines == fast.engines
    assert asked(load_machine(chip(by("whole"))), NullCache()).engines[0].intrinsics[0].sizes == (
        fast.engines[0].intrinsics[0].sizes
    )


def test_more_than_the_engine_can_is_a_doubt() -> None:
    for oracle, doubted in (("slow", []), ("area", ["/engines/0/intrinsics/0"])):
        guesses = asked(load_machine(chip(by(oracle))), NullCache()).guesses
        assert [g.pointer for g in guesses if "intrinsics" in g.pointer] == doubted


@pytest.mark.parametrize(
    ("oracle", "said"),
    [
        ("raises", "KeyError"),
        ("exits", "SystemExit"),
        ("negative", "it gave -1 for cv of 32 x 32 x 72 in i8, no cycles from 1"),
        ("fractional", "'float' object cannot be interpreted as an integer, in place of cycles"),
        ("truthful", "it gave True for cv"),
        ("short", "answers to"),
        ("number", "'int' object is not iterable"),
        ("changing", "it gave"),
    ],
)
def test_what_is_no_answer_ends_with_code_and_pointer(oracle: str, said: str) -> None:
    cache = MemoryCache()
    with pytest.raises(SpecError) as caught:
        asked(load_machine(chip(by(oracle))), cache)
    assert caught.value.code == "TW-PLUG-006"
    assert caught.value.place.pointer == "/engines/0/intrinsics/0/oracle"
    assert f"oracle {oracle} 1" in caught.value.message and said in caught.value.message
    assert not cache.entries


def test_one_that_hangs_is_stopped() -> None:
    with limited_by(Watchdog(0.5)), pytest.raises(SpecError) as caught:
        asked(load_machine(chip(by("hangs"))), NullCache())
    assert caught.value.code == "TW-PLUG-006"
    assert "timed out after 0.5 s of" in caught.value.message


def test_one_that_nothing_brings_is_refused_and_none_may_be_left_unasked() -> None:
    machine = load_machine(chip(by("absent")))
    with pytest.raises(SpecError) as caught:
        asked(machine, NullCache())
    assert caught.value.code == "TW-PLUG-001"
    assert caught.value.place.pointer == "/engines/0/intrinsics/0/oracle"
    graph = matmul_graph(8, 8, 8, DType.I8)
    op = next(op for op in graph.ops if contraction(op) is not None)
    with pytest.raises(InternalError, match="was not asked for cv in i8"):
        pace_of(replace(op, instruction="cv"), machine.engines[0], graph.tensors)


def test_what_another_job_stored_wrong_is_asked_anew() -> None:
    cache, machine = MemoryCache(), load_machine(chip(by("area")))
    good = asked(machine, cache)
    (stored,) = cache.entries
    for bad in (b"[1]", b"garbage", b"[0" + b",0" * 15 + b"]"):
        cache.entries[stored] = bad
        assert asked(machine, cache) == good


@given(
    most=st.tuples(*[st.integers(1, 9)] * 3), step=st.tuples(*[st.integers(1, 9)] * 3),
    box=st.tuples(*[st.integers(1, 25)] * 3),
)  # fmt: skip
def test_a_box_costs_the_calls_that_cover_it_each_at_its_step(
    most: tuple[int, int, int], step: tuple[int, int, int], box: tuple[int, int, int]
) -> None:
    """Beside calls counted one by one, and never below the best rate."""
    step = tuple(min(s, m) for s, m in zip(step, most, strict=True))  # type: ignore[assignment]
    sizes = stepped(most, step)
    table = {size: 1 + (7 * k) % 13 for k, size in enumerate(sizes)}
    best = max(m * n * k / c for (m, n, k), c in table.items())
    answers = Answers(DType.I8, step, tuple(table.values()), best)
    rate = CallRate("cv", (CallSize(most, (), answers),), ((0,), (1,), (2,), ()))
    total = 0
    for m in range(0, box[0], most[0]):
        for n in range(0, box[1], most[1]):
            for k in range(0, box[2], most[2]):
                left = [min(a, b - c) for a, b, c in zip(most, box, (m, n, k), strict=True)]
                total += table[
                    tuple(min(-(-e // s) * s, a) for e, s, a in zip(left, step, most, strict=True))
                ]
    assert rate.cycles(box) == total
    assert total >= box[0] * box[1] * box[2] / rate.peak - 1e-6

"""Cycle oracles: what prices calls of an instruction in place of its document, behind entry points.

A machine comes in whose instructions name oracles, and one goes out that has their answers: what
searches, bounds, lowering and simulation read is the same value, its digest covers every answer,
and a bundle's machine has them.  Nothing is asked while schedules are searched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from operator import index
from typing import NoReturn, Protocol

from worker.compiler.cache import Cache, CacheKey, CacheKind
from worker.compiler.errors import OptionError, SpecError, said
from worker.compiler.faults import Fault, attempt
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.build_calls import doubtful_calls
from worker.compiler.machine.intrinsic import Answers, CallSize, Intrinsic, Question, stepped
from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.plugins import named
from worker.compiler.vendors import OracleDescriptor, oracles

_MOST_CYCLES = 10**9
"""Of a call, as a document may say."""
_TWICE = 64
"""Calls that a batch is asked again, in the other order: an answer that depends on what was asked
before, or on nothing at all, is none."""


@dataclass(frozen=True, slots=True)
class CallOperand:
    """What a call reads or writes."""

    role: str
    """`left`, `right` and `result` of a product; `data` and `result` of element-wise work."""
    extents: tuple[int, ...]
    """(rows, depth), (depth, columns), (rows, columns); or the points."""
    dtype: str
    """i8, f16 and so on; a result has the format that sums of it are kept in."""
    layout: str
    """That the target computes in, in letters; empty: as the model has it."""


@dataclass(frozen=True, slots=True)
class OracleCall:
    """One call of an instruction."""

    engine: str
    instruction: str
    op: str
    """`matmul`, `conv` or `elementwise`."""
    extents: tuple[int, int, int]
    """Rows, columns and depth of a product; the points, 1 and 1."""
    operands: tuple[CallOperand, ...]


class Oracle(Protocol):
    """Gives the cycles of every call, in order, from 1; the same call takes the same cycles."""

    def __call__(self, calls: Sequence[OracleCall]) -> Sequence[int]: ...


def is_asking(machine: Machine) -> bool:
    """Whether some instruction names an oracle."""
    return any(i.question for engine in machine.engines for i in engine.intrinsics)


def asked(machine: Machine, cache: Cache, *, is_known: bool = False) -> Machine:
    """The machine with the answers of its oracles; itself where it names none.

    Every instruction is one batch, for all sizes, formats and layouts; where layouts of targets
    differ, the most that a call takes in any of them counts.  `cache` is asked before, by the
    oracle, its version, its distribution and the digest of the batch; with `is_known` it must have
    all of them.

    Raises:
        OptionError: TW-OPT-002, the cache has no answers and nobody may be asked.
        SpecError: TW-PLUG-001, no package brings an oracle; TW-PLUG-006, one raised, hung, gave
            no cycles, or gave others the second time.  With the pointer to its name.
    """
    if not is_asking(machine):
        return machine
    engines = tuple(_answered(engine, machine, cache, is_known) for engine in machine.engines)
    guesses = list(machine.guesses)
    for k, engine in enumerate(engines):
        mine = tuple(i if i.question else replace(i, sizes=()) for i in engine.intrinsics)
        guesses += doubtful_calls(f"/engines/{k}", engine.macs_per_cycle.values(), mine)
    guesses.sort(key=lambda guess: guess.pointer)
    return replace(machine, engines=engines, guesses=tuple(guesses))


def require_oracle(question: Question) -> OracleDescriptor:
    """The installed oracle that is named.

    Raises:
        SpecError: TW-PLUG-001.
    """
    found = oracles().get(question.oracle)
    if found is None:
        raise SpecError(
            "TW-PLUG-001",
            f"an instruction names oracle {question.oracle}, which is not installed here",
            pointer=question.pointer,
            limit=list(oracles()),
            actual=question.oracle,
        )
    return found


def _answered(engine: Engine, machine: Machine, cache: Cache, is_known: bool) -> Engine:
    intrinsics = tuple(
        i if i.question is None else _priced(i, i.question, engine, machine, cache, is_known)
        for i in engine.intrinsics
    )
    return replace(engine, intrinsics=intrinsics)


def _priced(
    intrinsic: Intrinsic, question: Question, engine: Engine, machine: Machine, cache: Cache,
    is_known: bool,
) -> Intrinsic:  # fmt: skip
    one = require_oracle(question)
    sizes = stepped(question.extents, question.granule)
    layouts = _layouts(engine, machine)
    batch = tuple(
        _call(intrinsic, engine, size, dtype, layout)
        for dtype in engine.macs_per_cycle
        for layout in layouts
        for size in sizes
    )
    cycles = _cycles(one, question, batch, cache, is_known)
    found: list[CallSize] = []
    for k, dtype in enumerate(engine.macs_per_cycle):
        begin = k * len(layouts) * len(sizes)
        rows = [
            cycles[begin + n * len(sizes) : begin + (n + 1) * len(sizes)]
            for n in range(len(layouts))
        ]
        worst = tuple(max(each) for each in zip(*rows, strict=True))
        best = max(m * n * d / c for (m, n, d), c in zip(sizes, worst, strict=True))
        answers = Answers(dtype, question.granule, worst, best)
        found.append(CallSize(question.extents, (), answers))
    return replace(intrinsic, sizes=tuple(found))


def _layouts(engine: Engine, machine: Machine) -> tuple[tuple[str, str], ...]:
    """(of activations, of weights) that targets with the engine compute in."""
    policies = (
        target.layout for target in machine.targets
        if not target.engines or engine.name in target.engines
    )  # fmt: skip
    found = (("", "") if each is None else (each.activations, each.weights) for each in policies)
    return tuple(dict.fromkeys(found)) or (("", ""),)


def _call(
    intrinsic: Intrinsic,
    engine: Engine,
    size: tuple[int, ...],
    dtype: DType,
    layout: tuple[str, str],
) -> OracleCall:
    rows, columns, depth = size
    activations, weights = layout
    kept = dtype.accumulator.value
    if intrinsic.op == "elementwise":
        operands: tuple[CallOperand, ...] = (
            CallOperand("data", (rows,), dtype.value, activations),
            CallOperand("result", (rows,), dtype.value, activations),
        )
    else:
        operands = (
            CallOperand("left", (rows, depth), dtype.value, activations),
            CallOperand("right", (depth, columns), dtype.value, weights),
            CallOperand("result", (rows, columns), kept, activations),
        )
    return OracleCall(engine.name, intrinsic.name, intrinsic.op, (rows, columns, depth), operands)


def _cycles(
    one: OracleDescriptor, question: Question, batch: tuple[OracleCall, ...], cache: Cache,
    is_known: bool,
) -> tuple[int, ...]:  # fmt: skip
    """Of every call, in order."""
    text = json.dumps([asdict(call) for call in batch], separators=(",", ":"))
    key = CacheKey(
        CacheKind.ORACLE,
        (
            ("oracle", one.name),
            ("version", one.version),
            ("distribution", one.distribution),
            ("calls", sha256(text.encode()).hexdigest()),
        ),
    )
    stored = cache.get(key)
    known = None if stored is None else _stored(stored, len(batch))
    if known is None and is_known:
        raise OptionError(
            "TW-OPT-002",
            f"no answers of oracle {one.name} are cached for these calls",
            pointer=question.pointer,
            actual=key.digest,
        )
    if known is None:
        known = _given(one, question, batch)
        again = batch[:: max(1, len(batch) // _TWICE)][::-1]
        first = known[:: max(1, len(batch) // _TWICE)][::-1]
        for call, before, now in zip(again, first, _given(one, question, again), strict=True):
            if before != now:
                _refuse(one, question, f"it gave {before} cycles for {_said(call)}, then {now}")
        cache.put(key, json.dumps(known, separators=(",", ":")).encode())
    return known


def _given(
    one: OracleDescriptor, question: Question, batch: tuple[OracleCall, ...]
) -> tuple[int, ...]:
    def ask() -> Sequence[int]:
        oracle: Oracle = named(one.implementation)
        return list(oracle(batch))

    found = attempt(one.name, one.version, "price", ask)
    if isinstance(found, Fault):
        _refuse(one, question, found.reason)
    if len(found) != len(batch):
        _refuse(one, question, f"it gave {len(found)} answers to {len(batch)} calls")
    return tuple(_checked(found, batch, one, question))


def _checked(
    found: Sequence[object],
    batch: tuple[OracleCall, ...],
    one: OracleDescriptor,
    question: Question,
) -> Iterator[int]:
    for call, given in zip(batch, found, strict=True):
        try:
            cycles = index(given)  # type: ignore[arg-type]  # that is what is asked here
        except Exception as error:  # whatever a vendor's object does
            _refuse(one, question, f"{said(error)}, in place of cycles for {_said(call)}")
        if isinstance(given, bool) or not 1 <= cycles <= _MOST_CYCLES:
            _refuse(
                one, question,
                f"it gave {given!r} for {_said(call)}, no cycles from 1 to {_MOST_CYCLES}",
            )  # fmt: skip
        yield cycles


def _stored(stored: bytes, count: int) -> tuple[int, ...] | None:
    """What the cache has; None: another job's entry that is none."""
    try:
        found = json.loads(stored)
    except ValueError:
        return None
    is_good = isinstance(found, list) and len(found) == count
    if not is_good or not all(type(c) is int and 1 <= c <= _MOST_CYCLES for c in found):
        return None
    return tuple(found)


def _said(call: OracleCall) -> str:
    m, n, k = call.extents
    return f"{call.instruction} of {m} x {n} x {k} in {call.operands[0].dtype}"


def _refuse(one: OracleDescriptor, question: Question, reason: str) -> NoReturn:
    raise SpecError(
        "TW-PLUG-006",
        f"oracle {one.name} {one.version} of {one.distribution or 'Tilewright'} failed: {reason}",
        pointer=question.pointer,
    )

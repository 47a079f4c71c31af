"""Faults that lowering could make, put into programs by a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from worker.compiler.isa.program import Opcode, UnitProgram

Lists = list[list[int]]


def _lists(pointer: np.ndarray, tokens: np.ndarray) -> Lists:
    return [tokens[a:b].tolist() for a, b in pairwise(pointer.tolist())]


def _rebuilt(unit: UnitProgram, rows: np.ndarray, waits: Lists, signals: Lists) -> UnitProgram:
    def csr(lists: Lists) -> tuple[np.ndarray, np.ndarray]:
        pointer = np.concatenate([[0], np.cumsum([len(x) for x in lists])]).astype(np.int32)
        return pointer, np.array([t for x in lists for t in x], dtype=np.int32)

    (wait_ptr, wait), (signal_ptr, signal) = csr(waits), csr(signals)
    return replace(
        unit, instructions=rows, wait_ptr=wait_ptr, wait_token=wait, signal_ptr=signal_ptr,
        signal_token=signal,
    )  # fmt: skip


def reordered(unit: UnitProgram, order: Sequence[int]) -> UnitProgram:
    """The instructions numbered `order`, each with its waits and signals."""
    waits = _lists(unit.wait_ptr, unit.wait_token)
    signals = _lists(unit.signal_ptr, unit.signal_token)
    return _rebuilt(
        unit, unit.instructions[list(order)], [waits[i] for i in order], [signals[i] for i in order]
    )


def _transfer(unit: UnitProgram, rng: np.random.Generator) -> int:
    moves = np.flatnonzero(unit.instructions["opcode"] != int(Opcode.COMPUTE))
    return int(rng.choice(moves))


def dropped(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """One transfer or compute less."""
    at = int(rng.integers(unit.num_instructions))
    return reordered(unit, [i for i in range(unit.num_instructions) if i != at])


def doubled(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """One transfer or compute twice."""
    at = int(rng.integers(unit.num_instructions))
    return reordered(unit, sorted([*range(unit.num_instructions), at]))


def hasty(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """One instruction waits for one token less."""
    waits = _lists(unit.wait_ptr, unit.wait_token)
    having = [i for i, tokens in enumerate(waits) if tokens]
    if not having:
        return unit
    at = having[int(rng.integers(len(having)))]
    waits[at].pop(int(rng.integers(len(waits[at]))))
    return _rebuilt(unit, unit.instructions, waits, _lists(unit.signal_ptr, unit.signal_token))


def silent(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """One instruction signals one token less."""
    signals = _lists(unit.signal_ptr, unit.signal_token)
    having = [i for i, tokens in enumerate(signals) if tokens]
    if not having:
        return unit
    at = having[int(rng.integers(len(having)))]
    signals[at].pop(int(rng.integers(len(signals[at]))))
    return _rebuilt(unit, unit.instructions, _lists(unit.wait_ptr, unit.wait_token), signals)


def early(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """One instruction stands some places nearer to the start."""
    at = int(rng.integers(1, max(unit.num_instructions, 2)))
    to = max(at - int(rng.integers(1, 9)), 0)
    order = [i for i in range(unit.num_instructions) if i != at]
    if at < unit.num_instructions:
        order.insert(to, at)
    return reordered(unit, order)


def misplaced(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """A transfer's address is off by a slot, a row or an element."""
    rows = unit.instructions.copy()
    at = _transfer(unit, rng)
    side = str(rng.choice(["src", "dst"]))
    buffer = int(rows[side][at])
    step = int(rng.choice([unit.buffers[buffer].slot_bytes, 4] if buffer >= 0 else [4, 16]))
    offset = int(rows[f"{side}_offset"][at])
    rows[f"{side}_offset"][at] = (
        offset + step if offset < step or rng.integers(2) else offset - step
    )
    return replace(unit, instructions=rows)


def astray(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """A transfer has another buffer at one end."""
    rows = unit.instructions.copy()
    at = _transfer(unit, rng)
    side = str(rng.choice(["src", "dst"]))
    others = [k for k in range(-1, len(unit.buffers)) if k != int(rows[side][at])]
    rows[side][at] = int(rng.choice(others))
    return replace(unit, instructions=rows)


def short(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """A transfer carries fewer bytes."""
    rows = unit.instructions.copy()
    at = _transfer(unit, rng)
    rows["bytes"][at] = int(rows["bytes"][at]) // 2
    return replace(unit, instructions=rows)


def crowded(unit: UnitProgram, rng: np.random.Generator) -> UnitProgram:
    """A buffer lies where another one is."""
    if len(unit.buffers) < 2:
        return unit
    a, b = rng.choice(len(unit.buffers), 2, replace=False).tolist()
    buffers = list(unit.buffers)
    buffers[a] = replace(buffers[a], address=buffers[b].address)
    return replace(unit, buffers=tuple(buffers))


FAULTS: dict[str, Callable[[UnitProgram, np.random.Generator], UnitProgram]] = {
    f.__name__: f
    for f in (dropped, doubled, hasty, silent, early, misplaced, astray, short, crowded)
}

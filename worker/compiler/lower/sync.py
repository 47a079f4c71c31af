"""Tokens: which instructions wait for which.

Every storage (lower/storage.py) has two tokens.  `ready` is signalled by instructions that write
it, `free` by those that read it.  A reader waits for `ready`; a writer waits for `free` (the last
value has been used), for `ready` where writes may overlap, and for both tokens of every other scope
that uses the same addresses at another time.
As a token's time is the latest signal so far in program order, one pair per storage is enough:
program order tells which signals count.  Waits on tokens that nothing has signalled yet are
dropped, and so are signals nobody waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.compiler.lower.batch import Batch
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.storage import Storages


@dataclass(frozen=True, slots=True)
class Tokens:
    """Shapes: wait_ptr, signal_ptr [n+1]; CSR lists parallel to the program."""

    wait_ptr: npt.NDArray[np.int32]
    wait_token: npt.NDArray[np.int32]
    signal_ptr: npt.NDArray[np.int32]
    signal_token: npt.NDArray[np.int32]
    num_tokens: int


_Column = tuple[Ints, Ints]
"""(places in program order, tokens), equally long; places are distinct."""


def synchronise(batches: Sequence[Batch], places: Sequence[Ints], storages: Storages) -> Tokens:
    """Tokens of a merged program.  Cost: linear in instructions times touches."""
    waits: list[_Column] = []
    signals: list[_Column] = []
    for batch, place in zip(batches, places, strict=True):
        wait, signal = _tokens_of(batch, storages)
        waits.extend(_present(place, token) for token in wait)
        signals.extend(_present(place, token) for token in signal)
    num_tokens = 2 * storages.count
    total = sum(b.count for b in batches)
    first_signal = np.full(num_tokens, total, dtype=np.int64)
    for place, token in signals:
        np.minimum.at(first_signal, token, place)
    waits = [_select(p, t, first_signal[t] < p) for p, t in waits]
    is_used = np.zeros(num_tokens, dtype=bool)
    for _, token in waits:
        is_used[token] = True
    signals = [_select(p, t, is_used[t]) for p, t in signals]
    number = np.cumsum(is_used, dtype=np.int64) - 1
    wait_ptr, wait_token = _csr(waits, number, total)
    signal_ptr, signal_token = _csr(signals, number, total)
    return Tokens(wait_ptr, wait_token, signal_ptr, signal_token, int(is_used.sum()))


def _tokens_of(batch: Batch, storages: Storages) -> tuple[list[Ints], list[Ints]]:
    """Token columns (waited for, signalled) of a batch; -1 where an instruction has none."""
    waits: list[Ints] = []
    signals: list[Ints] = []
    for touch in batch.touches:
        storage = np.broadcast_to(touch.storage, (batch.count,))
        ready, free = storage * 2, storage * 2 + 1
        signals.append(ready if touch.is_write else free)
        if touch.waits_ready:
            waits.append(ready)
        if touch.waits_free:
            waits.append(free)
        if touch.scope >= 0:
            for other in storages.sharing(touch.scope, storage):
                waits.append(np.where(other < 0, -1, other * 2))
                waits.append(np.where(other < 0, -1, other * 2 + 1))
    return waits, signals


def _present(place: Ints, token: Ints) -> _Column:
    return _select(place, token, token >= 0)


def _select(place: Ints, token: Ints, keep: npt.NDArray[np.bool_]) -> _Column:
    return (place, token) if keep.all() else (place[keep], token[keep])


def _csr(
    columns: Sequence[_Column], number: Ints, total: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Collect columns by instruction.  Within one instruction, column order is kept."""
    counts = np.zeros(total, dtype=np.int64)
    for place, _ in columns:
        counts[place] += 1
    pointer = np.zeros(total + 1, dtype=np.int64)
    np.cumsum(counts, out=pointer[1:])
    tokens = np.empty(int(pointer[-1]), dtype=np.int32)
    cursor = pointer[:-1].copy()
    for place, token in columns:
        tokens[cursor[place]] = number[token]
        cursor[place] += 1
    return pointer.astype(np.int32), tokens

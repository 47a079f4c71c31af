"""Tokens: which instructions wait for which.

Every storage (lower/storage.py) has two tokens.  `ready` is signalled by instructions that write
it, `free` by those that read it.  A reader waits for `ready`; a writer waits for `free` (the last
value has been used), for `ready` where writes may overlap, and for both tokens of every other scope
that uses the same addresses at another time.
As a token's time is the latest signal so far in program order, one pair per storage is enough:
program order tells which signals count.  Waits on tokens that nothing has signalled yet are
dropped, and so are signals nobody waits for.  In a unit of many layers dozens of buffers share an
address; there, waits that a stream repeats without anything new being signalled are dropped too
(27 times fewer tokens for 60 layers on 32 cores, the same times).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.compiler.lower.batch import Batch
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.shared import Pairs, most_shared_waits, shared_waits
from worker.compiler.lower.storage import Storages


@dataclass(frozen=True, slots=True)
class Tokens:
    """Shapes: wait_ptr, signal_ptr [n+1]; CSR lists parallel to the program."""

    wait_ptr: npt.NDArray[np.int32]
    wait_token: npt.NDArray[np.int32]
    signal_ptr: npt.NDArray[np.int32]
    signal_token: npt.NDArray[np.int32]
    num_tokens: int


_MANY_WAITS = 8
"""Waits per instruction from which repeated ones are dropped: addresses that many layers share."""


def synchronise(
    batches: Sequence[Batch], places: Sequence[Ints], storages: Storages, stream: Ints
) -> Tokens:
    """Tokens of a merged program, whose instructions run in `stream` (one per instruction).

    Cost: sorting the touches by instruction; `shared_waits`.
    """
    num_tokens = 2 * storages.count
    total = sum(b.count for b in batches)
    only_news = most_shared_waits(batches, storages) > _MANY_WAITS * total
    waits: list[Pairs] = []
    signals: list[Pairs] = []
    for batch, place in zip(batches, places, strict=True):
        _add_tokens(batch, place, waits, signals)
    signal_place, signal = _joined(signals)
    wait_place, wait = _joined(waits)
    first_signal = np.full(num_tokens, total, dtype=np.int64)
    np.minimum.at(first_signal, signal, signal_place)
    kept = first_signal[wait] < wait_place
    shared = shared_waits(
        batches, places, storages, stream, (signal_place, signal), only_news=only_news
    )
    wait_place, wait = _joined([(wait_place[kept], wait[kept]), shared])
    if only_news:
        wait_place, wait = _news((wait_place, wait), (signal_place, signal), stream, num_tokens)
    is_used = np.zeros(num_tokens, dtype=bool)
    is_used[wait] = True
    kept = is_used[signal]
    signal_place, signal = signal_place[kept], signal[kept]
    number = np.cumsum(is_used, dtype=np.int64) - 1
    wait_ptr, wait_token = _csr(wait_place, number[wait], total)
    signal_ptr, signal_token = _csr(signal_place, number[signal], total)
    return Tokens(wait_ptr, wait_token, signal_ptr, signal_token, int(is_used.sum()))


def _add_tokens(batch: Batch, place: Ints, waits: list[Pairs], signals: list[Pairs]) -> None:
    """Add what each instruction of a batch signals and waits for, touch by touch."""
    for touch in batch.touches:
        storage = np.broadcast_to(touch.storage, (batch.count,))
        ready, free = storage * 2, storage * 2 + 1
        signals.append((place, ready if touch.is_write else free))
        if touch.waits_ready:
            waits.append((place, ready))
        if touch.waits_free:
            waits.append((place, free))


def _news(waits: Pairs, signals: Pairs, stream: Ints, num_tokens: int) -> Pairs:
    """The waits that may hold an instruction back, in the order of streams and tokens.

    A stream is in order: what it has waited for, it need not wait for again until the token is
    signalled anew.  Every wait must have an earlier signal.
    """
    total = len(stream)
    place, token = waits
    keys = np.sort((stream[place].astype(np.int64) * num_tokens + token) * total + place)
    group, place = np.divmod(keys, total)
    token = group % num_tokens
    signalled = np.sort(signals[1] * total + signals[0])
    again = np.flatnonzero(group[1:] == group[:-1]) + 1
    latest = signalled[np.searchsorted(signalled, token[again] * total + place[again]) - 1] % total
    is_news = np.ones(len(keys), dtype=bool)
    is_news[again] = latest >= place[again - 1]
    return place[is_news], token[is_news]


def _joined(pairs: Sequence[Pairs]) -> Pairs:
    none = np.zeros(0, dtype=np.int64)
    return (
        np.concatenate([none, *(place for place, _ in pairs)]),
        np.concatenate([none, *(token for _, token in pairs)]),
    )


def _csr(
    place: Ints, token: Ints, total: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Collect tokens by instruction, each in the order given."""
    pointer = np.zeros(total + 1, dtype=np.int64)
    np.cumsum(np.bincount(place, minlength=total), out=pointer[1:])
    return pointer.astype(np.int32), token[np.argsort(place, kind="stable")].astype(np.int32)

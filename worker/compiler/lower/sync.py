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
from worker.compiler.lower.storage import Storages, Touch


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

_Pairs = tuple[Ints, Ints]
"""(places in program order, tokens), equally long."""


def synchronise(
    batches: Sequence[Batch], places: Sequence[Ints], storages: Storages, stream: Ints
) -> Tokens:
    """Tokens of a merged program, whose instructions run in `stream` (one per instruction).

    Cost: sorting the touches by instruction.
    """
    waits: list[_Pairs] = []
    signals: list[_Pairs] = []
    num_tokens = 2 * storages.count
    total = sum(b.count for b in batches)
    is_long = _most_waits(batches, storages) > _MANY_WAITS * total
    ranges = _ranges(batches, places, storages) if is_long else None
    for batch, place in zip(batches, places, strict=True):
        _add_tokens(batch, place, storages, ranges, waits, signals)
    wait_place, wait = _joined(waits)
    signal_place, signal = _joined(signals)
    first_signal = np.full(num_tokens, total, dtype=np.int64)
    np.minimum.at(first_signal, signal, signal_place)
    kept = first_signal[wait] < wait_place
    wait_place, wait = wait_place[kept], wait[kept]
    if ranges is not None:
        wait_place, wait = _news((wait_place, wait), (signal_place, signal), stream, num_tokens)
    is_used = np.zeros(num_tokens, dtype=bool)
    is_used[wait] = True
    kept = is_used[signal]
    signal_place, signal = signal_place[kept], signal[kept]
    number = np.cumsum(is_used, dtype=np.int64) - 1
    wait_ptr, wait_token = _csr(wait_place, number[wait], total)
    signal_ptr, signal_token = _csr(signal_place, number[signal], total)
    return Tokens(wait_ptr, wait_token, signal_ptr, signal_token, int(is_used.sum()))


def _most_waits(batches: Sequence[Batch], storages: Storages) -> int:
    """At most so many waits for shared addresses."""
    return sum(
        2 * batch.count * storages.overlaps[touch.scope].shape[1]
        for batch in batches
        for touch in batch.touches
        if touch.scope >= 0
    )


def _ranges(batches: Sequence[Batch], places: Sequence[Ints], storages: Storages) -> Ints:
    """First and last place of the instructions that touch each scope.  Shapes: [scopes, 2]."""
    found = np.array([[np.iinfo(np.int64).max, -1]] * len(storages.buffers), dtype=np.int64)
    for batch, place in zip(batches, places, strict=True):
        for touch in batch.touches:
            scope = storages.scope_of(int(np.ravel(touch.storage)[0]))
            if scope >= 0:
                found[scope, 0] = min(found[scope, 0], place.min())
                found[scope, 1] = max(found[scope, 1], place.max())
    return found


def _first_touches(
    touch: Touch, storage: Ints, batch: Batch, place: Ints, storages: Storages, ranges: Ints
) -> Ints:
    """Instructions of a batch that wait for shared addresses.

    When the other scopes are all done before this batch or start after it, a core's first touch of
    each storage waits for the others' tokens on behalf of the rest.
    """
    table = storages.overlaps[touch.scope]
    others = np.unique(table[:, :, 0])
    others = others[others >= 0]
    low, high = ranges[others, 0], ranges[others, 1]
    if np.any((low < place.max()) & (high > place.min())):
        return np.arange(batch.count)
    keys = storage * (int(batch.core.max()) + 1) + batch.core
    by_place = np.argsort(place, kind="stable")
    return np.sort(by_place[np.unique(keys[by_place], return_index=True)[1]])


def _add_tokens(
    batch: Batch,
    place: Ints,
    storages: Storages,
    ranges: Ints | None,
    waits: list[_Pairs],
    signals: list[_Pairs],
) -> None:
    """Add what each instruction of a batch waits for and signals, touch by touch.

    `ranges` is given where repeated waits are to be dropped.
    """
    for touch in batch.touches:
        storage = np.broadcast_to(touch.storage, (batch.count,))
        ready, free = storage * 2, storage * 2 + 1
        signals.append((place, ready if touch.is_write else free))
        if touch.waits_ready:
            waits.append((place, ready))
        if touch.waits_free:
            waits.append((place, free))
        if touch.scope >= 0 and storages.overlaps[touch.scope].shape[1]:
            at = place
            if ranges is not None:
                first = _first_touches(touch, storage, batch, place, storages, ranges)
                at, storage = place[first], storage[first]
            others = storages.sharing(touch.scope, storage)
            held = others >= 0
            both = np.stack([others[held] * 2, others[held] * 2 + 1], axis=1)
            waits.append((np.repeat(at, 2 * held.sum(axis=1)), both.ravel()))


def _news(waits: _Pairs, signals: _Pairs, stream: Ints, num_tokens: int) -> _Pairs:
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


def _joined(pairs: Sequence[_Pairs]) -> _Pairs:
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

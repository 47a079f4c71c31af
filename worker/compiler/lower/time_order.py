"""Program order that follows time.

Ports are granted first come, first served in program order (isa/program.py).  The order in which
`issue` lists the loops follows time only roughly: a transfer that waits for its buffer holds its
ports from the moment at which it will start, and whoever stands behind it in the program cannot use
them before, though they are idle.  Here the program is played once, every stream in its own order:
whatever can start first is next.  Streams keep their order, so what a stream has waited for stays
true, and an instruction comes after all that it waited for, so every value stays what it was.

The new order is kept where the program then ends earlier: both are played by the rule of the
simulator.
Source: list scheduling, with the old order to break ties.
"""

from __future__ import annotations

from math import ceil
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.jit import loop_for
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.sync import Tokens

Program: TypeAlias = "tuple[npt.NDArray[np.void], Tokens]"
_NEVER = 1 << 62


def in_time_order(
    instructions: npt.NDArray[np.void], tokens: Tokens, rate: npt.NDArray[np.float64]
) -> Program:
    """A program in the better of both orders.

    `rate`: bytes per cycle of each port.  An instruction keeps its tokens: those it waits for have
    been signalled before it in both orders, and who signals them later waits for it in both.
    Cost: instructions times the logarithm of the streams.
    """
    order = _order(instructions, tokens, rate)
    wait_ptr, wait_token = _permuted(tokens.wait_ptr, tokens.wait_token, order)
    signal_ptr, signal_token = _permuted(tokens.signal_ptr, tokens.signal_token, order)
    found = Tokens(wait_ptr, wait_token, signal_ptr, signal_token, tokens.num_tokens)
    programs = ((instructions, tokens), (instructions[order], found))
    return min(programs, key=lambda found: _finish(found[0], found[1], rate))


def _permuted(
    pointer: npt.NDArray[np.int32], token: npt.NDArray[np.int32], order: Ints
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The lists of a CSR table in another order."""
    sizes = np.diff(pointer)[order]
    found = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    at = np.arange(len(token)) + np.repeat(pointer[:-1][order] - found[:-1], sizes)
    return found, token[at]


def _order(program: npt.NDArray[np.void], tokens: Tokens, rate: npt.NDArray[np.float64]) -> Ints:
    """Numbers of the instructions by the time at which they start."""
    count, number = len(program), tokens.num_tokens
    stream = program["stream"].astype(np.int64)
    width = 1 << (int(stream.max(initial=0)) + 1).bit_length()
    by_stream = np.argsort(stream, kind="stable")
    same = stream[by_stream[1:]] == stream[by_stream[:-1]]
    following: Ints = np.full(count, -1, dtype=np.int64)
    following[by_stream[:-1][same]] = by_stream[1:][same]
    head: Ints = np.full(width, -1, dtype=np.int64)
    head[stream[::-1]] = np.arange(count)[::-1]
    earliest = np.where(head >= 0, 0, _NEVER)
    first = _tree(head, earliest)
    rank, token_ptr, needed = _signals(tokens)
    order: Ints = np.empty(count, dtype=np.int64)
    done = loop_for(_play, 8 * count)(
        *_columns(program), following, tokens.wait_ptr, tokens.wait_token, needed,
        tokens.signal_ptr, tokens.signal_token, rank, token_ptr, rate, head, earliest, first,
        np.zeros(number, dtype=np.int64), np.zeros(width, dtype=np.int64),
        np.zeros(len(rate), dtype=np.int64), np.zeros(len(rank), dtype=np.bool_),
        np.zeros(number, dtype=np.int64), np.full(number, -1, dtype=np.int64),
        np.full(width, -1, dtype=np.int64), order,
    )  # fmt: skip
    assert done == count, "the program waits for itself"
    return order


def _tree(head: Ints, earliest: Ints) -> Ints:
    """Winners of pairs of streams, of pairs of pairs, and so on: see `_play`."""
    width = len(head)
    first: Ints = np.concatenate([np.zeros(width, dtype=np.int64), np.arange(width)])
    for node in range(width - 1, 0, -1):
        pair = first[2 * node : 2 * node + 2].tolist()
        first[node] = min(pair, key=lambda q: (earliest[q], head[q]))
    return first


def _signals(tokens: Tokens) -> tuple[Ints, Ints, Ints]:
    """Of each signal its number among those of its token; where each token's signals begin in a
    list of all; of each wait, how many signals of its token stand before it."""
    count = len(tokens.signal_ptr) - 1
    token = tokens.signal_token.astype(np.int64)
    by_token = np.argsort(token, kind="stable")
    sizes = np.bincount(token, minlength=tokens.num_tokens)
    token_ptr: Ints = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    rank = np.empty_like(by_token)
    rank[by_token] = np.arange(len(token)) - token_ptr[token[by_token]]
    place = np.repeat(np.arange(count), np.diff(tokens.signal_ptr))[by_token]
    waited = tokens.wait_token.astype(np.int64)
    waiting = np.repeat(np.arange(count), np.diff(tokens.wait_ptr))
    before = np.searchsorted(token[by_token] * count + place, waited * count + waiting)
    return rank, token_ptr, before - token_ptr[waited]


def _finish(program: npt.NDArray[np.void], tokens: Tokens, rate: npt.NDArray[np.float64]) -> int:
    """When the last instruction ends, in program order."""
    num_streams = int(program["stream"].max(initial=-1)) + 1
    found = loop_for(_run, len(program))(
        *_columns(program), tokens.wait_ptr, tokens.wait_token,
        tokens.signal_ptr, tokens.signal_token, rate, np.zeros(tokens.num_tokens, dtype=np.int64),
        np.zeros(num_streams, dtype=np.int64), np.zeros(len(rate), dtype=np.int64),
    )  # fmt: skip
    return int(found)


def _columns(program: npt.NDArray[np.void]) -> tuple[Any, ...]:
    names = ("stream", "bytes", "cycles", "latency", "resource")
    return tuple(np.ascontiguousarray(program[name]) for name in names)


def _run(
    stream: Any, num_bytes: Any, cycles: Any, latency: Any, resource: Any,
    wait_ptr: Any, wait_token: Any, signal_ptr: Any, signal_token: Any, rate: Any,
    token_time: Ints, stream_free: Ints, resource_free: Ints,
) -> int:  # fmt: skip
    """One pass in program order; all of the last line are given zeroed."""
    last = 0
    for k in range(stream.shape[0]):
        s = stream[k]
        start = stream_free[s]
        for w in range(wait_ptr[k], wait_ptr[k + 1]):
            start = max(start, token_time[wait_token[w]])
        busy = int(cycles[k])
        for p in range(resource.shape[1]):
            r = resource[k, p]
            if r < 0:
                break
            start = max(start, resource_free[r])
            busy = max(busy, ceil(num_bytes[k] / rate[r]))
        for p in range(resource.shape[1]):
            r = resource[k, p]
            if r < 0:
                break
            resource_free[r] = start + ceil(num_bytes[k] / rate[r])
        stream_free[s] = start + busy
        finish = start + busy + int(latency[k])
        last = max(last, finish)
        for w in range(signal_ptr[k], signal_ptr[k + 1]):
            token_time[signal_token[w]] = max(token_time[signal_token[w]], finish)
    return last


def _play(
    stream: Any, num_bytes: Any, cycles: Any, latency: Any, resource: Any,
    following: Ints, wait_ptr: Any, wait_token: Any, needed: Ints,
    signal_ptr: Any, signal_token: Any, signal_rank: Ints, token_ptr: Ints, rate: Any,
    head: Ints, earliest: Ints, first: Ints,
    token_time: Ints, stream_free: Ints, resource_free: Ints, is_sent: Any,
    sent: Ints, waiter: Ints, next_waiter: Ints, order: Ints,
) -> int:  # fmt: skip
    """Always run the head of the stream that can start first; returns how many could run.

    `head` [w]: first instruction of each stream; `earliest` [w]: a bound on its start, `_NEVER`
    while it waits for a signal or there is none; `first` [2 w]: a tree of the streams, node n the
    first to start of nodes 2 n and 2 n + 1.  `sent`: how many of each token's first signals have
    been sent; `waiter`, `next_waiter`: streams that wait for a token, as lists.
    """
    number = 0
    width = len(head)
    while number < len(order):
        s = first[1]
        if earliest[s] == _NEVER:
            return number
        k = head[s]
        start = stream_free[s]
        woken = -1
        blocked = -1
        for w in range(wait_ptr[k], wait_ptr[k + 1]):
            t = wait_token[w]
            if sent[t] < needed[w]:
                blocked = t
                break
            start = max(start, token_time[t])
        busy = int(cycles[k])
        for p in range(resource.shape[1]):
            r = resource[k, p]
            if r < 0:
                break
            start = max(start, resource_free[r])
            busy = max(busy, ceil(num_bytes[k] / rate[r]))
        if blocked >= 0:
            earliest[s] = _NEVER
            next_waiter[s] = waiter[blocked]
            waiter[blocked] = s
        elif start > earliest[s]:
            earliest[s] = start
        else:
            for p in range(resource.shape[1]):
                r = resource[k, p]
                if r < 0:
                    break
                resource_free[r] = start + ceil(num_bytes[k] / rate[r])
            stream_free[s] = start + busy
            finish = start + busy + int(latency[k])
            for w in range(signal_ptr[k], signal_ptr[k + 1]):
                t = signal_token[w]
                token_time[t] = max(token_time[t], finish)
                is_sent[token_ptr[t] + signal_rank[w]] = True
                while token_ptr[t] + sent[t] < token_ptr[t + 1] and is_sent[token_ptr[t] + sent[t]]:
                    sent[t] += 1
                while waiter[t] >= 0:
                    q = waiter[t]
                    waiter[t] = next_waiter[q]
                    earliest[q] = stream_free[q]
                    next_waiter[q] = woken
                    woken = q
            order[number] = k
            number += 1
            head[s] = following[k]
            earliest[s] = stream_free[s] if head[s] >= 0 else _NEVER
        q = s
        while q >= 0:
            node = (width + q) // 2
            while node >= 1:
                a = first[2 * node]
                b = first[2 * node + 1]
                if earliest[b] < earliest[a] or (earliest[b] == earliest[a] and head[b] < head[a]):
                    a = b
                first[node] = a
                node //= 2
            q = woken
            if woken >= 0:
                woken = next_waiter[woken]
    return number

"""Program order that follows time.

Ports are granted to whoever is ready first (isa/program.py), but an engine runs its instructions
in order: a transfer that waits for its buffer keeps those behind it from being ready, though they
could start.  The order in which `issue` lists the loops follows time only roughly.  Here the
program is played; whatever can start first is next.

Compute engines keep their order.  A transfer may pass one of its own engine that has to wait, when
it is done before that one can start: fills of the next tiles pass an activation that is still being
computed.  When that one can start is not known while what it waits for has not run; then the start
in the order found before is taken for it, or nobody waits for it: weights are fetched layers ahead
as long as their addresses are free.  Nothing ever passes an instruction that touches the same
bytes, so every value stays what it was.

Of these orders and the old one that is kept with which the program ends first: all are played by
the rule of the simulator.
Source: list scheduling with the old order to break ties, and backfilling as in queues of batch
jobs (a later job may go first if it delays none before it, as far as is known).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.clock.run import Wiring, last_finish
from worker.compiler.clock.signals import token_delays
from worker.compiler.isa.loops import NO_LOOPS
from worker.compiler.isa.program import late_by, passed, port_sets
from worker.compiler.jit import loop_for
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.order.sync import Tokens

Program: TypeAlias = "tuple[npt.NDArray[np.void], Tokens]"
_NEVER = 1 << 62
_PLAY_STEPS = 250
"""What one instruction takes, in steps of a usual loop (`jit.INTERPRETED_STEPS`)."""
_WINDOW = 32
"""Transfers of an engine, from the next one on, that are looked at when that has to wait."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What may change its place in a program of n instructions."""

    streams: npt.NDArray[np.bool_]
    """Per stream, whether its instructions may pass each other."""
    latest: Ints
    """[n] The last one before each that it must stay behind, or -1 (`latest_conflicts`)."""
    tokens: Callable[[Ints], Tokens]
    """Tokens of the program in another order, given as numbers of its instructions."""
    full: Tokens | None = None
    """Those of the old order with every wait, where these are not too many: whoever passes then
    waits for all that it needs, not only for the last that it conflicts with."""


def in_time_order(
    instructions: npt.NDArray[np.void],
    tokens: Tokens,
    wiring: Wiring,
    moves: Moves,
) -> Program:
    """A program in the best of the orders.

    Cost: per order, instructions times the logarithm of the streams; `_WINDOW` looks where a
    transfer waits.
    """
    order, kept = _best(instructions, tokens, wiring, moves)
    return instructions if order is None else instructions.take(order), kept


def _best(
    program: npt.NDArray[np.void], tokens: Tokens, wiring: Wiring, moves: Moves
) -> tuple[Ints | None, Tokens]:
    """The order that ends first (None: the old one), and its tokens."""
    columns = _columns(program, wiring)
    best: Ints | None = None
    kept = tokens
    least = _finish(program, tokens, wiring)
    for order in _orders(columns, moves.full or tokens, wiring, moves):
        found = moves.tokens(order)
        end = _finish(program[order], found, wiring)
        if end < least:
            best, kept, least = order, found, end
    return best, kept


def orders(
    program: npt.NDArray[np.void], tokens: Tokens, wiring: Wiring, moves: Moves
) -> Iterator[Ints]:
    """Numbers of the instructions by the time at which they start: nobody passes a transfer of
    unknown start; who is done before its start in that order does; everybody does."""
    return _orders(_columns(program, wiring), moves.full or tokens, wiring, moves)


def _orders(
    columns: tuple[Any, ...], tokens: Tokens, wiring: Wiring, moves: Moves
) -> Iterator[Ints]:
    stream = columns[2]
    count, number = len(stream), tokens.num_tokens
    width = 1 << (int(stream.max(initial=0)) + 1).bit_length()
    by_stream = np.argsort(stream, kind="stable")
    same = stream[by_stream[1:]] == stream[by_stream[:-1]]
    following: Ints = np.full(count, -1, dtype=np.int64)
    following[by_stream[:-1][same]] = by_stream[1:][same]
    heads: Ints = np.full(width, -1, dtype=np.int64)
    heads[stream[::-1]] = np.arange(count)[::-1]
    rank, token_ptr, needed = _signals(tokens)
    rate = np.array([port.payload_per_cycle for port in wiring.ports], dtype=np.float64)
    port_ptr, port_of, num_ports = port_sets(wiring.ports, wiring.meshes)
    common = _common(columns, (port_ptr, port_of), heads)
    uses = (tokens.wait_ptr, tokens.wait_token), (tokens.signal_ptr, tokens.signal_token)
    cores = np.array(wiring.cores, dtype=np.int64)
    delay = token_delays(stream, cores, uses, NO_LOOPS, number, wiring.signal_cycles)
    expected: Ints = np.full(count, -1, dtype=np.int64)
    for last in (False, False, True):
        if last:
            expected = np.full(count, _NEVER, dtype=np.int64)
        head, earliest = heads.copy(), np.where(heads >= 0, 0, _NEVER)
        order, begin = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        done = loop_for(_play, _PLAY_STEPS * count)(
            *columns, following, tokens.wait_ptr, tokens.wait_token, needed,
            tokens.signal_ptr, tokens.signal_token, delay, rank, token_ptr, rate, port_ptr, port_of,
            common, moves.streams, moves.latest, _WINDOW, expected, head, earliest,
            _tree(head, earliest),
            np.zeros(number, dtype=np.int64), np.zeros(width, dtype=np.int64),
            np.zeros(num_ports, dtype=np.int64), np.zeros(len(rank), dtype=np.bool_),
            np.zeros(number, dtype=np.int64), np.full(number, -1, dtype=np.int64),
            np.full(width, -1, dtype=np.int64), np.zeros(width, dtype=np.bool_),
            np.full(width, _NEVER, dtype=np.int64), np.zeros(4 * width, dtype=np.int64),
            np.full(width, -1, dtype=np.int64), np.full(num_ports, -1, dtype=np.int64),
            np.full(width, -1, dtype=np.int64), np.full(width, -1, dtype=np.int64),
            np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.int64), begin, order,
        )  # fmt: skip
        assert done == count, "the program waits for itself"
        yield order
        expected = begin


def _common(columns: tuple[Any, ...], ports: tuple[Ints, Ints], heads: Ints) -> Ints:
    """[streams, ways to pass] Ports that all instructions of a stream pass, -1 behind them.

    `heads`: the first instruction of each stream, -1 without any.  Cost: linear in instructions.
    """
    sizes, column, stream, _, _, resource = columns
    pointer, port_of = ports
    is_single = np.append(np.diff(pointer) == 1, False)
    alone = np.append(np.append(port_of, 0)[pointer[:-1]], 0)
    number = np.arange(len(stream))
    passed_by: list[Ints] = []
    for used in resource.T:
        if used.max(initial=-1) < 0:
            break
        passes = sizes[np.append(column, 0)[used], number] > 0
        passed_by.append(np.where((used >= 0) & is_single[used] & passes, alone[used], -1))
    found: Ints = np.full((len(heads), resource.shape[1]), -1, dtype=np.int64)
    for way, port in enumerate(passed_by):
        asked = np.where(heads >= 0, port[heads], -1)
        meets = np.zeros(len(stream), dtype=np.bool_)
        for other in passed_by:
            meets |= other == asked[stream]
        misses = np.bincount(stream[~meets], minlength=len(heads))
        found[:, way] = np.where(misses == 0, asked, -1)
    return found


def _tree(head: Ints, earliest: Ints) -> Ints:
    """Winners of pairs of streams, of pairs of pairs, and so on: see `_play`."""
    width = len(head)
    first: Ints = np.concatenate([np.zeros(width, dtype=np.int64), np.arange(width)])
    for node in range(width - 1, 0, -1):
        pair = first[2 * node : 2 * node + 2].tolist()
        first[node] = min(pair, key=lambda q: (earliest[q], head[q]))
    return first


def _signals(tokens: Tokens) -> tuple[Any, Ints, Any]:
    """Of each signal its number among those of its token; where each token's signals begin in a
    list of all; of each wait, how many signals of its token stand before it."""
    sent: Ints = np.zeros(tokens.num_tokens, dtype=np.int64)
    rank = np.empty(len(tokens.signal_token), dtype=np.int32)
    before = np.empty(len(tokens.wait_token), dtype=np.int32)
    loop_for(_count, len(rank) + len(before))(
        tokens.wait_ptr, tokens.wait_token, tokens.signal_ptr, tokens.signal_token,
        sent, rank, before,
    )  # fmt: skip
    return rank, np.concatenate(([0], np.cumsum(sent))).astype(np.int64), before


def _count(
    wait_ptr: Any, wait_token: Any, signal_ptr: Any, signal_token: Any,
    sent: Ints, rank: Any, before: Any,
) -> None:  # fmt: skip
    """Walk a program; `sent` [tokens], given 0, counts each token's signals."""
    for k in range(len(signal_ptr) - 1):
        for w in range(wait_ptr[k], wait_ptr[k + 1]):
            before[w] = sent[wait_token[w]]
        for w in range(signal_ptr[k], signal_ptr[k + 1]):
            rank[w] = sent[signal_token[w]]
            sent[signal_token[w]] += 1


def _finish(program: npt.NDArray[np.void], tokens: Tokens, wiring: Wiring) -> int:
    """When the last instruction ends."""
    waits, signals = (tokens.wait_ptr, tokens.wait_token), (tokens.signal_ptr, tokens.signal_token)
    return last_finish(program, waits, signals, tokens.num_tokens, wiring)


def _columns(program: npt.NDArray[np.void], wiring: Wiring) -> tuple[Any, ...]:
    late = late_by(program, wiring.ports, wiring.meshes)
    sizes, column = passed(program, wiring.ports)
    arrays = sizes, column, program["stream"], program["cycles"], late, program["resource"]
    return tuple(np.ascontiguousarray(array) for array in arrays)


def _play(
    sizes: Any, column: Ints, stream: Any, cycles: Any, latency: Any, resource: Any,
    following: Ints, wait_ptr: Any, wait_token: Any, needed: Any,
    signal_ptr: Any, signal_token: Any, delay: Ints, signal_rank: Any, token_ptr: Ints, rate: Any,
    port_ptr: Ints, port_of: Ints, common: Ints,
    may_move: Any, latest: Ints, window: int, expected: Ints,
    head: Ints, earliest: Ints, first: Ints,
    token_time: Ints, stream_free: Ints, resource_free: Ints, is_sent: Any,
    sent: Ints, waiter: Ints, next_waiter: Ints, is_waiting: Any, behind: Ints, changed: Ints,
    queued: Ints, queue: Ints, child: Ints, sibling: Ints,
    is_done: Any, end: Ints, begin: Ints, order: Ints,
) -> int:  # fmt: skip
    """Always run what can start first; returns how many could run.

    `head` [w]: first instruction of each stream that is left; `earliest` [w]: a bound on when the
    stream can run something, `_NEVER` while its head waits for a signal or there is none;
    `first` [2 w]: a tree of the streams, node n the first to start of nodes 2 n and 2 n + 1.
    `sent`: how many of each token's first signals have been sent; `waiter`, `next_waiter`: streams
    that wait for a token, as lists; `is_waiting` [w]: who stands in one.
    `expected` [n]: when an instruction is thought to start while that is not known; -1: nobody
    passes it then.  `behind` [w]: the instruction up to which all must have run before a stream
    whose head waits looks for another to pass it.  `changed`: room for streams to sort in again.
    `begin` [n]: when each started; `end` [n]: its finish.
    `common` [w, ways]: while the head of a stream waits for a port that all of the stream pass,
    nobody behind it can start earlier, so nobody is looked at, and the stream is `queued` [w] at
    that port: only the first of a `queue` [ports], by its head, stands in the tree.  A queue is a
    pairing heap of streams: `child`, `sibling` [w].
    """
    number = 0
    mark = 0  # all in front of it are done
    least = _NEVER  # of `behind`
    width = len(head)
    while number < len(order):
        s = first[1]
        now = earliest[s]
        if now == _NEVER:
            return number
        num_changed = 1
        changed[0] = s
        if queued[s] >= 0:  # it is the first of its queue
            o = queued[s]
            queued[s] = -1
            q = child[s]
            child[s] = -1
            pairs = -1
            while q >= 0:
                a = q
                b = sibling[a]
                q = -1
                if b >= 0:
                    q = sibling[b]
                    if head[b] < head[a]:
                        a, b = b, a
                    sibling[b] = child[a]
                    child[a] = b
                sibling[a] = pairs
                pairs = a
            a = -1
            while pairs >= 0:
                b = pairs
                pairs = sibling[b]
                sibling[b] = -1
                if a >= 0:
                    if head[b] < head[a]:
                        a, b = b, a
                    sibling[b] = child[a]
                    child[a] = b
                else:
                    a = b
            queue[o] = a
            if a >= 0:
                earliest[a] = resource_free[o]
                changed[num_changed] = a
                num_changed += 1
        blocked = -1
        chosen = -1
        port = -1
        soon = own = blocker = _NEVER
        start = busy = 0
        k = head[s]
        left = window if may_move[s] else 1
        while k >= 0 and left > 0:
            if k != head[s] and latest[k] >= mark:
                blocker = min(blocker, latest[k])
            elif not is_done[k]:
                start = stream_free[s]
                missing = -1
                for w in range(wait_ptr[k], wait_ptr[k + 1]):
                    t = wait_token[w]
                    if sent[t] < needed[w]:
                        missing = t
                        break
                    start = max(start, token_time[t])
                if k != head[s] and latest[k] >= 0:
                    # Its stream may have been spared a wait that one in front of it has.
                    start = max(start, end[latest[k]])
                if missing < 0:
                    limit = -1
                    busy = int(cycles[k])
                    for p in range(resource.shape[1]):
                        r = resource[k, p]
                        if r < 0:
                            break
                        for m in range(port_ptr[r], port_ptr[r + 1]):
                            if resource_free[port_of[m]] > start:
                                limit = port_of[m]
                                start = resource_free[limit]
                        busy = max(busy, ceil(sizes[column[r], k] / rate[r]))
                    if k == head[s]:
                        own = start
                    if k == head[s] or start + busy <= own:
                        if start <= now:
                            chosen = k
                            break
                        soon = min(soon, start)
                    if k == head[s] and limit >= 0:
                        for p in range(common.shape[1]):
                            if common[s, p] == limit:
                                port = limit
                        if port >= 0:
                            break
                elif k == head[s]:
                    blocked = missing
                    own = expected[k]
                    if own < 0:
                        break
            k = following[k]
            left -= 1
        if blocked >= 0 and not is_waiting[s]:
            is_waiting[s] = True
            next_waiter[s] = waiter[blocked]
            waiter[blocked] = s
        if chosen < 0 and port >= 0:
            queued[s] = port
            earliest[s] = soon
            a = queue[port]
            if a < 0:
                queue[port] = s
            elif head[s] < head[a]:
                earliest[a] = _NEVER
                changed[num_changed] = a
                num_changed += 1
                sibling[a] = -1
                child[s] = a
                queue[port] = s
            else:
                earliest[s] = _NEVER
                sibling[s] = child[a]
                child[a] = s
        elif chosen < 0:
            earliest[s] = soon
            if blocked >= 0:
                behind[s] = blocker
                least = min(least, blocker)
        else:
            k = chosen
            for p in range(resource.shape[1]):
                r = resource[k, p]
                if r < 0:
                    break
                for m in range(port_ptr[r], port_ptr[r + 1]):
                    o = port_of[m]
                    need = ceil(sizes[column[r], k] / rate[r])
                    resource_free[o] = max(start, resource_free[o]) + need
                    if queue[o] >= 0:
                        earliest[queue[o]] = resource_free[o]
                        changed[num_changed] = queue[o]
                        num_changed += 1
            stream_free[s] = start + busy
            finish = start + busy + int(latency[k])
            end[k] = finish
            begin[k] = start
            order[number] = k
            number += 1
            is_done[k] = True
            while mark < len(order) and is_done[mark]:
                mark += 1
            while head[s] >= 0 and is_done[head[s]]:
                head[s] = following[head[s]]
            earliest[s] = stream_free[s] if head[s] >= 0 else _NEVER
            for w in range(signal_ptr[k], signal_ptr[k + 1]):
                t = signal_token[w]
                token_time[t] = max(token_time[t], finish + delay[t])
                is_sent[token_ptr[t] + signal_rank[w]] = True
                while token_ptr[t] + sent[t] < token_ptr[t + 1] and is_sent[token_ptr[t] + sent[t]]:
                    sent[t] += 1
                while waiter[t] >= 0:
                    q = waiter[t]
                    waiter[t] = next_waiter[q]
                    is_waiting[q] = False
                    earliest[q] = stream_free[q]
                    changed[num_changed] = q
                    num_changed += 1
            if least < mark:
                least = _NEVER
                for q in range(width):
                    if behind[q] < mark:
                        behind[q] = _NEVER
                        if is_waiting[q]:
                            earliest[q] = min(earliest[q], max(stream_free[q], now))
                            changed[num_changed] = q
                            num_changed += 1
                    least = min(least, behind[q])
        for j in range(num_changed):
            node = (width + changed[j]) // 2
            while node >= 1:
                a = first[2 * node]
                b = first[2 * node + 1]
                if earliest[b] < earliest[a] or (earliest[b] == earliest[a] and head[b] < head[a]):
                    a = b
                first[node] = a
                node //= 2
    return number

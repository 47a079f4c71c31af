"""The timing loop for programs whose order is no order of readiness: an event at a time.

An instruction is *ready* when its stream is free and its tokens are signalled.  Ports serve who is
ready first, the program's order breaks ties; so always the earliest ready one of all is next, and
nothing that comes later can be ready before it (a finish is no earlier than the readiness that it
came of).  What runs is taken from the program in its order, loops unrolled, as far ahead as the
search for the earliest has to look: until every stream that has work left shows its next one.

When all in front of an iteration of a loop have run, whoever called may look at the state
(`cycles`).
Source: discrete-event simulation.
"""

from __future__ import annotations

from math import ceil

import numpy as np
import numpy.typing as npt

from worker.compiler.clock.forward import NO_ROOM

Ints = npt.NDArray[np.int64]

NEVER = 1 << 62

RUN, STREAM, NEXT, MISSING, READY, SENDER, SENDER_AT, DONE, FIRST_SIGNAL, FIRST_WAIT = range(10)
"""Columns of `ring`, by number of an instruction: row; stream; the next one of its stream that is
known; tokens still waited for; when the others were signalled; by which entry; the place of that
token in the list; whether it has run; its first signal and wait."""
TOKEN, SENT, TIME, BY, FOLLOWING, LISTENER = range(6)
"""Columns of `signals`: token; 0, 1: sent, 2: all of its token before it as well; the finish; whose
(an entry); the next signal of the token; the first of the waits for it, as a list."""
WHO, PLACE, OTHER = range(3)
"""Columns of `waits`: instruction; place in its list; the next wait for the same signal."""
LAST, HEAD, LATEST, LATEST_BY = range(4)
"""Columns of `tokens`: its last signal known; the first that is not at 2, or -1; the latest
finish of those that are; whose."""
AT, LOOP, ACTIVATION, ITERATION = range(4)
"""Columns of `marks`: instruction that begins an iteration; depth; run of the loop; its number."""
TAIL, KNOWN, SIGNALS, WAITS, MARK_TAIL, MARKS = range(4, 10)
"""Of `place`: the first instruction that has not run, and how many instructions, signals and waits
are known; the first mark that was not passed, and how many there are."""
ENTRY, NOW = 2, 3
"""How many instructions have run, and when the last of them was ready."""
NEXT_ROW, LEVEL, IN_LOG, DEPTHS = 10, 11, 15, 16
"""The row that is read next, loops open there; entries of the log; depths in `crossed`."""
PLACES = 17
CROSSED = -4
"""Instead of a stuck instruction: all in front of an iteration have run."""


def by_readiness(
    stream: Ints, passed: Ints, macs: Ints, cycles: Ints, latency: Ints, node: Ints,
    resource: Ints, wait_ptr: Ints, wait_token: Ints, signal_ptr: Ints, signal_token: Ints,
    delay: Ints, column: Ints, rate: npt.NDArray[np.float64], port_ptr: Ints, port: Ints,
    hops: Ints, stream_core: Ints, num_cores: int,
    loop_first: Ints | None, loop_end: Ints, loop_trip: Ints, loop_jumps: npt.NDArray[np.bool_],
    step_stream: Ints, step_resource: Ints, step_wait: Ints, step_signal: Ints, expected: Ints,
    slice_base: Ints, slice_chunk: Ints,
    row: Ints, queue: Ints, begin: Ints, before: Ints, via: Ints, late: Ints,
    totals: Ints, stream_free: Ints, resource_free: Ints, stream_busy: Ints, stream_macs: Ints,
    stream_count: Ints, resource_bytes: Ints, resource_busy: Ints,
    span_first: Ints, span_last: Ints, slice_start: Ints, slice_end: Ints, slice_count: Ints,
    slice_instruction: Ints,
    ring: Ints, ports: Ints, signals: Ints, waits: Ints, tokens: Ints, marks: Ints,
    head: Ints, newest: Ints, earliest: Ints, first: Ints, changed: Ints,
    stream_stamp: Ints, port_stamp: Ints,
    open_loop: Ints, counter: Ints, activation: Ints, done_with: Ints, crossed: Ints,
    place: Ints,
) -> tuple[int, int, int, int, int]:  # fmt: skip
    """Run the program; fill the arrays from `row` on.  Parameters and result as of
    `forward.forward`, and

    `passed` [columns, rows], `column`: what passes each resource (`isa.program.passed`).
    `port_ptr`, `port`: the ports that each resource occupies; `expected`: instructions of each
    stream, in all.
    `ring` and those behind it in its line hold what is known and has not run, modulo their
    lengths, powers of two; the tree `first` [2 w] of streams says who is next: node n has the first
    of nodes 2 n and 2 n + 1, by `earliest` [w] and `head` [w] (-1: not known yet; goes first).
    `changed` [2 w]: streams to sort in again.  `done_with` [loops]: the run of each in which no
    state is asked for any more; `crossed` [depth, 2]: run and iteration.
    `place` [PLACES]: where it is, zeros at first.  With NO_ROOM, nothing is lost: called again with
    longer arrays of the same content (`run.py` moves the rings), it goes on; so it does after
    CROSSED, also where all times that still matter, and what they are of, were moved.

    Cost: per instruction the logarithm of the streams, its ports and tokens.
    """
    ring_mask, signal_mask = len(ring) - 1, len(signals) - 1
    wait_mask, mark_mask = len(waits) - 1, len(marks) - 1
    width = len(head)
    num_ports = resource.shape[1]
    crosses = len(hops) > 0
    last, latest, entry = place[0], place[1] - 1, place[ENTRY]
    tail, known, next_signal, next_wait = place[TAIL], place[KNOWN], place[SIGNALS], place[WAITS]
    mark_tail, mark_next = place[MARK_TAIL], place[MARKS]
    k, level, following = place[10], place[11], place[12]
    opened = place[13]  # activations of loops so far
    begun = place[14]  # depths, as bits, at which the next instruction begins an iteration
    logged = place[15]
    is_full = False
    while True:
        s = first[1]
        now = earliest[s]
        if now == NEVER:
            return last, -1, logged, latest, 0
        if is_full or logged == len(begin):
            place[:4] = last, latest + 1, entry, now
            place[4:10] = tail, known, next_signal, next_wait, mark_tail, mark_next
            place[10:15] = k, level, following, opened, begun
            place[15:] = logged, 0
            return last, NO_ROOM, logged, latest, 0
        num_changed = 0
        if head[s] < 0:
            # The program goes on until this stream has something.
            while head[s] < 0:
                if loop_first is not None:
                    while following < len(loop_first) and loop_first[following] == k:
                        open_loop[level] = following
                        counter[level] = 0
                        activation[level] = opened
                        opened += 1
                        begun |= 1 << level
                        level += 1
                        following += 1
                num_signals = signal_ptr[k + 1] - signal_ptr[k]
                num_waits = wait_ptr[k + 1] - wait_ptr[k]
                if tail < known:
                    num_signals += next_signal - ring[tail & ring_mask, FIRST_SIGNAL]
                    num_waits += next_wait - ring[tail & ring_mask, FIRST_WAIT]
                if (
                    known - tail > ring_mask
                    or num_signals > len(signals)
                    or num_waits > len(waits)
                    or mark_next - mark_tail + level > len(marks)
                ):
                    is_full = True
                    break
                q = known & ring_mask
                own = stream[k]
                if loop_first is not None:
                    for d in range(level):
                        own += counter[d] * step_stream[k, d]
                        if begun >> d & 1 and loop_jumps[open_loop[d]]:
                            m = mark_next & mark_mask
                            marks[m, AT] = known
                            marks[m, LOOP] = d
                            marks[m, ACTIVATION] = activation[d]
                            marks[m, ITERATION] = counter[d]
                            mark_next += 1
                    begun = 0
                ring[q, RUN] = k
                ring[q, STREAM] = own
                ring[q, NEXT] = -1
                ring[q, READY] = 0
                ring[q, SENDER] = -1
                ring[q, SENDER_AT] = 0
                ring[q, DONE] = 0
                ring[q, FIRST_SIGNAL] = next_signal
                ring[q, FIRST_WAIT] = next_wait
                for p in range(num_ports):
                    r = resource[k, p]
                    if r >= 0 and loop_first is not None:
                        for d in range(level):
                            r += counter[d] * step_resource[k, d, p]
                    ports[q, p] = r
                missing = 0
                for w in range(wait_ptr[k], wait_ptr[k + 1]):
                    t = wait_token[w]
                    if loop_first is not None:
                        for d in range(level):
                            t += counter[d] * step_wait[w, d]
                    sender = tokens[t, LAST]
                    if sender < 0:
                        return last, k, logged, latest, 0
                    if tokens[t, HEAD] >= 0:
                        n = next_wait & wait_mask
                        next_wait += 1
                        waits[n, WHO] = known
                        waits[n, PLACE] = w
                        waits[n, OTHER] = signals[sender & signal_mask, LISTENER]
                        signals[sender & signal_mask, LISTENER] = next_wait - 1
                        missing += 1
                    elif tokens[t, LATEST] > ring[q, READY]:
                        ring[q, READY] = tokens[t, LATEST]
                        ring[q, SENDER] = tokens[t, LATEST_BY]
                        ring[q, SENDER_AT] = w
                ring[q, MISSING] = missing
                for w in range(signal_ptr[k], signal_ptr[k + 1]):
                    t = signal_token[w]
                    if loop_first is not None:
                        for d in range(level):
                            t += counter[d] * step_signal[w, d]
                    n = next_signal & signal_mask
                    signals[n, TOKEN] = t
                    signals[n, SENT] = 0
                    signals[n, FOLLOWING] = -1
                    signals[n, LISTENER] = -1
                    if tokens[t, HEAD] < 0:
                        tokens[t, HEAD] = next_signal
                    else:
                        signals[tokens[t, LAST] & signal_mask, FOLLOWING] = next_signal
                    tokens[t, LAST] = next_signal
                    next_signal += 1
                if head[own] < 0:
                    head[own] = known
                    earliest[own] = NEVER
                    if missing == 0:
                        earliest[own] = max(stream_free[own], ring[q, READY])
                    changed[num_changed] = own
                    num_changed += 1
                else:
                    ring[newest[own] & ring_mask, NEXT] = known
                newest[own] = known
                known += 1
                k += 1
                if loop_first is not None:
                    while level > 0 and loop_end[open_loop[level - 1]] == k:
                        loop = open_loop[level - 1]
                        counter[level - 1] += 1
                        if counter[level - 1] == loop_trip[loop]:
                            level -= 1
                            continue
                        begun |= 1 << (level - 1)
                        k = loop_first[loop]
                        following = loop + 1
                        break
        else:
            q = head[s] & ring_mask
            i = ring[q, RUN]
            free = stream_free[s]
            taken = 0
            full = -1
            full_port = 0
            for p in range(num_ports):
                r = ports[q, p]
                if r < 0:
                    break
                for m in range(port_ptr[r], port_ptr[r + 1]):
                    if resource_free[port[m]] > taken:
                        taken = resource_free[port[m]]
                        full = r
                        full_port = port[m]
            start = max(now, taken)
            via[logged] = -1
            if start == free:
                before[logged] = stream_stamp[s]
            elif start == taken:
                before[logged] = port_stamp[full_port]
                via[logged] = full
            else:
                before[logged] = ring[q, SENDER]
            stream_stamp[s] = entry
            end = start + cycles[i]
            hop = 0
            for p in range(num_ports):
                r = ports[q, p]
                if r < 0:
                    break
                size = passed[column[r], i]
                need = ceil(size / rate[r])
                for m in range(port_ptr[r], port_ptr[r + 1]):
                    o = port[m]
                    resource_free[o] = max(start, resource_free[o]) + need
                    end = max(end, resource_free[o])
                    port_stamp[o] = entry
                resource_busy[r] += need
                resource_bytes[r] += size
                if crosses:
                    hop += hops[r]
            row[logged] = i
            queue[logged] = s
            begin[logged] = start
            stream_free[s] = end
            stream_busy[s] += end - start
            stream_macs[s] += macs[i]
            finish = end + latency[i]
            if crosses:
                finish += hop
                late[logged] = finish - end
            if finish > last:
                last = finish
                latest = entry
            cell = node[i] * num_cores + stream_core[s]
            if span_first[cell] < 0 or start < span_first[cell]:
                span_first[cell] = start
            if finish > span_last[cell]:
                span_last[cell] = finish
            chunk = slice_chunk[s]
            if chunk > 0:
                box = slice_base[s] + stream_count[s] // chunk
                if slice_count[box] == 0:
                    slice_start[box] = start
                    slice_instruction[box] = i
                slice_end[box] = end
                slice_count[box] += 1
            stream_count[s] += 1
            ring[q, DONE] = 1
            head[s] = ring[q, NEXT]
            earliest[s] = NEVER
            if head[s] < 0:
                if stream_count[s] < expected[s]:
                    earliest[s] = end
            elif ring[head[s] & ring_mask, MISSING] == 0:
                earliest[s] = max(end, ring[head[s] & ring_mask, READY])
            changed[num_changed] = s
            num_changed += 1
            for w in range(signal_ptr[i], signal_ptr[i + 1]):
                n = ring[q, FIRST_SIGNAL] + w - signal_ptr[i]
                z = n & signal_mask
                t = signals[z, TOKEN]
                signals[z, SENT] = 1
                signals[z, TIME] = finish + delay[t]
                signals[z, BY] = entry
                if tokens[t, HEAD] != n:
                    continue
                while n >= 0 and signals[n & signal_mask, SENT] == 1:
                    z = n & signal_mask
                    signals[z, SENT] = 2
                    if signals[z, TIME] > tokens[t, LATEST]:
                        tokens[t, LATEST] = signals[z, TIME]
                        tokens[t, LATEST_BY] = signals[z, BY]
                    n = signals[z, LISTENER]
                    while n >= 0:
                        v = n & wait_mask
                        h = waits[v, WHO] & ring_mask
                        time = tokens[t, LATEST]
                        if time > ring[h, READY] or (
                            time == ring[h, READY] > 0 and waits[v, PLACE] < ring[h, SENDER_AT]
                        ):
                            ring[h, READY] = time
                            ring[h, SENDER] = tokens[t, LATEST_BY]
                            ring[h, SENDER_AT] = waits[v, PLACE]
                        ring[h, MISSING] -= 1
                        other = ring[h, STREAM]
                        if ring[h, MISSING] == 0 and head[other] == waits[v, WHO]:
                            earliest[other] = max(stream_free[other], ring[h, READY])
                            changed[num_changed] = other
                            num_changed += 1
                        n = waits[v, OTHER]
                    n = signals[z, FOLLOWING]
                tokens[t, HEAD] = n
            entry += 1
            logged += 1
            while tail < known and ring[tail & ring_mask, DONE]:
                tail += 1
        for j in range(num_changed):
            at = (width + changed[j]) // 2
            while at >= 1:
                a = first[2 * at]
                b = first[2 * at + 1]
                if earliest[b] < earliest[a] or (earliest[b] == earliest[a] and head[b] < head[a]):
                    a = b
                first[at] = a
                at //= 2
        if loop_first is None:
            continue
        num_crossed = 0
        while mark_tail < mark_next and marks[mark_tail & mark_mask, AT] <= tail:
            m = mark_tail & mark_mask
            crossed[marks[m, LOOP], 0] = marks[m, ACTIVATION]
            crossed[marks[m, LOOP], 1] = marks[m, ITERATION]
            num_crossed = max(num_crossed, marks[m, LOOP] + 1)
            mark_tail += 1
        is_crossed = False
        for d in range(num_crossed):
            run = crossed[d, 0]
            if run < 0 or level <= d or activation[d] != run or done_with[open_loop[d]] == run:
                crossed[d, 0] = -1
            else:
                is_crossed = True
        if is_crossed:
            place[:4] = last, latest + 1, entry, now
            place[4:10] = tail, known, next_signal, next_wait, mark_tail, mark_next
            place[10:15] = k, level, following, opened, begun
            place[15:] = logged, num_crossed
            return last, CROSSED, logged, latest, 0

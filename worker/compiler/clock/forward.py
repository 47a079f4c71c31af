"""The timing loop: one forward pass over a unit's instruction arrays.

Plain Python over arrays, compiled by numba at the first call.  Rules (isa/program.py): an
instruction is ready when its in-order stream is free and the tokens it waits for are signalled; its
ports serve who is ready first, and of equals who stands first in the program.  A transfer occupies
each port for ceil(bytes / bytes_per_cycle) cycles and its stream for the longest of these; a
compute occupies its engine for `cycles`.  `latency` delays what waits for the finish, not the
stream, and so does the `delay` of a token (`signals`).  This pass serves ports in the program's
order, so it ends where somebody is ready before one that stands in front of it and takes the same
port: `readiness` times such programs.

**Copies.**  Every start is a maximum of earlier times plus constants, so the pass is linear in the
max-plus algebra.  Where two iterations of a loop in a row have moved every stream, port and token
that they write by the same number of cycles, all further ones do so too: what else the maxima look
at has lost against moving times once, and always will.  Then all but the last few iterations are
skipped, their totals added, and the times moved: they are copies (`copies`).  Loops whose streams,
ports or tokens step with their counter (over cores, say) are run in full.
Source: F. Baccelli et al., Synchronization and Linearity (1992), chapter 3: periodic regimes of
max-plus linear systems; here found by comparing states, not by spectral theory.
"""

from __future__ import annotations

from math import ceil

import numpy as np
import numpy.typing as npt

from worker.compiler.clock.copies import BACK, LOGGED, MANY, MOVED, PUT, WHEN
from worker.compiler.isa.program import Opcode

COMPUTE = int(Opcode.COMPUTE)
Ints = npt.NDArray[np.int64]

NO_ROOM = -2
"""Instead of a stuck instruction: a log or ring is full."""
OUT_OF_ORDER = -3
"""Instead of a stuck instruction: the program's order is no order of readiness."""


def forward(
    stream: Ints, passed: Ints, macs: Ints, cycles: Ints, latency: Ints,
    node: Ints, resource: Ints, wait_ptr: Ints, wait_token: Ints, signal_ptr: Ints,
    signal_token: Ints, delay: Ints, column: Ints, rate: npt.NDArray[np.float64],
    port_ptr: Ints, port_of: Ints, hops: Ints,
    stream_core: Ints, num_cores: int,
    loop_first: Ints | None, loop_end: Ints, loop_trip: Ints, loop_jumps: npt.NDArray[np.bool_],
    step_stream: Ints, step_resource: Ints, step_wait: Ints, step_signal: Ints,
    slice_base: Ints, slice_chunk: Ints,
    row: Ints, queue: Ints, begin: Ints, before: Ints, via: Ints, late: Ints,
    times: Ints, totals: Ints, stamps: Ints,
    stream_free: Ints, resource_free: Ints, port_ready: Ints, token_time: Ints, stream_busy: Ints,
    stream_macs: Ints, stream_count: Ints, resource_bytes: Ints, resource_busy: Ints,
    span_first: Ints, span_last: Ints, slice_start: Ints, slice_end: Ints, slice_count: Ints,
    slice_instruction: Ints, token_last: Ints,
    open_loop: Ints, counter: Ints, window: Ints, was_times: Ints, was_totals: Ints, copies: Ints,
) -> tuple[int, int, int, int, int]:  # fmt: skip
    """Run the program; fill the output arrays (from `times` on, given zeroed or -1).

    `passed` [columns, rows], `column`: what passes each resource (`isa.program.passed`).
    `port_ptr`, `port_of`: the ports that each resource occupies (`isa.program.port_sets`); `hops`:
    by how much what passes it is seen later (`isa.program.hop_cycles`), empty where by nothing.
    `loop_first`: None where the program has no loops, for which the loop is compiled apart.

    What runs is logged: `row` and `queue`, its row and stream (not filled where there are no loops:
    the k-th to run is row k); `begin`; `before`, the one that its start waited for, -1 where none;
    `via`, the port that they met at, -1 where it was the engine or a token; beside `hops`, `late`,
    the cycles from its end to its finish.  The log lacks the iterations that are skipped, `copies`
    [.., 7] has them; `before` counts them.
    `stream_free`, `resource_free`, `port_ready` (when who came last was ready) and `token_time` are
    parts of `times`, the totals of `totals`;
    `stamps` says of each time which instruction wrote it last.  The last line's are given empty;
    their first dimension is the depth of the loops.

    Returns:
        (last finish, -1, entries of the log, which finishes last, copies); (_, k, ..) when
        row k waits for a token never signalled, (_, NO_ROOM, ..) when the log is full, (_,
        OUT_OF_ORDER, ..).
    Cost: linear in what runs, its ports and tokens; an iteration of a loop that may jump adds what
    comparing all times takes.
    """
    last = 0
    latest = -1
    entry = 0
    logged = 0
    num_copies = 0
    level = 0
    following = 0
    num_ports = resource.shape[1]
    crosses = len(hops) > 0
    first_port = len(stream_free)
    first_ready = first_port + len(resource_free)
    first_token = first_ready + len(port_ready)
    k = 0
    while k < stream.shape[0]:
        if loop_first is not None:
            while following < len(loop_first) and loop_first[following] == k:
                open_loop[level] = following
                counter[level] = 0
                if loop_jumps[following]:
                    was_times[level] = times
                    was_totals[level] = totals
                    window[level, 0] = entry  # where this iteration began
                    window[level, 1] = -1  # by how much the last one moved the times
                    window[level, 2] = 0  # entries of the last one
                    window[level, 3] = 0  # iterations in a row that moved them so
                    window[level, 4] = -1  # first start in this one
                    window[level, 5] = 0  # last finish in it, as seen by all
                    window[level, 6] = 0  # whether it has jumped
                level += 1
                following += 1
        i = np.uint64(k)  # spares the compiled loop the case of a negative index
        e = np.uint64(logged)
        s = stream[i]
        if loop_first is not None:
            if logged == len(begin):
                return last, NO_ROOM, logged, latest, num_copies
            for d in range(level):
                s += counter[d] * step_stream[i, d]
        free = stream_free[s]
        token = 0
        sender = -1
        for w in range(wait_ptr[i], wait_ptr[i + np.uint64(1)]):
            t = wait_token[w]
            if loop_first is not None:
                for d in range(level):
                    t += counter[d] * step_wait[w, d]
            time = token_time[t]
            if time < 0:
                return last, k, logged, latest, num_copies
            if time > token:
                token = time
                sender = token_last[t]
        ready = max(free, token)
        port = 0
        full = -1
        taken = 0
        for p in range(num_ports):
            r = resource[i, p]
            if r < 0:
                break
            if loop_first is not None:
                for d in range(level):
                    r += counter[d] * step_resource[i, d, p]
            for m in range(port_ptr[r], port_ptr[r + 1]):
                o = port_of[m]
                if ready < port_ready[o]:
                    return last, OUT_OF_ORDER, logged, latest, num_copies
                if resource_free[o] > port:
                    port = resource_free[o]
                    full = r
                    taken = o
        start = max(ready, port)
        via[e] = -1
        if start == free:
            before[e] = stamps[s]
        elif start == port:
            before[e] = stamps[first_port + taken]
            via[e] = full
        else:
            before[e] = sender
        stamps[s] = entry
        end = start + cycles[i]
        hop = 0
        for p in range(num_ports):
            r = resource[i, p]
            if r < 0:
                break
            if loop_first is not None:
                for d in range(level):
                    r += counter[d] * step_resource[i, d, p]
            size = passed[column[r], i]
            need = ceil(size / rate[r])
            for m in range(port_ptr[r], port_ptr[r + 1]):
                o = port_of[m]
                resource_free[o] = max(start, resource_free[o]) + need
                end = max(end, resource_free[o])
                port_ready[o] = ready
                stamps[first_port + o] = entry
                stamps[first_ready + o] = entry
            resource_busy[r] += need
            resource_bytes[r] += size
            if crosses:
                hop += hops[r]
        begin[e] = start
        stream_free[s] = end
        stream_busy[s] += end - start
        stream_macs[s] += macs[i]
        finish = end + latency[i]
        if crosses:
            finish += hop
            late[e] = finish - end
        if finish > last:
            last = finish
            latest = entry
        seen = finish
        for w in range(signal_ptr[i], signal_ptr[i + np.uint64(1)]):
            t = signal_token[w]
            if loop_first is not None:
                for d in range(level):
                    t += counter[d] * step_signal[w, d]
            if finish + delay[t] > token_time[t]:
                token_time[t] = finish + delay[t]
                token_last[t] = entry
            seen = max(seen, finish + delay[t])
            if loop_first is not None:
                stamps[first_token + t] = entry
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
                slice_instruction[box] = k
            slice_end[box] = end
            slice_count[box] += 1
        stream_count[s] += 1
        if loop_first is not None:
            row[e] = k
            queue[e] = s
            for d in range(level):
                if window[d, 4] < 0 or start < window[d, 4]:
                    window[d, 4] = start
                if seen > window[d, 5]:
                    window[d, 5] = seen
        entry += 1
        logged += 1
        k += 1
        if loop_first is not None:
            while level > 0 and loop_end[open_loop[level - 1]] == k:
                at = level - 1
                loop = open_loop[at]
                counter[at] += 1
                left = loop_trip[loop] - counter[at]
                if left == 0:
                    level -= 1
                    continue
                if loop_jumps[loop] and window[at, 6] == 0:
                    moved = -1
                    for c in range(len(times)):
                        if stamps[c] >= window[at, 0]:
                            by = times[c] - was_times[at, c]
                            if moved >= 0 and by != moved:
                                moved = -2
                                break
                            moved = by
                    length = entry - window[at, 0]
                    if moved < 0 or moved != window[at, 1] or length != window[at, 2]:
                        window[at, 3] = 0
                    if moved >= 0:
                        window[at, 3] += 1
                    window[at, 1] = moved
                    window[at, 2] = length
                    reach = 2
                    if moved > 0:
                        reach = max(2, (window[at, 5] - window[at, 4] + moved - 1) // moved)
                    skipped = left - reach - 1
                    if window[at, 3] >= reach and skipped > 0:
                        if num_copies == len(copies):
                            return last, NO_ROOM, logged, latest, num_copies
                        copies[num_copies, PUT] = entry
                        copies[num_copies, MANY] = skipped * length
                        copies[num_copies, BACK] = length
                        copies[num_copies, MOVED] = moved
                        copies[num_copies, LOGGED] = logged
                        copies[num_copies, WHEN] = -1
                        num_copies += 1
                        window[at, 6] = 1
                        for c in range(len(times)):
                            if stamps[c] >= window[at, 0]:
                                times[c] += skipped * moved
                                stamps[c] += skipped * length
                        for c in range(len(token_last)):
                            if token_last[c] >= window[at, 0]:
                                token_last[c] += skipped * length
                        for c in range(len(totals)):
                            totals[c] += skipped * (totals[c] - was_totals[at, c])
                        counter[at] += skipped
                        entry += skipped * length
                    else:
                        was_times[at] = times
                        was_totals[at] = totals
                    window[at, 0] = entry
                    window[at, 4] = -1
                    window[at, 5] = 0
                k = loop_first[loop]
                following = loop + 1
                break
    return last, -1, logged, latest, num_copies

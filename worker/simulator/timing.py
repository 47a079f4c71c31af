"""The timing loop: one forward pass over a unit's instruction arrays.

Plain Python over arrays, compiled by numba at the first call.  Rules (isa/program.py): an
instruction starts when its in-order stream is free, the tokens it waits for are signalled and its
ports are free, first come first served in program order.  A transfer occupies each port for
ceil(bytes / bytes_per_cycle) cycles and its stream for the longest of these; a compute occupies its
engine for `cycles`.  `latency` delays what waits for the finish, not the stream.
"""

from __future__ import annotations

from math import ceil

import numpy as np
import numpy.typing as npt

from worker.compiler.isa.program import Opcode

COMPUTE = int(Opcode.COMPUTE)
Ints = npt.NDArray[np.int64]

BUSY, TOKEN, RESOURCE, QUEUED = range(4)
"""Columns of `stream_stats`: engine busy; engine idle for a token; engine idle for a port; cycles
that ready instructions waited for their own engine (may exceed the run: instructions overlap)."""


def forward(
    opcode: Ints, stream: Ints, num_bytes: Ints, macs: Ints, cycles: Ints, latency: Ints,
    node: Ints, resource: Ints, wait_ptr: Ints, wait_token: Ints, signal_ptr: Ints,
    signal_token: Ints, rate: npt.NDArray[np.float64], stream_core: Ints, num_cores: int,
    slice_base: Ints, slice_chunk: Ints,
    begin: Ints, token_time: Ints, stream_free: Ints, resource_free: Ints, stream_stats: Ints,
    stream_macs: Ints, stream_count: Ints, resource_bytes: Ints, resource_busy: Ints,
    span_first: Ints, span_last: Ints, slice_start: Ints, slice_end: Ints, slice_count: Ints,
    slice_instruction: Ints, compute_start: Ints, compute_end: Ints, before: Ints, via: Ints,
    stream_last: Ints, resource_last: Ints, token_last: Ints,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Run the program; fill the output arrays (from `begin` on, all given zeroed or -1).

    `before`: the instruction that each one's start waited for, -1 where none; `via`: the port that
    they met at, -1 where it was the engine or a token.  The last line's are given -1.

    Returns:
        (last finish, -1, number of computes, the instruction that finishes last), or (_, k, ..)
        when instruction k waits for a token never signalled.
    Cost: linear in instructions, ports and tokens.
    """
    last = 0
    latest = -1
    computes = 0
    num_ports = resource.shape[1]
    for k in range(stream.shape[0]):
        s = stream[k]
        free = stream_free[s]
        token = 0
        sender = -1
        for w in range(wait_ptr[k], wait_ptr[k + 1]):
            time = token_time[wait_token[w]]
            if time < 0:
                return last, k, computes, latest
            if time > token:
                token = time
                sender = token_last[wait_token[w]]
        port = 0
        full = -1
        busy = cycles[k]
        for p in range(num_ports):
            r = resource[k, p]
            if r < 0:
                break
            if resource_free[r] > port:
                port = resource_free[r]
                full = r
            need = ceil(num_bytes[k] / rate[r])
            if need > busy:
                busy = need
        start = max(free, token, port)
        if start == free:
            before[k] = stream_last[s]
        elif start == port:
            before[k] = resource_last[full]
            via[k] = full
        else:
            before[k] = sender
        stream_last[s] = k
        if token > free:
            stream_stats[s, TOKEN] += token - free
        if start > max(free, token):
            stream_stats[s, RESOURCE] += start - max(free, token)
        if free > max(token, port):
            stream_stats[s, QUEUED] += free - max(token, port)
        for p in range(num_ports):
            r = resource[k, p]
            if r < 0:
                break
            need = ceil(num_bytes[k] / rate[r])
            resource_free[r] = start + need
            resource_last[r] = k
            resource_busy[r] += need
            resource_bytes[r] += num_bytes[k]
        begin[k] = start
        end = start + busy
        stream_free[s] = end
        if opcode[k] == COMPUTE:
            compute_start[computes] = start
            compute_end[computes] = end
            computes += 1
        stream_stats[s, BUSY] += busy
        stream_macs[s] += macs[k]
        finish = end + latency[k]
        if finish > last:
            last = finish
            latest = k
        for w in range(signal_ptr[k], signal_ptr[k + 1]):
            t = signal_token[w]
            if finish > token_time[t]:
                token_time[t] = finish
                token_last[t] = k
        cell = node[k] * num_cores + stream_core[s]
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
    return last, -1, computes, latest

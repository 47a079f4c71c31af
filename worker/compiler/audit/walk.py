"""The walk over a program that proves its order: one pass, with a clock per stream.

It takes the program block by block: what it knows is in arrays that it is given again, and numbers
of instructions count from the start of the program.

A stream's clock says of every other stream up to which of its instructions all have finished before
the stream's next one starts.  Waiting for a token brings in the clocks of all that signalled it so
far.  Streams start in order; transfers of one stream may finish out of order where their latencies
differ, so a stream counts once per latency (*lane* of the clock): a finish tells of earlier
instructions with the same or a smaller latency only.
"""

from __future__ import annotations

from typing import Any

ENTRY, SLOT, FLAGS, AMOUNT, NEED, SETS = range(6)
"""Columns of a row: from SETS on the sets of its dimensions, -1 behind the last, then those of all
that the entry has room for."""
WRITES, ADDS, IS_OWN, COPIES = 1, 2, 4, 8
"""Flags of a row."""

FAULTS = {
    1: ("inside", "reaches beyond its buffer's tile"),
    2: ("written", "reads elements that nothing has written"),
    3: ("whole", "reads a sum that is not complete"),
    4: ("finished", "may start before what it reads has been written"),
    5: ("twice", "adds to a sum that is complete"),
    6: ("once", "writes elements again that are read already, or stand for good"),
    7: ("writes-order", "may overtake an earlier write of the same elements"),
    8: ("reads-order", "may overwrite what an earlier instruction still reads"),
    9: ("value", "uses a place that has been given to another value"),
    10: ("place", "may start before its place is free of the value before"),
    11: ("signalled", "waits for a token that nothing has signalled"),
}  # what the walk returns


NOTHING = -1
"""Of a sum of which no point has been added, which is copied all the same."""


NODES = -1
"""More nodes are needed for users of slots."""
READS = -2
"""More nodes are needed for reads of cells."""


def walk(
    first_number: int, stream_of: Any, lane_stream: Any, lane: Any, is_instant: Any,
    lanes_below: Any, below: Any,
    wait_pointer: Any, wait: Any, signal_pointer: Any, signal: Any,
    pointer: Any, rows: Any,
    set_pointer: Any, set_low: Any, set_high: Any, set_size: Any,
    first_cell: Any, stride: Any, kind: Any, instance: Any,
    near_pointer: Any, near: Any, near_first: Any, near_step: Any, again: Any, identity: Any,
    clock: Any, token_clock: Any, is_used: Any, slot_first: Any, current: Any, users: Any,
    old_users: Any, node_lane: Any, node_last: Any, node_next: Any,
    writer: Any, writer_lane: Any, missing: Any, reader: Any,
    read_lane: Any, read_last: Any, read_next: Any,
    ranges: Any, state: Any, found: Any,
) -> int:  # fmt: skip
    """Returns 0, a fault's number with found = (instruction, other instruction or -1), or, where it
    stops in front of an instruction until there are more of them, NODES or READS.

    stream_of, lane [n]: of each instruction of the block; lane_stream [lanes]; is_instant [n]: its
    latency is 0, so that it has finished when the next of its stream starts; lanes_below (CSR of
    `below`): lanes of its stream with at most its latency.  again [slots]: 0, elements are never
    written after they are read; 1, they may be; 2, they are written once for good.  identity
    [slots]: starts at a reduction's identity.
    state: the next instruction of the block; of either kind of nodes how many have been used, the
    first of those that are free again, and how many these are.
    Given -1, or as the blocks before left it: clock [streams, lanes], token_clock [tokens, lanes],
    slot_first, current, users, old_users [slots], writer, writer_lane, reader [cells]; 0: is_used
    (a bit per entry).  Nodes are lists of (lane, last instruction).
    Cost: instructions times lanes per wait, plus cells touched.
    """
    rank = stride.shape[1]
    sets = SETS
    tiles = SETS + rank
    num_lanes = clock.shape[1]
    nodes = state[1]
    free = state[2]
    num_free = state[3]
    reads = state[4]
    free_read = state[5]
    num_free_reads = state[6]
    for n in range(state[0], len(stream_of)):
        # A block may be left in front of an instruction, but not within one.
        lacks = 0
        if pointer[n + 1] - pointer[n] > len(node_lane) - nodes + num_free:
            lacks = NODES
        visits = 0
        for row in range(pointer[n], pointer[n + 1]):
            if rows[row, FLAGS] & WRITES == 0 and again[rows[row, SLOT]] == 1:
                cells = 1
                for d in range(rank):
                    if rows[row, sets + d] >= 0:
                        cells *= set_size[rows[row, sets + d]]
                visits += cells
        if visits > len(read_lane) - reads + num_free_reads:
            lacks = READS
        if lacks < 0:
            state[0] = n
            state[1] = nodes
            state[2] = free
            state[3] = num_free
            state[4] = reads
            state[5] = free_read
            state[6] = num_free_reads
            return lacks
        i = first_number + n
        s = stream_of[n]
        own = lane[n]
        for a in range(wait_pointer[n], wait_pointer[n + 1]):
            t = wait[a]
            is_signalled = False
            for k in range(num_lanes):
                is_signalled = is_signalled or token_clock[t, k] >= 0
                if token_clock[t, k] > clock[s, k]:
                    clock[s, k] = token_clock[t, k]
            if not is_signalled:
                found[0] = i
                found[1] = -1
                return 11
        for row in range(pointer[n], pointer[n + 1]):
            e = rows[row, ENTRY]
            flags = rows[row, FLAGS]
            slot = rows[row, SLOT]
            if current[slot] != e:
                if is_used[e >> 3] & (1 << (e & 7)):
                    found[0] = i
                    found[1] = slot_first[slot]
                    return 9
                is_used[e >> 3] |= 1 << (e & 7)
                slot_first[slot] = i
                node = old_users[slot]
                while node >= 0:  # older still: done with before these began
                    after = node_next[node]
                    node_next[node] = free
                    free = node
                    num_free += 1
                    node = after
                old_users[slot] = users[slot]
                users[slot] = -1
                current[slot] = e
                if kind[slot] >= 0:
                    for a in range(near_pointer[kind[slot]], near_pointer[kind[slot] + 1]):
                        beside = near_first[near[a]] + instance[slot] * near_step[near[a]]
                        if current[beside] >= 0:
                            current[beside] = -2
            node = users[slot]
            while node >= 0 and node_lane[node] != own:
                node = node_next[node]
            if node >= 0:
                node_last[node] = i
            else:  # the first of its stream: everything before must be over
                begin = 0
                end = 0
                if kind[slot] >= 0:
                    begin = near_pointer[kind[slot]]
                    end = near_pointer[kind[slot] + 1]
                for a in range(begin - 1, end):
                    if a < begin:
                        node = old_users[slot]
                    else:
                        node = users[near_first[near[a]] + instance[slot] * near_step[near[a]]]
                    while node >= 0:
                        other = node_last[node]
                        if lane_stream[node_lane[node]] != s and clock[s, node_lane[node]] < other:
                            found[0] = i
                            found[1] = other
                            return 10
                        node = node_next[node]
                if free >= 0:
                    node = free
                    free = node_next[node]
                    num_free -= 1
                else:
                    node = nodes
                    nodes += 1
                node_lane[node] = own
                node_last[node] = i
                node_next[node] = users[slot]
                users[slot] = node
            first = slot_first[slot]
            is_write = flags & WRITES
            is_own = flags & IS_OWN
            is_copy = flags & COPIES
            source = -1  # the read row of a copy, which stands right before its write row
            if is_write and is_copy and row > pointer[n] and rows[row - 1, FLAGS] & WRITES == 0:
                source = row - 1
            # An odometer over the product of the sets: ranges[d] = (interval, atom, end of it).
            dims = 0
            cell = first_cell[slot]
            is_empty = False
            from_slot = 0
            from_cell = 0
            if source >= 0:
                from_slot = rows[source, SLOT]
                from_cell = first_cell[from_slot]
            while dims < rank and rows[row, sets + dims] >= 0:
                b = rows[row, sets + dims]
                if set_pointer[b] == set_pointer[b + 1]:
                    is_empty = True
                    break
                room = set_pointer[rows[row, tiles + dims]]
                origin = set_low[room]
                for k in range(set_pointer[b], set_pointer[b + 1]):
                    if set_low[k] < origin or set_high[k] > set_high[room]:
                        found[0] = i
                        found[1] = -1
                        return 1
                ranges[dims, 0] = set_pointer[b]
                ranges[dims, 1] = set_low[set_pointer[b]]
                cell += (ranges[dims, 1] - origin) * stride[slot, dims]
                if source >= 0:
                    at = ranges[dims, 1] - set_low[set_pointer[rows[source, tiles + dims]]]
                    from_cell += at * stride[from_slot, dims]
                dims += 1
            if is_empty:
                continue
            while True:
                w = writer[cell]
                is_there = w >= first
                if is_write:
                    if is_there:
                        if flags & ADDS:
                            if missing[cell] != NOTHING and missing[cell] < rows[row, AMOUNT]:
                                found[0] = i
                                found[1] = w
                                return 5
                        elif again[slot] == 2:
                            found[0] = i
                            found[1] = w
                            return 6
                        by = writer_lane[cell]
                        if lane_stream[by] != s and clock[s, by] < w:
                            found[0] = i
                            found[1] = w
                            return 7
                        if again[slot] == 1:
                            node = reader[cell]
                            while node >= 0:
                                other = read_last[node]
                                if (
                                    other >= first
                                    and lane_stream[read_lane[node]] != s
                                    and (clock[s, read_lane[node]] < other)
                                ):
                                    found[0] = i
                                    found[1] = other
                                    return 8
                                after = read_next[node]
                                read_next[node] = free_read
                                free_read = node
                                num_free_reads += 1
                                node = after
                            reader[cell] = -1
                        elif reader[cell] >= first:
                            found[0] = i
                            found[1] = reader[cell]
                            return 6
                    if flags & ADDS:
                        if not is_there and not identity[slot]:
                            found[0] = i
                            found[1] = -1
                            return 2
                        if is_there and missing[cell] != NOTHING:
                            missing[cell] -= rows[row, AMOUNT]
                        else:
                            missing[cell] = rows[row, NEED] - rows[row, AMOUNT]
                    else:
                        missing[cell] = 0
                        if source >= 0:  # a copy of a sum is as complete as that; padding is
                            d = 0
                            while d < dims:
                                b = set_pointer[rows[source, sets + d]]
                                if b == set_pointer[rows[source, sets + d] + 1] or not (
                                    set_low[b] <= ranges[d, 1] < set_high[b]
                                ):
                                    break
                                d += 1
                            if d == dims:
                                missing[cell] = NOTHING
                                if writer[from_cell] >= slot_first[from_slot]:
                                    missing[cell] = missing[from_cell]
                    writer[cell] = i
                    writer_lane[cell] = own
                else:
                    if not is_there:
                        if not identity[slot]:
                            found[0] = i
                            found[1] = -1
                            return 2
                    else:
                        if missing[cell] != 0 and not is_own and not is_copy:
                            found[0] = i
                            found[1] = w
                            return 3
                        if clock[s, writer_lane[cell]] < w and not (is_own and w == i):
                            found[0] = i
                            found[1] = w
                            return 4
                    if again[slot] == 1:
                        node = reader[cell]
                        while node >= 0 and read_lane[node] != own:
                            node = read_next[node]
                        if node < 0:
                            if free_read >= 0:
                                node = free_read
                                free_read = read_next[node]
                                num_free_reads -= 1
                            else:
                                node = reads
                                reads += 1
                            read_lane[node] = own
                            read_next[node] = reader[cell]
                            reader[cell] = node
                        read_last[node] = i
                    else:
                        reader[cell] = i
                d = dims - 1
                while d >= 0:
                    k = ranges[d, 0]
                    at = ranges[d, 1] + 1
                    if at == set_high[k]:
                        k += 1
                        if k == set_pointer[rows[row, sets + d] + 1]:
                            k = set_pointer[rows[row, sets + d]]
                            cell += (set_low[k] - ranges[d, 1]) * stride[slot, d]
                            from_cell += (set_low[k] - ranges[d, 1]) * stride[from_slot, d]
                            ranges[d, 0] = k
                            ranges[d, 1] = set_low[k]
                            d -= 1
                            continue
                        at = set_low[k]
                    cell += (at - ranges[d, 1]) * stride[slot, d]
                    from_cell += (at - ranges[d, 1]) * stride[from_slot, d]
                    ranges[d, 0] = k
                    ranges[d, 1] = at
                    break
                if d < 0:
                    break
        for a in range(signal_pointer[n], signal_pointer[n + 1]):
            t = signal[a]
            for k in range(num_lanes):
                if clock[s, k] > token_clock[t, k]:
                    token_clock[t, k] = clock[s, k]
            for b in range(lanes_below[own], lanes_below[own + 1]):
                token_clock[t, below[b]] = i
        if is_instant[n]:
            clock[s, own] = i
    state[0] = 0
    state[1] = nodes
    state[2] = free
    state[3] = num_free
    state[4] = reads
    state[5] = free_read
    state[6] = num_free_reads
    return 0

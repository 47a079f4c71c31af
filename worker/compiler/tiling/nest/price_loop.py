"""The loop of `price`: one tiling after the other, in plain numbers, compiled where that pays.

Counts stand in floats: exact as far as whole numbers are, and of layers of 10^18 points they do not
run over.
"""

from __future__ import annotations

from math import ceil, floor, inf
from typing import Any

from worker.compiler.machine.mesh import TREE_SIZES
from worker.compiler.tiling.nest.arrays import TRIPS, WAYS
from worker.compiler.tiling.nest.price_tables import (
    CARRIED,
    DRAIN,
    PriceLayer,
    PriceScratch,
    PriceTables,
)
from worker.compiler.tiling.nest.route import EVERYBODY


def prices(
    numbers: Any, tiles: Any, double: Any, odd: Any, work: Any, orders: Any, most: float, out: Any,
    t: PriceTables, layer: PriceLayer, s: PriceScratch,
) -> None:  # fmt: skip
    """Fill `out` [tilings, 5] with rank, place among `orders`, cycles, executed leaves and charge,
    each with the best order of its loops; the rank is inf where a buffer does not fit.

    `numbers`: ways and trips [tilings, 2, stages, axes]; `tiles` [tilings, stages, axes]; `double`
    [tilings]: with two copies; `odd` [tilings, stages, dimensions, (width, pitch)] of indices that
    are no sums of axes; `work` [tilings, 3 x operators + 1]: cycles of an instruction of each
    operator, what one of the first is charged, and cycles of the read and the write port of its
    memory that one of each takes where transfers pass them; `orders` [orders, stages, axes]: axes
    by place, outermost first; `most`: leaves, as of `search.score`.
    Cost: linear in stages, operands, axes and orders: some microseconds a tiling.
    """
    num_stages, num_axes = tiles.shape[1], tiles.shape[2]
    num_held, num_moves, num_memories = t.held.shape[0], t.moves.shape[0], len(s.turns)
    last = num_stages - 1
    for n in range(len(tiles)):
        for column in range(5):
            out[n, column] = 0.0
        out[n, 0] = inf

        # Boxes of all operands at every stage, and strips of the result.
        for k in range(num_stages):
            for d in range(t.dims.shape[0]):
                width = 1
                if t.dims[d, 4] >= 0:
                    width = odd[n, k, t.dims[d, 4], 0]
                for j in range(t.term_at[d], t.term_at[d + 1]):
                    width += t.terms[j, 1] * (tiles[n, k, t.terms[j, 0]] - 1)
                s.widths[k, d] = min(width + t.dims[d, 0], t.dims[d, 1])
        strip_dim, strips = 0, 1
        if layer.result >= 0 and layer.max_strips > 1:
            first = t.dim_at[layer.result]
            for d in range(first, t.dim_at[layer.result + 1]):
                number = min(layer.max_strips, s.widths[last, d])
                while s.widths[last, d] % number:
                    number -= 1
                if number > strips:
                    strip_dim, strips = d - first, number

        # Room.
        fits = True
        h = 0
        for k in range(num_stages):
            units, total = 1, 0
            for a in range(num_axes):
                units *= numbers[n, WAYS, k, a]
            while h < num_held and t.held[h, 0] == k:
                o, elems, copies = t.held[h, 1], 1, 1
                for d in range(t.dim_at[o], t.dim_at[o + 1]):
                    width = s.widths[k, d]
                    if t.held[h, 6] and d - t.dim_at[o] == strip_dim:
                        width //= strips
                    elems *= width
                if double[n] and not t.held[h, 4]:
                    for a in range(num_axes):
                        if t.own[o, a] and numbers[n, TRIPS, k, a] > 1:
                            copies = 2
                unit = t.held[h, 3]
                size = -(-elems * t.held[h, 2] // unit) * unit * copies
                if t.held[h, 5] < 0:
                    total += size
                else:
                    fits = fits and size <= t.held[h, 5]
                s.held[h, 0], s.held[h, 1] = elems, copies
                h += 1
            fits = fits and total <= t.stages[k, 0] // min(t.stages[k, 1], max(1, units))
        if not fits:
            continue

        # What every stage moves, whatever the order of loops.
        entries, busy, results, carries = 1.0, 1, 1.0, False
        m = 0
        for k in range(num_stages):
            units, out_trips, steps, is_double, sums = 1, 1.0, entries, False, False
            for a in range(num_axes):
                trips = numbers[n, TRIPS, k, a]
                units *= numbers[n, WAYS, k, a]
                steps *= trips
                if t.is_summed[a]:
                    sums = sums or trips > 1
                else:
                    out_trips *= trips
            used = busy * units
            for j in range(num_held):
                is_double = is_double or (t.held[j, 0] == k and s.held[j, 1] > 1)
            for column in range(4):
                s.drains[k, column] = 0.0
            while m < num_moves and t.moves[m, 0] == k:
                o, kind, item, copies = t.moves[m, 1], t.moves[m, 3], t.moves[m, 4], t.moves[m, 9]
                s.is_moved[m] = kind != CARRIED or carries
                if not s.is_moved[m]:
                    m += 1
                    continue
                payload = s.held[t.moves[m, 2], 0] * item
                for count in range(3):
                    s.sizes[count] = float(payload)
                for count in range(1, 3):
                    burst = layer.home_burst if count == 1 else layer.cache_burst
                    if burst == 1 or not t.moves[m, 11]:
                        continue
                    # As `machine.bursts.burst_bytes`, of what lies in the tensor.
                    first, num = t.dim_at[o], t.dim_at[o + 1] - t.dim_at[o]
                    stride, found = item, 0
                    for back in range(num):
                        i = num - 1 - back
                        d = first + i
                        known, phase = 0, t.dims[d, 3]
                        for j in range(t.term_at[d], t.term_at[d + 1]):
                            a, factor = t.terms[j, 0], t.terms[j, 1]
                            if t.terms[j, 2]:
                                phase -= factor * (tiles[n, k, a] - 1)
                            if tiles[n, k, a] < t.extents[a]:
                                x, y = known, factor * tiles[n, k, a]
                                while y:
                                    x, y = y, x % y
                                known = x
                        x, y = known, abs(phase)
                        if t.dims[d, 4] >= 0:
                            x, y = odd[n, k, t.dims[d, 4], 1], 0
                        while y:
                            x, y = y, x % y
                        s.runs[0, i], s.runs[1, i] = min(s.widths[k, d], t.dims[d, 2]), stride
                        s.runs[2, i] = x
                        stride *= t.dims[d, 2]
                    for around in range(num + 1):  # the box, then boxes around it with whole rows
                        if around:
                            i = num - around
                            if s.runs[0, i] >= t.dims[first + i, 2]:
                                continue
                            s.runs[0, i] = t.dims[first + i, 2]
                        known = layer.align
                        for i in range(num - around):
                            x, y = known, s.runs[2, i] * s.runs[1, i]
                            while y:
                                x, y = y, x % y
                            known = x
                        x, y = burst, known
                        while y:
                            x, y = y, x % y
                        known = x
                        for i in range(num):
                            s.runs[3, i] = known
                            if s.runs[0, i] > 1:
                                x, y = known, s.runs[1, i]
                                while y:
                                    x, y = y, x % y
                                known = x
                        span, taken = item, -(-(item + burst - known) // burst) * burst
                        for back in range(num):
                            i = num - 1 - back
                            span += (s.runs[0, i] - 1) * s.runs[1, i]
                            whole = -(-(span + burst - s.runs[3, i]) // burst) * burst
                            taken = min(taken * s.runs[0, i], whole)
                        if not around or taken < found:
                            found = taken
                    s.sizes[count] = float(max(payload, found))
                # Transfers that the source serves, while all units are.
                reach, reads = t.moves[m, 7], used
                if kind != DRAIN and reach > 1:
                    own = 1
                    for a in range(num_axes):
                        if t.own[o, a]:
                            own *= numbers[n, WAYS, k, a]
                    reads = own
                    if reach < units:  # of neighbouring units that need the same piece one reads it
                        reads = 0
                        for i in range(own):
                            s.stamps[i] = 0
                        for unit in range(units):
                            piece, each, left = 0, 1, unit
                            for back in range(num_axes):
                                a = num_axes - 1 - back
                                number = numbers[n, WAYS, k, a]
                                if t.own[o, a]:
                                    piece += each * (left % number)
                                    each *= number
                                left //= number
                            if s.stamps[piece] != unit // reach + 1:
                                s.stamps[piece] = unit // reach + 1
                                reads += 1
                    reads *= busy
                # Cycles of one transfer: while all units have one, and while one has.
                latency, is_rounded = float(t.moves[m, 5]), t.moves[m, 10]
                one = max(s.sizes[0] / t.rates[m, 0], float(t.moves[m, 6]))
                alone = one
                if reads < used:
                    one = max(one, s.sizes[0] / t.rates[m, 1])
                for j in range(t.port_at[m], t.port_at[m + 1]):
                    rate, instances = t.ports[j, 0], int(t.ports[j, 1])
                    size = s.sizes[int(t.ports[j, 2])]
                    taken_by_one = float(ceil(size / rate)) if is_rounded else size / rate
                    alone = max(alone, taken_by_one)
                    many, crowds = used, int(t.ports[j, 3])
                    if reads < used and j == t.port_at[m]:
                        if t.moves[m, 8]:
                            many = reads
                        else:
                            size = size * reads / used
                            taken_by_one = float(ceil(size / rate)) if is_rounded else size / rate
                    waiting = -(-many * copies // instances)
                    if reads < used and t.ports[j, 4] > EVERYBODY:
                        crowds = int(t.ports[j, 4])
                        waiting = -(-reads * copies // instances)
                        if crowds >= 0:
                            size_of_tree, receivers = 0, 1
                            while receivers * reads < used:
                                size_of_tree, receivers = size_of_tree + 1, 2 * receivers
                            waiting = t.crowds[crowds + reads * copies * TREE_SIZES + size_of_tree]
                    elif crowds >= 0:
                        waiting = t.crowds[crowds + many * copies]
                    one = max(one, max(1, waiting) * taken_by_one)
                if not t.moves[m, 12]:
                    alone = one
                for j in range(t.turn_at[m], t.turn_at[m + 1]):
                    rate, instances = t.turns[j, 0], int(t.turns[j, 1])
                    size, many = s.sizes[int(t.turns[j, 4])], used
                    if t.turns[j, 3] > 0 and reads < used:
                        if t.moves[m, 8]:
                            many = reads
                        else:
                            size = size * reads / used
                    waiting = max(1, -(-many * copies // instances))
                    each_turn = float(ceil(size / rate)) if is_rounded else size / rate
                    times = out_trips if kind == DRAIN else 1.0
                    s.turned[j] = times * each_turn * waiting
                source, other = 0.0, 0.0
                for count in range(3):
                    source += t.rates[m, 2 + count] * s.sizes[count]
                    other += t.rates[m, 5 + count] * s.sizes[count]
                charge = (reads * source + used * other) * copies
                if kind == DRAIN:
                    drain = out_trips * one
                    s.drains[k, 0], s.drains[k, 1] = drain, out_trips * (latency + alone)
                    s.drains[k, 2] = latency + drain / out_trips
                    s.drains[k, 3] = out_trips * charge
                else:
                    s.fills[m, 0], s.fills[m, 1], s.fills[m, 3] = one, alone, charge
                    s.fills[m, 2] = latency + max(0.0, alone - one / used)
                m += 1
            s.levels[k, 0], s.levels[k, 1], s.levels[k, 2] = entries, float(used), out_trips
            is_lone = layer.is_alone and k == last and out_trips > 1
            s.levels[k, 3], s.levels[k, 4] = steps, 1.0 if is_double else 0.0
            s.levels[k, 5] = 1.0 if is_lone else 0.0
            results = entries * out_trips * strips
            entries, busy, carries = steps, used, carries or sums

        # Engines.
        compute, executed, charged = entries * work[n, 0], entries * busy, 0.0
        num_steps = len(t.engines) - 1
        for memory in range(num_memories):
            s.taken[memory] = 0.0
        for j in range(num_steps + 1):  # ports that engines share with transfers
            if t.shared[j, 0] >= 0:
                waiting = max(1, -(-busy * t.shared[j, 2] // t.shared[j, 3]))
                times = results if j else entries
                for way in range(2):
                    each_turn = work[n, num_steps + 2 + 2 * j + way]
                    s.taken[t.shared[j, way]] += times * each_turn * waiting
        if layer.is_fed:
            charged = entries * busy * work[n, num_steps + 1]
        if num_steps:
            for e in range(len(s.busy)):
                s.busy[e] = 0.0
            s.busy[t.engines[0]] = compute
            for j in range(num_steps):
                s.busy[t.engines[1 + j]] += results * work[n, 1 + j]
            is_beside = layer.result_held >= 0 and s.held[layer.result_held, 1] > 1
            compute = 0.0
            for e in range(len(s.busy)):
                compute = max(compute, s.busy[e]) if is_beside else compute + s.busy[e]
            executed += results * busy * num_steps

        # In every order.
        for order in range(len(orders)):
            charge, leaves = charged, executed
            for memory in range(num_memories):
                s.turns[memory] = s.taken[memory]
            serial, stored, begun, tail, lag = 0.0, 0.0, 0.0, 0.0, 0.0
            waiting_for, draining, slowest, exposed = 0.0, 0.0, 0.0, 0.0
            m = 0
            for k in range(num_stages):
                entries, used_by, out_trips = s.levels[k, 0], s.levels[k, 1], s.levels[k, 2]
                steps, is_double, is_lone = s.levels[k, 3], s.levels[k, 4] > 0, s.levels[k, 5] > 0
                cycles, early, waited, first_fills = 0.0, 0.0, 0.0, 0.0
                arrival, skew, carried, waits = 0.0, 0.0, 0.0, 0.0
                moves, before, fill_charge = 0.0, 0.0, 0.0
                while m < num_moves and t.moves[m, 0] == k:
                    kind = t.moves[m, 3]
                    if not s.is_moved[m]:
                        m += 1
                        continue
                    loads, running = 1.0, 1.0
                    if kind == DRAIN:
                        loads = 1.0
                    else:
                        o, latency = t.moves[m, 1], float(t.moves[m, 5])
                        one, alone = s.fills[m, 0], s.fills[m, 1]
                        # Its Place stands inside the loops up to the last that its box depends on.
                        for place in range(num_axes):
                            a = orders[order, k, place]
                            if numbers[n, TRIPS, k, a] > 1:
                                running *= numbers[n, TRIPS, k, a]
                                if t.own[o, a]:
                                    loads = running
                        cycles += loads * one
                        twice = s.held[t.moves[m, 2], 1] > 1
                        if kind == CARRIED:
                            carried += loads * (latency + one)
                        elif t.moves[m, 13] and (loads == 1 or twice):
                            early += loads * one
                        else:
                            late = max(0.0, loads - before)  # steps in which no other fill follows
                            before = max(before, loads)
                            waited += late * alone + (loads - late) * one
                            first_fills += latency + one
                            skew += one - alone
                        arrival = max(arrival, s.fills[m, 2])
                        moves += loads
                        fill_charge += loads * s.fills[m, 3]
                        if kind != CARRIED:
                            waits = max(waits, loads * latency)
                    for j in range(t.turn_at[m], t.turn_at[m + 1]):
                        s.turns[int(t.turns[j, 2])] += entries * loads * s.turned[j]
                    m += 1
                # Loads of different operands are in flight together: a step waits for the latency
                # once.  One engine brings them all, so sources do not add their rates up.
                drain, drain_alone, last_drain = s.drains[k, 0], s.drains[k, 1], s.drains[k, 2]
                charge += entries * (fill_charge + s.drains[k, 3])
                leaves += entries * used_by * (moves + out_trips)
                if layer.overlaps:
                    every = out_trips * last_drain
                    if is_double:
                        slowest = max(slowest, entries * cycles)
                        waiting_for += entries * (cycles + first_fills + waits)
                        if is_lone:
                            exposed += entries * every - last_drain
                        else:
                            slowest = max(slowest, entries * every)
                    else:
                        slowest = max(slowest, entries * early)
                        exposed += entries * (cycles - early + first_fills + waits + every)
                    exposed += last_drain
                    continue
                if is_double:
                    waiting_for += entries * (cycles + first_fills + waits)
                    begun += first_fills
                else:
                    serial += entries * (waited + waits) + skew
                if is_double and not is_lone and carried == 0:
                    draining += entries * drain_alone
                else:  # the last one is not among those that something waits for
                    drains = (entries - 1 / out_trips) * drain_alone
                    serial += drains + entries * carried
                    if is_double:
                        stored += drains + entries * carried
                s.ended[k, 0], s.ended[k, 1] = entries * max(cycles, drain), arrival
                s.ended[k, 2], s.ended[k, 3] = serial, steps
                tail += last_drain
                lag += last_drain - drain / out_trips
            turning = 0.0
            for memory in range(num_memories):
                turning = max(turning, s.turns[memory])
            if layer.overlaps:
                # Others fill what it would wait for at its ends and ask for ports whenever a unit
                # waits: where a buffer has one copy all that moves is added.
                longest = max(slowest, compute, layer.at_home, (waiting_for + compute) / 2)
                longest = max(longest + exposed, turning)
            else:
                # Two copies: while one is computed on the other is on its way, so a pair of steps
                # takes at least one load or store with its latency and one computation; a result
                # without a second copy is waited for in each.
                done = compute + serial
                paired = (max(waiting_for, draining) + done + stored) / 2
                longest = max(done + begun, layer.at_home, paired)
                behind = 0.0
                for k in range(num_stages):  # what comes last is still computed with
                    behind = s.ended[k, 1] + (done - s.ended[k, 2]) / s.ended[k, 3]
                    longest = max(longest, s.ended[k, 0] + behind)
                # The last drains are among what a port of both directions takes one by one: while a
                # unit computes with what it got last, others are drained.
                after = turning + max(0.0, behind - (tail - lag)) + lag
                longest = max(longest + tail, after)
            whole_cycles = float(floor(longest))
            cost = layer.per_cycle * whole_cycles + charge
            rank = cost * max(1.0, leaves / most) + leaves * 1e-3 * layer.per_cycle
            if order == 0 or rank < out[n, 0]:
                out[n, 0], out[n, 1], out[n, 2] = rank, float(order), whole_cycles
                out[n, 3], out[n, 4] = leaves, charge

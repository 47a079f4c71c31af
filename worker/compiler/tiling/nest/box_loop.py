"""The loop of `box_floor`: one box after the other, in plain numbers, compiled where that pays."""

from __future__ import annotations

from math import ceil, floor, inf
from typing import Any

from worker.compiler.tiling.nest.arrays import TRIPS, WAYS
from worker.compiler.tiling.nest.box_tables import SINGLE, WHOLE, Layer, Scratch, Tables
from worker.compiler.tiling.nest.route import EVERYBODY


def floors(
    low: Any, high: Any, tiles: Any, limit: float, out: Any, t: Tables, layer: Layer, s: Scratch
) -> None:
    """Fill `out` [boxes, 2] with what every box costs at least, as `BoxFloor` says: of operands
    with two copies, then with one; inf where engines alone take it to `limit`.

    `tiles` [boxes, axes]: those of the innermost stage, where a box is a single tiling; 0: not.
    Cost: linear in stages, operands, axes and orders: some microseconds a box.
    """
    num_stages, num_axes, num_boxes = low.shape[2], low.shape[3], low.shape[0]
    num_dims = t.group.shape[1]
    num_moves, num_paces, num_held = t.moves.shape[0], t.paces.shape[0], t.held.shape[0]
    tile, share, again, apart = s.sizes[0], s.sizes[1], s.sizes[2], s.sizes[3]
    trips, ways = s.sizes[4], s.sizes[5]
    entries, outside, used, inside = s.stages[0], s.stages[1], s.stages[2], s.stages[3]
    doubled = s.stages[4]
    for b in range(num_boxes):
        out[b, 0], out[b, 1] = inf, inf
        is_nothing, is_one = False, tiles[b, 0] > 0
        for a in range(num_axes):
            extent, product = t.extents[a], 1
            for k in range(num_stages):
                trips[k, a], ways[k, a] = low[b, TRIPS, k, a], low[b, WAYS, k, a]
                product *= high[b, WAYS, k, a] * high[b, TRIPS, k, a]
            size = -(-extent // product)
            if is_one:
                size = tiles[b, a]
            elif t.cuts[a] == WHOLE:
                size = extent
            elif t.cuts[a] == SINGLE:
                size = 1
            for back in range(num_stages):
                k = num_stages - 1 - back
                tile[k, a] = size
                size *= ways[k, a] * trips[k, a]
            parts, most, times, split = 1, 1, 1, 1
            for k in range(num_stages):
                again[k, a] = times
                most *= high[b, WAYS, k, a]
                share[k, a] = -(-extent // most)
                parts *= high[b, WAYS, k, a] * high[b, TRIPS, k, a]
                tile[k, a] = max(tile[k, a], -(-extent // parts))
                if t.cuts[a] == WHOLE:
                    tile[k, a] = extent
                split *= ways[k, a]
                apart[k, a] = split
                times *= trips[k, a]
            if ways[0, a] * (trips[0, a] - 1) >= extent:
                is_nothing = True
        if is_nothing:
            continue
        times, units = 1, 1
        for k in range(num_stages):
            entries[k], outside[k], inside[k] = times, units, 1
            for a in range(num_axes):
                inside[k] *= ways[k, a]
                times *= trips[k, a]
            units *= inside[k]
            used[k] = units
        last = num_stages - 1
        results = entries[last]
        for a in range(num_axes):
            if not t.is_summed[a]:
                results *= trips[last, a]

        # Engines.
        for e in range(len(s.busy)):
            s.busy[e] = 0.0
        step = 0.0
        for p in range(num_paces):
            start, engine = t.paces[p, 0], t.paces[p, 1]
            number = times if p == 0 else results
            taken = 0.0
            for which in range(2):
                if t.paces[p, 4]:  # the box of the result, dimension by dimension
                    for a in range(num_dims):
                        s.box[which, a] = 1
                        if t.dim_of[p, a] >= 0:
                            d = t.dim_at[layer.result] + t.dim_of[p, a]
                            width = 1
                            for j in range(t.term_at[d], t.term_at[d + 1]):
                                x = t.terms[j, 0]
                                size = tile[last, x] if which == 0 else share[last, x]
                                width += t.terms[j, 1] * (size - 1)
                            s.box[which, a] = min(width + t.dims[d, 0], t.dims[d, 1])
                else:
                    for a in range(num_dims):
                        s.box[which, a] = 1
                    for a in range(num_axes):
                        s.box[which, a] = tile[last, a] if which == 0 else share[last, a]
                points = 1
                sides_0, sides_1, sides_2, sides_3 = 1, 1, 1, 1
                for a in range(num_dims):
                    size = s.box[which, a]
                    points *= size
                    if t.group[p, a] == 0:
                        sides_0 *= size
                    elif t.group[p, a] == 1:
                        sides_1 *= size
                    elif t.group[p, a] == 2:
                        sides_2 *= size
                    elif t.group[p, a] == 3:
                        sides_3 *= size
                inward, outward = 0.0, 0.0
                for j in range(t.stream_at[p], t.stream_at[p + 1]):
                    amount = float(t.streams[j, num_dims])
                    for a in range(num_dims):
                        if t.streams[j, a]:
                            amount *= s.box[which, a]
                    if not t.streams[j, num_dims + 1]:
                        inward += amount
                        continue
                    outward += amount
                    for a in range(num_axes):  # sums so far, where there surely are such
                        if t.is_summed[a] and again[last, a] * trips[last, a] > 1 and p == 0:
                            inward += amount
                            break
                passing = 0.0
                if t.speeds[p, 4] > 0:
                    passing = float(ceil(inward / t.speeds[p, 4]))
                if t.speeds[p, 5] > 0:
                    passing = max(passing, float(ceil(outward / t.speeds[p, 5])))
                if t.paces[p, 2]:
                    padded = float(sides_3)
                    padded *= -(-sides_0 // t.cells[p, 0]) * t.cells[p, 0]
                    padded *= -(-sides_1 // t.cells[p, 1]) * t.cells[p, 1]
                    padded *= -(-sides_2 // t.cells[p, 2]) * t.cells[p, 2]
                    cycles = float(ceil(padded / t.speeds[p, 0] * (1 - layer.slack)))
                    cycles = cycles + passing if t.paces[p, 3] else max(cycles, passing)
                else:
                    work = points * t.speeds[p, 1] / t.speeds[p, 0]
                    if t.speeds[p, 2] > 0:
                        work += points * t.speeds[p, 2] / t.speeds[p, 3]
                    cycles = max(float(ceil(work * (1 - layer.slack))), passing)
                if which == 0:
                    taken = number * (start + cycles)
                    if p == 0:
                        step = start + cycles
                else:
                    taken = max(taken, number * start + cycles)
            if p == 0:  # no split is better than an even one over all units
                taken = max(taken, number * start + t.least[p] / layer.num_units)
            s.busy[engine] += taken
        compute = 0.0
        for e in range(len(s.busy)):
            compute = max(compute, s.busy[e]) if layer.is_beside else compute + s.busy[e]
        if layer.per_cycle * floor(compute * (1 - layer.slack)) * (1 - layer.slack) >= limit:
            continue
        leaves = float(units) * (times + results * (num_paces - 1))

        # Room, with two copies of operands and with one.
        fits, fits_single = True, True
        for k in range(num_stages):
            budget = t.stages[k, 0] // min(t.stages[k, 1], inside[k])
            taken_bytes, taken_single = 0, 0
            doubled[k] = 0
            for h in range(num_held):
                if t.held[h, 0] != k:
                    continue
                o, copies, elems = t.held[h, 1], 1, 1
                if not t.held[h, 4]:
                    for a in range(num_axes):
                        if t.own[o, a] and trips[k, a] > 1:
                            copies = 2
                            doubled[k] = 1
                for d in range(t.dim_at[o], t.dim_at[o + 1]):
                    width = 1
                    for j in range(t.term_at[d], t.term_at[d + 1]):
                        width += t.terms[j, 1] * (tile[k, t.terms[j, 0]] - 1)
                    elems *= min(width + t.dims[d, 0], t.dims[d, 1])
                unit = t.held[h, 3]
                room = -(-elems * t.held[h, 2] // unit) * unit
                if t.held[h, 5] < 0:
                    taken_bytes += room * copies
                    taken_single += room
                else:
                    fits &= room * copies <= t.held[h, 5]
                    fits_single &= room <= t.held[h, 5]
            fits &= taken_bytes <= budget
            fits_single &= taken_single <= budget
        if not fits_single:
            continue

        # What is on its way, whatever the order of loops.
        for m in range(num_moves):
            k, o, item, is_outward = t.moves[m, 0], t.moves[m, 1], t.moves[m, 2], t.moves[m, 3]
            bytes_each, bytes_mine = float(item), float(item)
            for d in range(t.dim_at[o], t.dim_at[o + 1]):
                width, run, is_run = 1, 1, True
                for j in range(t.term_at[d], t.term_at[d + 1]):
                    a, factor = t.terms[j, 0], t.terms[j, 1]
                    width += factor * (tile[k, a] - 1)
                    extent = share[k, a]
                    if is_run:  # a run without gaps, repeated by a factor that is longer
                        if factor <= run:
                            run += factor * (extent - 1)
                        else:
                            run *= extent
                            is_run = extent == 1
                bytes_each *= min(width + t.dims[d, 0], t.dims[d, 1])
                bytes_mine *= min(run, t.dims[d, 1])
            for count in range(3):
                s.amounts[m, count] = bytes_each
            for count in range(1, 3):
                burst = layer.home_burst if count == 1 else layer.cache_burst
                if not is_one or not t.moves[m, 10] or burst == 1:
                    continue
                # As `machine.bursts.burst_bytes`, of what lies in the tensor.
                first_dim, num = t.dim_at[o], t.dim_at[o + 1] - t.dim_at[o]
                stride, found = item, 0.0
                for back in range(num):
                    i = num - 1 - back
                    d = first_dim + i
                    width, known, phase = 1, 0, t.dims[d, 3]
                    for j in range(t.term_at[d], t.term_at[d + 1]):
                        a, factor = t.terms[j, 0], t.terms[j, 1]
                        width += factor * (tile[k, a] - 1)
                        if t.terms[j, 2]:
                            phase -= factor * (tile[k, a] - 1)
                        if tile[k, a] < t.extents[a]:
                            x, y = known, factor * tile[k, a]
                            while y:
                                x, y = y, x % y
                            known = x
                    width = min(width + t.dims[d, 0], t.dims[d, 1], t.dims[d, 2])
                    x, y = known, abs(phase)
                    while y:
                        x, y = y, x % y
                    s.runs[0, i], s.runs[1, i], s.runs[2, i] = width, stride, x
                    stride *= t.dims[d, 2]
                for around in range(num + 1):  # the box, then boxes around it with whole rows
                    if around:
                        i = num - around
                        if s.runs[0, i] >= t.dims[first_dim + i, 2]:
                            continue
                        s.runs[0, i] = t.dims[first_dim + i, 2]
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
                    span = item
                    taken_bytes = -(-(item + burst - known) // burst) * burst
                    for back in range(num):
                        i = num - 1 - back
                        span += (s.runs[0, i] - 1) * s.runs[1, i]
                        whole_span = -(-(span + burst - s.runs[3, i]) // burst) * burst
                        taken_bytes = min(taken_bytes * s.runs[0, i], whole_span)
                    if not around or taken_bytes < found:
                        found = float(taken_bytes)
                s.amounts[m, count] = max(bytes_each, found)
            copied, outer, rounds, own_ways = 1.0, 1.0, 1.0, 1.0
            for a in range(num_axes):
                if t.own[o, a]:
                    own_ways *= ways[k, a]
                else:
                    copied *= apart[k, a]
                    outer *= apart[k, a] // ways[k, a]
                    rounds *= again[k, a]
            reads, served = float(used[k]), copied
            reach = t.moves[m, 7]
            if not is_outward and reach > 1:
                # Parts among neighbours: those into which the innermost split axes cut it.
                block = 1
                for back in range(num_axes):
                    a = num_axes - 1 - back
                    if t.own[o, a]:
                        block *= ways[k, a]
                    elif high[b, WAYS, k, a] > 1:
                        break
                each = max(own_ways, inside[k] / reach * min(block, reach))
                reads = float(ceil(outside[k] * each * (1 - layer.slack)))
                served = outer * each / own_ways
            total = float(t.whole[o] * item)
            teams = t.moves[m, 9]
            one = max(bytes_each / t.rates[m, 0], float(t.moves[m, 6]))
            own, alone, own_alone = bytes_mine / t.rates[m, 0], one, bytes_mine / t.rates[m, 0]
            for j in range(t.port_at[m], t.port_at[m + 1]):
                rate, instances = t.ports[j, 0], t.ports[j, 1]
                counted = s.amounts[m, int(t.ports[j, 2])]
                is_source = j == t.port_at[m]
                is_first, is_last = is_source, j == t.port_at[m + 1] - 1
                if is_source and not t.moves[m, 8]:
                    share_of = reads * teams / (rate * instances)
                    one = max(one, counted * share_of)
                    own = max(own, bytes_mine * share_of)
                else:
                    is_trunk = t.ports[j, 4] > EVERYBODY
                    many = float(used[k])
                    if is_source or is_trunk:
                        many = min(reads, many)
                    waiting = max(1.0, float(ceil(many * teams / instances)))
                    if t.ports[j, 3] >= 0 and not is_trunk:  # of one, an even share is the least
                        waiting = float(t.crowds[int(t.ports[j, 3]) + int(many * teams)])
                    one = max(one, waiting * ceil(counted / rate))
                    own = max(own, waiting * (bytes_mine / rate))
                alone = max(alone, float(ceil(counted / rate)))
                own_alone = max(own_alone, bytes_mine / rate)
                crowd = total * teams / (rate * instances)
                if not is_first and t.ports[j, 4] == EVERYBODY:
                    own = max(own, copied * crowd)
                if not is_last:
                    own = max(own, (copied if is_outward else served) * crowd)
            if t.moves[m, 4]:
                alone, own_alone = one, own
            s.moved[m, 0], s.moved[m, 1], s.moved[m, 2], s.moved[m, 3] = one, alone, own, own_alone
            s.moved[m, 4], s.moved[m, 5], s.moved[m, 6] = rounds, bytes_each, reads
            s.moved[m, 7], s.moved[m, 8] = served, copied

        # In every order.
        for order in range(t.orders.shape[0]):
            serial, serial_single, waiting_for, begun = 0.0, 0.0, 0.0, 0.0
            charge, leaving, slowest, tail, lag = 0.0, 0.0, 0.0, 0.0, 0.0
            for memory in range(len(s.turns)):
                s.turns[memory] = 0.0
            m = 0
            for k in range(num_stages):
                fill, waited, shares, skew, waits, first = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
                latency, latencies, before, drained = 0.0, 0.0, 0.0, 0.0
                stores = float(entries[k])
                for a in range(num_axes):
                    if not t.is_summed[a]:
                        stores *= trips[k, a]
                while m < num_moves and t.moves[m, 0] == k:
                    o, wait = t.moves[m, 1], float(t.moves[m, 5])
                    one, alone, own = s.moved[m, 0], s.moved[m, 1], s.moved[m, 2]
                    loads, rounds, running, repeated = 1.0, 1.0, 1.0, 1.0
                    if t.moves[m, 3]:
                        loads, rounds = stores, s.moved[m, 4]
                        drained = max(loads * one, rounds * own)
                        tail, lag = tail + wait + one, lag + wait
                        serial_single += (stores - 1) * (wait + alone)
                        if layer.is_alone and k == last and stores > entries[k]:
                            serial += (stores - 1) * (wait + alone)
                    else:
                        for j in range(num_axes):
                            a = t.orders[order, j]
                            running *= trips[k, a]
                            if not t.own[o, a]:
                                repeated *= trips[k, a]
                            elif trips[k, a] > 1:
                                loads, rounds = running, repeated
                        late = max(0.0, loads - before)  # as `price._filled`
                        before = max(before, loads)
                        waited += late * alone + (loads - late) * one
                        skew += one - alone
                        first += one
                        latency, latencies = max(latency, wait), latencies + wait
                        loads *= entries[k]
                        rounds *= s.moved[m, 4]
                        waits = max(waits, loads * wait)
                        fill += max(loads * one, rounds * own)
                        shares += rounds * s.moved[m, 3]
                        leaving += used[k] * loads
                    reads, served = s.moved[m, 6], s.moved[m, 7]
                    copied, total = s.moved[m, 8], float(t.whole[o] * t.moves[m, 2])
                    teams = t.moves[m, 9]
                    for j in range(t.turn_at[m], t.turn_at[m + 1]):
                        crowd = teams / (t.turns[j, 0] * t.turns[j, 1])
                        each = loads * s.amounts[m, int(t.turns[j, 4])]
                        if t.turns[j, 3] > 0:
                            bytes_of = max(each * reads, rounds * total * served)
                        else:
                            bytes_of = max(each * used[k], rounds * total * copied)
                        s.turns[int(t.turns[j, 2])] += bytes_of * crowd
                    if layer.is_charged:
                        one_charge, all_charge = 0.0, 0.0
                        for count in range(3):
                            at_source, elsewhere = t.rates[m, 1 + count], t.rates[m, 4 + count]
                            each = loads * s.amounts[m, count]
                            one_charge += each * (reads * at_source + used[k] * elsewhere)
                            each = rounds * total
                            all_charge += each * (served * at_source + copied * elsewhere)
                        charge += teams * max(one_charge, all_charge)
                    m += 1
                leaving += used[k] * stores
                slowest = max(slowest, max(fill, drained) + latency + step)
                serial_single += max(entries[k] * waited, shares) + waits + skew
                # Where nothing has to be looped, all may have one copy after all: what comes
                # is waited for then, with one latency.
                first += latencies if doubled[k] else latency
                begun += first
                waiting_for += first
                if doubled[k]:
                    waiting_for += fill + waits + (entries[k] - 1) * first
            number = leaves + leaving
            for single in range(2):
                if single == 0 and not fits:
                    continue
                done = compute + (serial_single if single else serial)
                longest = max(slowest, done, layer.at_home)
                if not single:
                    longest = max(longest, done + begun, (waiting_for + done) / 2)
                longest += tail
                for memory in range(len(s.turns)):
                    longest = max(longest, s.turns[memory] + lag)
                cost = layer.per_cycle * floor(longest * (1 - layer.slack))
                cost += charge * (1 - layer.slack)
                cost *= max(1.0, number / layer.most_leaves)
                cost += number * 1e-3 * layer.per_cycle
                out[b, single] = min(out[b, single], cost * (1 - layer.slack))

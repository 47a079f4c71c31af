"""An order that spills the fewest bytes, then has the least peak, then the fewest cycles.

Three searches, the first that applies wins; none is ever worse than breadth or depth first search:

1. every output is read once: `tree_order`, exact at any size while nothing has to spill;
2. sets of finished instances, best rank first, within a budget of states: exact when it suffices,
   otherwise a bound that says how far the result can be from the optimum; first for the least peak,
   and, when that does not fit, for the fewest spilled bytes;
3. the same sets instance by instance, the most promising only (a beam), not proven.

Which tensors leave the local buffer is chosen together with the order: when `proven`, no spill rule
spills fewer bytes in any order.  A given rule may spill more in this order; take `spilled`.

Source: GraphTurbo section 3.3 announces an integer program and stops at the two searches.  A solver
is not used: with constraint programming every "live" is an interval whose end is a maximum over
readers under one cumulative constraint, at which sets of finished instances are far smaller (a cut
of the graph), and OR-tools would be an optional package of 172 MB for an answer that must not
depend on what is installed.  SciPy's integer solver, at hand, needs n^2 binaries for n instances.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from heapq import heappop, heappush
from itertools import count, islice
from typing import TypeAlias

from worker.compiler.strategies.graphturbo.liveness import LiveTensor, live_bytes_by_task
from worker.compiler.strategies.graphturbo.ordering import (
    NO_COSTS,
    OrderCosts,
    bfs_order,
    consumers_of,
    dfs_order,
    live_tensors,
    order_cycles,
)
from worker.compiler.strategies.graphturbo.spill import SpillRule, choose_spills, place_tensors
from worker.compiler.strategies.graphturbo.tree_order import tree_order
from worker.compiler.strategies.graphturbo.values import BufferScope, InstanceGraph

MAX_STATES = 20_000
"""States one search looks at: some tenths of a second."""
_MAX_SEARCHED = 256
"""Instances above which 2 and 3 are not tried: a beam would be narrower than is any use."""
_SPILL_CHOICES = 4
"""Ways to make room that a beam tries per overflow."""


class OrderGoal(StrEnum):
    """What comes second, after the fewest spilled bytes."""

    LOW_PEAK = "low-peak"
    """Least peak, then fewest cycles: what the paper asks of an order."""
    FEW_CYCLES = "few-cycles"
    """Fewest cycles, whatever part of the buffer they take: groups entered once keep weights."""


@dataclass(frozen=True, slots=True)
class ExactOrder:
    """The best order found and how far from the optimum it can be."""

    order: tuple[int, ...]
    spilled: tuple[int, ...]
    """Instances, ascending, whose output leaves the local buffer for all of its life."""
    spilled_bytes: int
    peak_bytes: int
    """Most bytes live at once, spilled ones included."""
    latency_cycles: int
    spilled_bound_bytes: int
    """No order, with any choice of tensors to spill, spills fewer."""
    lower_bound_bytes: int
    """No order that spills as little has a lower peak."""
    gap: float
    """(peak - lower bound) / lower bound."""
    states: int
    """States looked at."""
    proven: bool
    """No order has fewer spilled bytes; nor as few and a lower peak, nor those and fewer cycles;
    for FEW_CYCLES, nor as few spilled bytes and fewer cycles."""


@dataclass(frozen=True, slots=True)
class _Found:
    order: tuple[int, ...]
    spilled: tuple[int, ...]
    spilled_bytes: int
    peak_bytes: int
    latency_cycles: int

    @property
    def rank(self) -> tuple[int, int, int]:
        return (self.spilled_bytes, self.peak_bytes, self.latency_cycles)

    @property
    def cycles_rank(self) -> tuple[int, int, int]:
        return (self.spilled_bytes, self.latency_cycles, self.peak_bytes)


def exact_order(
    graph: InstanceGraph,
    capacity_bytes: int,
    costs: OrderCosts = NO_COSTS,
    max_states: int = MAX_STATES,
    goal: OrderGoal = OrderGoal.LOW_PEAK,
) -> ExactOrder:
    """Minimise spilled bytes, then peak bytes, then cycles over orders of `graph`.

    `capacity_bytes`: the local buffer.  `goal` may put cycles second.  Equal orders: depth first
    (it nests), breadth first, tree, then what was searched.

    Raises:
        InternalError: instances are not listed in topological order.
    Cost: at most 7 * `max_states` states (least peak, then least spilled, each by best rank and by
        beam, which may take twice as many, then cycles).
    """
    seeds = [dfs_order(graph), bfs_order(graph)]
    roomy = _Search(graph, sum(graph.output_bytes), costs)
    tree = tree_order(graph)
    if tree is not None:
        seeds.append(tree)
        roomy.least_peak = max(live_bytes_by_task(live_tensors(graph, tree)), default=0)
    lowest, (_, least_peak) = roomy.least_memory(seeds, max_states)
    search = _Search(graph, capacity_bytes, costs)
    search.least_peak = least_peak
    seeds.append(lowest.order)
    if lowest.peak_bytes <= capacity_bytes:
        best, bound = search.judged_best(seeds), (0, least_peak)
    else:
        best, bound = search.least_memory(seeds, max_states)
    proven = best.rank[:2] == bound
    allowed_peak = best.peak_bytes
    if goal is OrderGoal.FEW_CYCLES:
        proven = best.spilled_bytes == bound[0]
        allowed_peak = sum(graph.output_bytes)
        best = min((best, *map(search.judged, seeds)), key=lambda found: found.cycles_rank)
    if costs.entry_cycles:
        best, cycles_proven = search.least_cycles(best, allowed_peak, max_states)
        proven = proven and cycles_proven
    lower_bound = bound[1] if bound[0] == best.spilled_bytes else least_peak
    return ExactOrder(
        best.order, best.spilled, *best.rank, bound[0], lower_bound,
        (best.peak_bytes - lower_bound) / lower_bound if lower_bound else 0.0,
        roomy.states + search.states, proven,
    )  # fmt: skip


_Rank: TypeAlias = tuple[int, int]
_Steps: TypeAlias = "tuple[int, int, _Steps] | None"
_Key: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _State:
    """A set of finished instances and the best way there."""

    done: int
    """Instances finished; this and the next three are sets as bits."""
    live: int
    """Finished ones whose output has readers left."""
    gone: int
    """Live outputs that are spilled."""
    ready: int
    live_bytes: int
    resident_bytes: int
    """Live bytes in the local buffer."""
    rank: _Rank
    """Spilled bytes, then peak bytes or cycles: what is minimised."""
    group: int
    """Group of the last instance; -1 when the search does not ask."""
    steps: _Steps
    """Last instance, what was spilled for it, and the steps before."""

    @property
    def key(self) -> _Key:
        """What the rest of the order depends on; bytes follow from it."""
        return (self.done, self.gone, self.group)


class _Search:
    """One graph, with its sets as bits, and the count of states over all sweeps."""

    def __init__(self, graph: InstanceGraph, capacity: int, costs: OrderCosts) -> None:
        self.graph = graph
        self.capacity = capacity
        self.costs = costs
        self.states = 0
        self.last_state = 0
        """States at which the sweep that runs now stops, even in the middle of successors: there
        may be exponentially many ways to make room."""
        self.size = graph.output_bytes
        self.readers = [_bits(some) for some in consumers_of(graph)]
        self.need, self.after = _needs(graph)
        # Sources free nothing, so to run one right before its first reader holds less all the way
        # and as much at that reader.  Searching for memory, a reader brings its sources along.
        self.sources = _bits(
            i for i, some in enumerate(graph.producers) if not some and self.readers[i]
        )
        self.early_need = [need & ~self.sources for need in self.need]
        # no order has a lower peak (until a search knows better): inputs and output of an instance
        self.least_peak = max(
            (
                size + sum(graph.output_bytes[j] for j in some)
                for size, some in zip(graph.output_bytes, graph.producers, strict=True)
            ),
            default=0,
        )

    def judged(self, order: tuple[int, ...]) -> _Found:
        """An order with its fewest spilled bytes (exact where `place_tensors` is)."""
        lives = live_tensors(self.graph, order)
        gone = _least_spills(lives, self.capacity)
        spilled_bytes = sum(self.size[k] for k in gone)
        cycles = order_cycles(self.graph, order, self.costs)
        return _Found(
            order, gone, spilled_bytes, max(live_bytes_by_task(lives), default=0),
            cycles + spilled_bytes * self.costs.cycles_per_spilled_byte,
        )  # fmt: skip

    def judged_best(self, orders: Sequence[tuple[int, ...]]) -> _Found:
        """The first of the best of some orders."""
        return min((self.judged(order) for order in orders), key=lambda found: found.rank)

    def least_memory(
        self, seeds: Sequence[tuple[int, ...]], max_states: int
    ) -> tuple[_Found, _Rank]:
        """Fewest spilled bytes, then least peak, and a rank that no order is below."""
        best = self.judged_best(seeds)
        limit = best.rank[:2]
        # what is live at the peak and does not fit has to be elsewhere
        bound = (max(0, self.least_peak - self.capacity), self.least_peak)
        if limit == bound or len(self.size) > _MAX_SEARCHED:
            return best, bound
        start = replace(self._start(self.early_need, self.sources), rank=(0, self.least_peak))
        found, searched = self._best_first(start, limit, None, max_states)
        if found is None and searched < limit:
            found = self._beam(start, limit, max_states)
        return (best if found is None else found), max(bound, searched)

    def least_cycles(self, best: _Found, allowed_peak: int, max_states: int) -> tuple[_Found, bool]:
        """Fewest cycles at the spilled bytes of `best` below a peak; whether that is proven."""
        limit = (
            best.spilled_bytes,
            order_cycles(self.graph, best.order, self.costs) - sum(self.graph.cycles),
        )
        groups = sorted({instance.group for instance in self.graph.instances})
        if limit[1] == sum(self.costs.entry_cycles[group] for group in groups):
            return best, True
        if len(self.size) > _MAX_SEARCHED:
            return best, False
        start = self._start(self.need, 0)
        found, bound = self._best_first(start, limit, allowed_peak, max_states)
        return (best, bound == limit) if found is None else (found, True)

    def _start(self, needs: Sequence[int], waiting: int) -> _State:
        ready = _bits(i for i, need in enumerate(needs) if need == 0)
        return _State(0, 0, 0, ready & ~waiting, 0, 0, (0, 0), -1, None)

    def _best_first(
        self, start: _State, limit: _Rank, peak: int | None, budget: int
    ) -> tuple[_Found | None, _Rank]:
        """The order of least rank if that is below `limit`, and a rank that no order is below.

        `peak` None ranks by peak bytes; otherwise no order above that peak, ranked by cycles.
        States are looked at by rank, which no step lowers, so the first finished one is best, and
        when the budget ends every order ranks at least like the next state.
        """
        self.last_state = self.states + budget
        ticket = count(1)
        queue: list[tuple[_Rank, int, int, _State]] = [(start.rank, 0, 0, start)]
        reached: dict[_Key, _Rank] = {}
        while queue:
            rank, _, _, state = heappop(queue)
            if state.rank > reached.get(state.key, state.rank):
                continue
            if state.done.bit_count() == len(self.size):
                return self._traced(state), rank
            for new in self._successors(state, limit, peak, None):
                if self.states > self.last_state:
                    break
                if new.key not in reached or new.rank < reached[new.key]:
                    reached[new.key] = new.rank
                    # of equal ranks the one with most instances first: it may be finished soon
                    heappush(queue, (new.rank, -new.done.bit_count(), next(ticket), new))
            if self.states > self.last_state:
                return None, rank
        return None, limit

    def _beam(self, start: _State, limit: _Rank, budget: int) -> _Found | None:
        """A good order of rank below `limit`, or None where the beam meets none.

        Instance by instance, an equal share of `budget` states is looked at, from the most
        promising ones; all successors of one at least, while that stays within twice the budget.
        """
        width = max(1, budget // len(self.size))
        self.last_state = self.states + 2 * budget
        layer = [start]
        while any(state.ready for state in layer):
            best: dict[_Key, _State] = {}
            last_state = self.states + width
            for state in layer:
                if self.states >= last_state:
                    break
                for new in self._successors(state, limit, None, _SPILL_CHOICES):
                    if new.key not in best or new.rank < best[new.key].rank:
                        best[new.key] = new
            layer = sorted(best.values(), key=lambda s: (s.rank, s.live_bytes))
        return self._traced(layer[0]) if layer else None

    def _successors(
        self, state: _State, limit: _Rank, peak: int | None, num_rooms: int | None
    ) -> Iterator[_State]:
        """States one step later of rank below `limit`: an instance and the sources it waits for."""
        every: list[_State] = []
        for i in _members(state.ready):
            states = [state]
            waits_for = self.need[i] & ~state.done if peak is None else 0
            for j in (*_members(waits_for), i):
                states = [
                    new
                    for old in states
                    for new in self._ran(old, j, peak, num_rooms)
                    if new.rank < limit
                ]
            for new in states:
                if self._is_free(state, new, limit, peak):
                    yield new
                    return
            every += states
        yield from every

    def _is_free(self, state: _State, new: _State, limit: _Rank, peak: int | None) -> bool:
        """Whether nothing is lost by running this instance now.

        Without spills and cycles to think of, an instance that raises neither the peak nor the live
        bytes can be moved to the front of any order: no task in between holds more.
        """
        return (
            peak is None
            and limit[0] == 0
            and new.rank == state.rank
            and new.live_bytes <= state.live_bytes
        )

    def _ran(
        self, state: _State, i: int, peak: int | None, num_rooms: int | None
    ) -> Iterator[_State]:
        """The states after instance `i`, one per way to make room for its output."""
        live = state.live_bytes + self.size[i]
        resident = state.resident_bytes + self.size[i]
        if peak is not None and live > peak:
            return
        done = state.done | 1 << i
        ready = state.ready & ~(1 << i)
        need = self.early_need if peak is None else self.need
        for j in self.after[i]:
            if not need[j] & ~done:
                ready |= 1 << j
        freed = [j for j in (*self.graph.producers[i], i) if not self.readers[j] & ~done]
        held = (state.live | 1 << i) & ~_bits(freed)
        group = -1
        spilled, second = state.rank
        if peak is None:
            second = max(second, live)
        else:
            group = self.graph.instances[i].group
            second += self.costs.entry_cycles[group] if group != state.group else 0
        live -= sum(self.size[j] for j in freed)
        for room in self._rooms(state, i, resident - self.capacity, num_rooms):
            if self.states > self.last_state:
                return
            gone = state.gone | room
            out = sum(self.size[j] for j in _members(room))
            kept = resident - out - sum(self.size[j] for j in freed if not gone >> j & 1)
            self.states += 1
            yield _State(
                done, held, gone & held, ready, live, kept,
                (spilled + out, second), group, (i, room, state.steps),
            )  # fmt: skip

    def _rooms(self, state: _State, i: int, excess: int, num_rooms: int | None) -> Iterator[int]:
        """Smallest sets of resident outputs, that of `i` included, of at least `excess` bytes.

        Sets from which no member can be left out are enough: a spill plan that makes room at every
        task contains one of them at this task.
        """
        if excess <= 0:
            return iter((0,))
        resident = [j for j in _members((state.live | 1 << i) & ~state.gone) if self.size[j]]
        resident.sort(key=lambda j: (-self.size[j], j))
        rooms = _covers([(self.size[j], 1 << j) for j in resident], excess)
        return islice(rooms, num_rooms)

    def _traced(self, state: _State) -> _Found:
        order: list[int] = []
        spilled = 0
        steps = state.steps
        while steps is not None:
            i, room, steps = steps
            order.append(i)
            spilled |= room
        order.reverse()
        cycles = order_cycles(self.graph, order, self.costs)
        gone = tuple(_members(spilled))
        spilled_bytes = sum(self.size[j] for j in gone)
        lives = live_tensors(self.graph, order)
        return _Found(
            tuple(order), gone, spilled_bytes, max(live_bytes_by_task(lives), default=0),
            cycles + spilled_bytes * self.costs.cycles_per_spilled_byte,
        )  # fmt: skip


def _needs(graph: InstanceGraph) -> tuple[list[int], list[tuple[int, ...]]]:
    """What must finish before each instance, and who looks up when it has.

    Twins, which read and feed the same instances with the same bytes and cycles, are run in the
    order listed: any order is one of those with twins renamed.
    """
    need = [_bits(some) for some in graph.producers]
    after = [list(some) for some in consumers_of(graph)]
    newest: dict[tuple[object, ...], int] = {}
    for i, readers in enumerate(tuple(tuple(some) for some in after)):
        kind = (
            graph.instances[i].group, graph.producers[i], readers,
            graph.output_bytes[i], graph.cycles[i],
        )  # fmt: skip
        if kind in newest:
            need[i] |= 1 << newest[kind]
            after[newest[kind]].append(i)
        newest[kind] = i
    return need, [tuple(some) for some in after]


def _least_spills(lives: Sequence[LiveTensor], capacity: int) -> tuple[int, ...]:
    by_rule = choose_spills(lives, capacity, SpillRule.LONGEST_LIVENESS)
    if not by_rule:
        return ()
    if len(lives) > _MAX_SEARCHED:
        largest = choose_spills(lives, capacity, SpillRule.LARGEST)
        return min(by_rule, largest, key=lambda some: sum(lives[k].size_bytes for k in some))
    placed = place_tensors(
        lives, capacity, 0, SpillRule.BY_COST,
        lambda tensor, scope: 0 if scope is BufferScope.LB else tensor.size_bytes,
    )  # fmt: skip
    return tuple(k for k, p in enumerate(placed) if p.scope is not BufferScope.LB)


def _covers(items: Sequence[tuple[int, int]], excess: int) -> Iterator[int]:
    """Unions of items (size, bits), largest first, that reach `excess` with their last member."""
    rest = [0] * (len(items) + 1)
    for k in reversed(range(len(items))):
        rest[k] = rest[k + 1] + items[k][0]
    stack = [(0, excess, 0)]
    while stack:
        k, missing, chosen = stack.pop()
        if missing <= 0:
            yield chosen
        elif rest[k] >= missing:
            stack.append((k + 1, missing, chosen))
            stack.append((k + 1, missing - items[k][0], chosen | items[k][1]))


def _bits(members: Iterator[int] | Sequence[int]) -> int:
    result = 0
    for i in members:
        result |= 1 << i
    return result


def _members(bits: int) -> Iterator[int]:
    """Positions of the bits that are set, ascending."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low

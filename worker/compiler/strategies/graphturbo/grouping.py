"""Which layers are cut into instances together: merging groups while local memory stays well used.

Source: GraphTurbo, Algorithm 2.  Every node starts as a group; straight, diamond and branch passes
follow one another until a whole round merges nothing.  Deviations from the printed text:
- the factor of a merged group is computed anew (the listing refreshes only BestSplit);
- groups without a factor (SplitInfo is empty) never merge;
- the order of candidates, which the paper leaves open, is the topological order of the exit;
- the entry of a diamond may be what lies outside the graph, so that a first block whose branches
  both read the graph's input merges as every other block does;
- diamonds of more than MAX_DIAMOND groups are left alone;
- rule (i) may be mirrored where the follower up-samples (`_may_join`).

Convexity.  Every candidate has one exit: all consumers of its other members are members.  So a path
that leaves it leaves through the exit, and if it came back it would lead on to the exit: a cycle,
which a dataflow graph has not.  For the same reason the merged group may stand where its exit
stood in the topological order.

Termination.  A merge replaces two or more groups by one and nothing splits a group, and every round
but the last merges: at most `nodes` rounds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import TypeAlias

from worker.compiler.strategies.graphturbo.values import LayerGroup

FactorOf: TypeAlias = "Callable[[tuple[int, ...]], int | None]"


MAX_DIAMOND = 128
"""Groups that a diamond may have; without a bound, long skips would make a round quadratic."""


class Pattern(StrEnum):
    """The shapes that are merged (Fig. 4)."""

    STRAIGHT = "straight"
    """A producer and a follower that have only each other."""
    DIAMOND = "diamond"
    """Everything between an entry and an exit, with the exit and without the entry."""
    BRANCH = "branch"
    """An exit and one of its several producers, which has no other consumer."""


@dataclass(frozen=True, slots=True)
class Merge:
    """One merge, with what its rule compared."""

    pattern: Pattern
    members: tuple[tuple[int, ...], ...]
    """The groups merged, the exit last."""
    factors: tuple[int, ...]
    """Of these groups, in the same order."""
    factor: int
    """Of the merged group."""


@dataclass(frozen=True, slots=True)
class GroupingTrace:
    """The result with how it came about."""

    groups: tuple[LayerGroup, ...]
    """In topological order."""
    merges: tuple[Merge, ...]
    num_visits: int
    """Groups and edges looked at: the work done, factor_of excepted."""


def group(
    nodes: int,
    edges: Sequence[tuple[int, int]],
    factor_of: FactorOf,
    *,
    sizes: Sequence[int] | None = None,
    allow_upsampling: bool = True,
) -> tuple[LayerGroup, ...]:
    """Algorithm 2 on nodes 0 .. nodes-1 with edges (producer, consumer).

    `factor_of` gives the factor of a set of nodes (ascending), None where none fits; it is asked
    once per set.  `sizes`, the elements of every node's output, tells where a follower up-samples.
    Cost: per round O(nodes + edges) plus the sizes of the diamonds (MAX_DIAMOND each), per merge
    O(members), and the calls of `factor_of`.

    Raises:
        ValueError: the edges have a cycle.
    """
    return group_traced(
        nodes, edges, factor_of, sizes=sizes, allow_upsampling=allow_upsampling
    ).groups


def group_traced(
    nodes: int,
    edges: Sequence[tuple[int, int]],
    factor_of: FactorOf,
    *,
    sizes: Sequence[int] | None = None,
    allow_upsampling: bool = True,
) -> GroupingTrace:
    """Like `group`, with its merges and its work."""
    state = _State(factor_of, sizes if allow_upsampling else None)
    state.load(nodes, edges)
    before = -1
    while len(state.merges) != before:
        before = len(state.merges)
        for merge_all in (_straight, _diamond, _branch):
            merge_all(state)
    groups = tuple(LayerGroup(state.members[g], state.factor[g]) for g in state.alive())
    return GroupingTrace(groups, tuple(state.merges), state.num_visits)


@dataclass(slots=True)
class _State:
    """The quotient graph.  A group goes by the id of its exit node."""

    factor_of: FactorOf
    sizes: Sequence[int] | None
    order: list[int] = field(default_factory=list)
    """Nodes in topological order; groups stand where their exit does."""
    members: dict[int, tuple[int, ...]] = field(default_factory=dict)
    bits: dict[int, int] = field(default_factory=dict)
    """Members as a set of bits: the key under which factors are remembered."""
    factor: dict[int, int | None] = field(default_factory=dict)
    preds: dict[int, set[int]] = field(default_factory=dict)
    succs: dict[int, set[int]] = field(default_factory=dict)
    known: dict[int, int | None] = field(default_factory=dict)
    merges: list[Merge] = field(default_factory=list)
    num_visits: int = 0

    def load(self, nodes: int, edges: Sequence[tuple[int, int]]) -> None:
        """Start with one group per node."""
        self.preds = {k: set() for k in range(nodes)}
        self.succs = {k: set() for k in range(nodes)}
        for a, b in edges:
            self.succs[a].add(b)
            self.preds[b].add(a)
        self.order = _topological(self.preds, self.succs)
        for k in range(nodes):
            self.members[k] = (k,)
            self.bits[k] = 1 << k
            self.factor[k] = self.factor_of((k,))

    def alive(self) -> list[int]:
        """Groups in topological order."""
        self.order = [g for g in self.order if g in self.members]
        self.num_visits += len(self.order)
        return self.order

    def factors(self, groups: Sequence[int]) -> tuple[int, ...] | None:
        """Their factors; None when one of them has none."""
        found = [factor for g in groups if (factor := self.factor[g]) is not None]
        return tuple(found) if len(found) == len(groups) else None

    def union(self, groups: Sequence[int]) -> int | None:
        """Factor of the groups together."""
        bits = 0
        for g in groups:
            bits |= self.bits[g]
        if bits not in self.known:
            members = sorted(chain.from_iterable(self.members[g] for g in groups))
            self.known[bits] = self.factor_of(tuple(members))
        return self.known[bits]

    def single_exit(self, groups: Sequence[int]) -> bool:
        """True when the last of `groups` is the only one with consumers outside (so: convex)."""
        inside = set(groups)
        self.num_visits += sum(len(self.succs[g]) for g in groups)
        return all(self.succs[g] <= inside for g in groups[:-1])

    def merge(self, pattern: Pattern, groups: Sequence[int]) -> bool:
        """Merge `groups` (exit last) if they have one exit and the pattern's rule allows it."""
        factors = self.factors(groups)
        if factors is None or not self.single_exit(groups):
            return False
        if pattern is not Pattern.DIAMOND and not self._may_join(*groups, *factors):
            return False
        merged = self.union(groups)
        limit = max(factors)
        if merged is None or merged > limit:
            return False
        old = tuple(self.members[g] for g in groups)
        self.merges.append(Merge(pattern, old, factors, merged))
        self._contract(groups, merged)
        return True

    def _may_join(self, producer: int, follower: int, before: int, after: int) -> bool:
        """First half of rule (i): a large factor must not pass to a follower that down-samples.

        The second half, that the merged factor may not exceed the follower's, then bounds it by
        the larger of the two.  Section 3.6 leaves the rule for up-sampling open; here it is the
        mirror image: a follower whose output is larger than the producer's may take over the
        producer's larger factor, since its slices do not get too small.
        """
        if after >= before:
            return True
        return self.sizes is not None and self.sizes[follower] > self.sizes[producer]

    def _contract(self, groups: Sequence[int], factor: int) -> None:
        """Replace `groups` by one that has the id of the last."""
        kept, gone = groups[-1], groups[:-1]
        self.members[kept] = tuple(sorted(chain.from_iterable(self.members[g] for g in groups)))
        for g in gone:
            self.bits[kept] |= self.bits[g]
        producers = set().union(*(self.preds[g] for g in groups)) - set(groups)
        for p in sorted(producers):
            self.succs[p].difference_update(gone)
            self.succs[p].add(kept)
        self.preds[kept] = producers
        self.factor[kept] = factor
        self.num_visits += len(producers) + len(groups)
        for g in gone:
            del self.members[g], self.bits[g], self.factor[g], self.preds[g], self.succs[g]


def _topological(preds: dict[int, set[int]], succs: dict[int, set[int]]) -> list[int]:
    """Smallest id first among the ready ones."""
    waiting = {k: len(found) for k, found in preds.items()}
    ready = [k for k, count in waiting.items() if not count]
    order: list[int] = []
    heapq.heapify(ready)
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for other in sorted(succs[node]):
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, other)
    if len(order) != len(preds):
        raise ValueError("the edges have a cycle")
    return order


def _straight(state: _State) -> None:
    for follower in state.alive():
        if len(state.preds[follower]) == 1:
            (producer,) = state.preds[follower]
            if len(state.succs[producer]) == 1:
                state.merge(Pattern.STRAIGHT, (producer, follower))


def _branch(state: _State) -> None:
    rank = {g: k for k, g in enumerate(state.alive())}
    for follower in state.order:
        if len(state.preds[follower]) < 2:
            continue
        state.num_visits += len(state.preds[follower])
        for producer in sorted(state.preds[follower], key=rank.__getitem__):
            if len(state.succs[producer]) == 1 and state.merge(
                Pattern.BRANCH, (producer, follower)
            ):
                break


_OUTSIDE = -1


@dataclass(slots=True)
class _Dominators:
    """The dominator tree, grown in topological order, with jump pointers.

    The immediate dominator of a group is the last group that every path from outside to it passes:
    the lowest common ancestor of its producers.  A merge leaves the rest of the tree as it is:
    the entry of a diamond stays above its exit, and only its members were below its members.
    """

    up: dict[int, int] = field(default_factory=lambda: {_OUTSIDE: _OUTSIDE})
    jump: dict[int, int] = field(default_factory=lambda: {_OUTSIDE: _OUTSIDE})
    depth: dict[int, int] = field(default_factory=lambda: {_OUTSIDE: 0})
    num_steps: int = 0

    def add(self, group_id: int, producers: Sequence[int]) -> int:
        """Enter a group whose producers are entered; returns its immediate dominator."""
        above = producers[0] if producers else _OUTSIDE
        for other in producers[1:]:
            above = self._common(above, other)
        self.up[group_id] = above
        self.depth[group_id] = self.depth[above] + 1
        far = self.jump[above]
        even = self.depth[above] - self.depth[far] == self.depth[far] - self.depth[self.jump[far]]
        self.jump[group_id] = self.jump[far] if even else above
        return above

    def _common(self, a: int, b: int) -> int:
        """Lowest common ancestor in O(log depth) steps."""
        if self.depth[a] < self.depth[b]:
            a, b = b, a
        while self.depth[a] > self.depth[b]:
            a = self.jump[a] if self.depth[self.jump[a]] >= self.depth[b] else self.up[a]
            self.num_steps += 1
        while a != b:
            together = self.jump[a] == self.jump[b]
            a, b = (self.up[a], self.up[b]) if together else (self.jump[a], self.jump[b])
            self.num_steps += 1
        return a


def _diamond(state: _State) -> None:
    tree = _Dominators()
    rank = {g: k for k, g in enumerate(state.alive())}
    for exit_ in state.order:
        state.num_visits += len(state.preds[exit_])
        entry = tree.add(exit_, sorted(state.preds[exit_], key=rank.__getitem__))
        if len(state.preds[exit_]) < 2 or state.factor[exit_] is None:
            continue
        inner = _between(state, entry, exit_, rank)
        if inner:
            state.merge(Pattern.DIAMOND, (*sorted(inner, key=rank.__getitem__), exit_))
    state.num_visits += tree.num_steps


def _between(state: _State, entry: int, exit_: int, rank: dict[int, int]) -> list[int]:
    """Groups on the paths from `entry` to `exit_`, without both; empty if they cannot merge.

    Stops at the first without a factor or with a consumer behind the exit, and at too many.
    """
    seen: dict[int, None] = {exit_: None, entry: None}
    stack = [exit_]
    while stack:
        for other in sorted(state.preds[stack.pop()]):
            if other not in seen:
                state.num_visits += len(state.preds[other]) + len(state.succs[other])
                last = max(rank[g] for g in state.succs[other])
                crowded = len(seen) > MAX_DIAMOND
                if crowded or state.factor[other] is None or last > rank[exit_]:
                    return []
                seen[other] = None
                stack.append(other)
    return [g for g in seen if g not in (entry, exit_)]

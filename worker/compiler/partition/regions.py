"""Region merge: adjacent operators of one target become maximal convex regions.

Two steps.  First, alternation levels: along every edge between different targets (and every edge at
a host node) the level grows by one, so nodes of one target, level and connected component form a
group and the groups' graph is acyclic by construction; this is linear and finds most of the result.
Second, groups of different levels are merged where no other path joins them, asked by a search in
both directions that the levels bound.

Why one pass over the edges is enough: a merge of A and B is refused because of another path A ~> B.
If that path runs through a node of another target, no later merge removes it.  Otherwise its first
edge A -> Y joins two groups of the same target that came earlier, and that pair was refused for
good, so a path through another target exists for (A, B) too.

Source: BYOC section 3.1.2 ("greedily merge consecutive supported operators").  Deviates: the paper
does not say how cycles are avoided; here the graph of all regions at once stays acyclic.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from worker.compiler.errors import InternalError
from worker.compiler.partition.quotient import contract, reverse, topological, units_of


def merge_regions(
    successors: Sequence[Sequence[int]],
    targets: Sequence[str | None],
    glued: Sequence[tuple[int, ...]],
) -> tuple[int, ...]:
    """Group number of every node; nodes without target (host) are groups of their own.

    `glued` are composites: groups of nodes of one target that must not be separated, except from
    nodes that several of them share (those are left to the merge).
    Groups are numbered by their first node.  The graph of groups is acyclic (hence every region is
    convex), and no two adjacent groups of one target can be merged without a cycle.

    Raises:
        InternalError: the composites themselves form a cycle, or mix targets.
    Cost: near-linear in nodes and edges in practice; the searches of the second step are bounded by
        levels, at worst quadratic.
    """
    unit_of, members = units_of(len(targets), glued)
    target = [targets[nodes[0]] for nodes in members]
    for unit, nodes in enumerate(members):
        if any(targets[n] != target[unit] for n in nodes) or (
            len(nodes) > 1 and target[unit] is None
        ):
            raise InternalError(
                "TW-INT-001", f"composite {nodes} lies in several targets", stage="partition"
            )
    after = contract(successors, unit_of, len(members))
    order = topological(after, lambda unit: (unit,))
    if len(order) != len(members):
        raise InternalError(
            "TW-INT-001", "composites overlap so that neither can run first", stage="partition"
        )
    group_of_unit, level = _connected(after, order, target)
    quotient = _Quotient(after, group_of_unit)
    kind: dict[int, str | None] = {}
    for unit, group in enumerate(group_of_unit):
        kind.setdefault(group, target[unit])
    for group in sorted(kind, key=lambda g: (level[g], g)):
        quotient.settle(group, kind)
    number: dict[int, int] = {}
    result: list[int] = []
    for node in range(len(targets)):
        root = quotient.find(group_of_unit[unit_of[node]])
        result.append(number.setdefault(root, len(number)))
    return tuple(result)


def _connected(
    after: Sequence[Sequence[int]], order: Sequence[int], target: Sequence[str | None]
) -> tuple[list[int], list[int]]:
    """Groups of one target, level and component: (group of every unit, level of every unit).

    A group is named by one of its units.
    """
    level = [0] * len(order)
    for unit in order:
        own, mine = level[unit], target[unit]
        for other in after[unit]:
            reached = own if mine is not None and mine == target[other] else own + 1
            if reached > level[other]:
                level[other] = reached
    parent = list(range(len(order)))
    for unit in order:
        mine = target[unit]
        if mine is None:
            continue
        for other in after[unit]:
            if target[other] == mine and level[other] == level[unit]:
                a, b = _root(parent, unit), _root(parent, other)
                parent[max(a, b)] = min(a, b)
    return [_root(parent, unit) for unit in range(len(order))], level


def _root(parent: list[int], node: int) -> int:
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


_TO_COME = 1 << 60


class _Quotient:
    """The graph of groups while groups merge.

    Groups are settled one by one in topological order.  Invariant: among settled groups an edge
    leads to a higher level; groups still to come are above all of them, so that a merge never has
    to renumber what lies ahead.
    """

    def __init__(self, after: Sequence[Sequence[int]], group_of: Sequence[int]) -> None:
        self._after = [set(s) for s in contract(after, group_of, len(group_of))]
        self._before = [set(s) for s in reverse([list(s) for s in self._after])]
        self._level = [_TO_COME] * len(group_of)
        self._parent = list(range(len(group_of)))

    def find(self, group: int) -> int:
        """The group that `group` is part of by now."""
        return _root(self._parent, group)

    def settle(self, group: int, kind: dict[int, str | None]) -> None:
        """Merge `group` with every predecessor of its target that allows it, nearest first."""
        sources = list(self._before[group])
        self._level[group] = 1 + max((self._level[s] for s in sources), default=0)
        mine = kind[group]
        if mine is None:
            return
        sources = [s for s in sources if kind[s] == mine]
        sources.sort(key=lambda s: (-self._level[s], s))
        for source in sources:
            a, b = self.find(source), self.find(group)
            if a != b and not self._is_joined_otherwise(a, b):
                self._merge(a, b)

    def _is_joined_otherwise(self, a: int, b: int) -> bool:
        """Whether a path of two or more edges leads from `a` to `b`."""
        level, low, high = self._level, self._level[a], self._level[b]
        ahead = [n for n in self._after[a] if n != b and level[n] < high]
        behind = [n for n in self._before[b] if n != a and level[n] > low]
        seen_ahead, seen_behind = set(ahead), set(behind)
        if not seen_ahead.isdisjoint(seen_behind):
            return True
        while ahead and behind:
            for other in self._after[ahead.pop()]:
                if level[other] < high and other not in seen_ahead:
                    if other in seen_behind:
                        return True
                    seen_ahead.add(other)
                    ahead.append(other)
            for other in self._before[behind.pop()]:
                if level[other] > low and other not in seen_behind:
                    if other in seen_ahead:
                        return True
                    seen_behind.add(other)
                    behind.append(other)
        return False

    def _merge(self, a: int, b: int) -> None:
        """Make `a` and its successor `b` one group at the level of `b`."""
        high = self._level[b]
        size_a = len(self._after[a]) + len(self._before[a])
        size_b = len(self._after[b]) + len(self._before[b])
        kept, gone = (a, b) if size_a >= size_b else (b, a)
        self._parent[gone] = kept
        for other in self._after[gone]:
            self._before[other].discard(gone)
            if other != kept:
                self._before[other].add(kept)
                self._after[kept].add(other)
        for other in self._before[gone]:
            self._after[other].discard(gone)
            if other != kept:
                self._after[other].add(kept)
                self._before[kept].add(other)
        self._after[gone], self._before[gone] = set(), set()
        self._level[kept] = high
        self._raise_successors(kept)

    def _raise_successors(self, start: int) -> None:
        # Old levels order the affected groups topologically: each one is visited once.
        level = self._level
        raised = [(level[start], start)]
        queued: dict[int, int] = {start: level[start]}
        while raised:
            _, group = heappop(raised)
            level[group] = queued[group]
            least = level[group] + 1
            for other in self._after[group]:
                if queued.get(other, level[other]) < least:
                    if other not in queued:
                        heappush(raised, (level[other], other))
                    queued[other] = least

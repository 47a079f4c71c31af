"""Which node of the base is which node of the head.

In this order, each step among what is left: by name, where the node and its surroundings are the
same; by what a node is together with all that is above or below it; by name, where the node is the
same, or its operator; by what it is and its neighbours; by what it is.  So names are believed
before anything else, unless they contradict everything else, as numbered names do after an
insertion; and a model of which every name has changed is matched as it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from service.compare.colours import Colours, Palette, Wiring, colours, wiring
from service.compare.model_graph import ModelGraph

_RADIUS = 2
"""How far surroundings are looked at one by one."""


class MatchedBy(StrEnum):
    """What told that two nodes are one."""

    PROVENANCE = "provenance"
    """The user's name."""
    SIGNATURE = "signature"
    """What it is, and what is above or below it."""
    NEIGHBOURHOOD = "neighbourhood"
    """What stands around it."""


@dataclass(frozen=True, slots=True)
class Matching:
    """Pairs of nodes by their places in the two graphs."""

    head_of_base: dict[int, int]
    how: dict[int, MatchedBy]
    """By the place in the base."""


Key = Callable[[int, int], Hashable]
"""(side, node) to what has to be equal; None: the node takes no part."""


class _Search:
    """What is matched so far."""

    def __init__(self, base: ModelGraph, head: ModelGraph) -> None:
        self.graphs = (base, head)
        self.depth = min(base.depth, head.depth)
        self.wires: tuple[Wiring, Wiring] = (wiring(base, self.depth), wiring(head, self.depth))
        self.partner: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.how: dict[int, MatchedBy] = {}
        palette = Palette()
        self.exact = self._coloured(palette, has_weights=True)
        self.alike = self._coloured(palette, has_weights=False)
        self.names = tuple(_usable_names(graph) for graph in self.graphs)

    def _coloured(self, palette: Palette, *, has_weights: bool) -> tuple[Colours, Colours]:
        base, head = (
            colours(graph, wires, palette, self.depth, has_weights=has_weights, radius=_RADIUS)
            for graph, wires in zip(self.graphs, self.wires, strict=True)
        )
        return base, head

    def pair(self, base: int, head: int, how: MatchedBy) -> None:
        self.partner[0][base], self.partner[1][head] = head, base
        self.how[base] = how

    def left(self, side: int) -> Iterator[int]:
        """Nodes without a partner, in order."""
        return (k for k in range(len(self.graphs[side].nodes)) if k not in self.partner[side])

    def classes(self, key: Key) -> list[tuple[list[int], list[int]]]:
        """Nodes without a partner by their key, where both sides have some."""
        found: dict[Hashable, tuple[list[int], list[int]]] = {}
        for side in (0, 1):
            for k in self.left(side):
                value = key(side, k)
                if value is not None:
                    found.setdefault(value, ([], []))[side].append(k)
        return [row for row in found.values() if row[0] and row[1]]

    def unique(self, key: Key, how: MatchedBy) -> None:
        """Pair what has its key alone on both sides."""
        for bases, heads in self.classes(key):
            if len(bases) == len(heads) == 1:
                self.pair(bases[0], heads[0], how)

    def named(self, key: Key) -> Key:
        """The key together with the name; nodes without a name of their own take no part."""

        def both(side: int, k: int) -> Hashable:
            name = self.names[side].get(k)
            return None if name is None else (name, key(side, k))

        return both

    def spread(self, same: Key, start: Iterable[int] | None = None) -> None:
        """Pair neighbours of pairs, where `same` leaves one choice; until nothing changes.

        `start`: places in the base; all pairs when left out.
        """
        waiting = deque(sorted(self.partner[0]) if start is None else start)
        while waiting:
            base = waiting.popleft()
            for b, h in [*self._above(base, same), *self._below(base, same)]:
                if b not in self.partner[0] and h not in self.partner[1]:
                    self.pair(b, h, MatchedBy.NEIGHBOURHOOD)
                    waiting.append(b)

    def _above(self, base: int, same: Key) -> Iterator[tuple[int, int]]:
        mine = self.wires[0].producers[base]
        theirs = self.wires[1].producers[self.partner[0][base]]
        for b, h in zip(mine, theirs, strict=False):
            if b is not None and h is not None and b[1] == h[1] and same(0, b[0]) == same(1, h[0]):
                yield b[0], h[0]

    def _below(self, base: int, same: Key) -> Iterator[tuple[int, int]]:
        found: dict[Hashable, tuple[list[int], list[int]]] = {}
        for side, k in ((0, base), (1, self.partner[0][base])):
            for output, consumer, place in self.wires[side].consumers[k]:
                if consumer not in self.partner[side]:
                    key = (same(side, consumer), output, place)
                    found.setdefault(key, ([], []))[side].append(consumer)
        for bases, heads in found.values():
            if len(bases) == len(heads) == 1:
                yield bases[0], heads[0]

    def in_order(self, key: Key) -> None:
        """Pair what has the same key one by one, and what then has one choice left around it."""
        same = _pick(self.exact, "signature")
        for bases, heads in self.classes(key):
            how = MatchedBy.SIGNATURE if len(bases) == len(heads) else MatchedBy.NEIGHBOURHOOD
            for base in bases:
                head = next((h for h in heads if h not in self.partner[1]), None)
                if head is None:
                    break
                if base not in self.partner[0]:
                    self.pair(base, head, how)
                    self.spread(same, (base,))


def match_nodes(base: ModelGraph, head: ModelGraph) -> Matching:
    """Match the nodes of two graphs; what is in neither pair was added or removed.

    Cost: linear in nodes and edges, times classes of nodes that nothing tells apart.
    """
    search = _Search(base, head)
    exact, alike = search.exact, search.alike

    def operator(side: int, k: int) -> Hashable:
        return search.graphs[side].nodes[k].op_type

    for tone in (exact, alike):
        search.unique(search.named(_pick(tone, "signature", "above")), MatchedBy.PROVENANCE)
        search.unique(search.named(_pick(tone, "signature", "below")), MatchedBy.PROVENANCE)
        search.unique(_pick(tone, "above", "below"), MatchedBy.SIGNATURE)
        search.unique(search.named(_near(tone, 0)), MatchedBy.PROVENANCE)
        search.unique(_pick(tone, "above"), MatchedBy.SIGNATURE)
        search.unique(_pick(tone, "below"), MatchedBy.SIGNATURE)
    for tone in (exact, alike):
        search.unique(search.named(_pick(tone, "signature")), MatchedBy.PROVENANCE)
    search.unique(search.named(operator), MatchedBy.PROVENANCE)
    for tone in (exact, alike):
        search.in_order(_pick(tone, "above", "below"))
        search.spread(_pick(tone, "signature"))
        for radius in reversed(range(_RADIUS)):
            search.unique(_near(tone, radius), MatchedBy.NEIGHBOURHOOD)
            search.spread(_pick(tone, "signature"))
    for tone in (exact, alike):
        search.unique(_pick(tone, "signature"), MatchedBy.SIGNATURE)

    def weights(side: int, k: int) -> Hashable:
        graph = search.graphs[side]
        held = [
            graph.tensors[name].sha256 for name in graph.nodes[k].inputs if name in graph.tensors
        ]
        digests = tuple(digest for digest in held if digest)
        return (operator(side, k), digests) if digests else None

    search.unique(weights, MatchedBy.SIGNATURE)
    search.spread(operator)
    search.unique(search.named(lambda side, k: None), MatchedBy.PROVENANCE)
    return Matching(search.partner[0], search.how)


def _usable_names(graph: ModelGraph) -> dict[int, str]:
    """Names that one node alone has."""
    places: dict[str, list[int]] = {}
    for k, node in enumerate(graph.nodes):
        if node.name:
            places.setdefault(node.name, []).append(k)
    return {ks[0]: name for name, ks in places.items() if len(ks) == 1}


def _pick(tone: tuple[Colours, Colours], *what: str) -> Key:
    columns = [tuple(getattr(side, name) for name in what) for side in tone]
    return lambda side, k: tuple(column[k] for column in columns[side])


def _near(tone: tuple[Colours, Colours], radius: int) -> Key:
    return lambda side, k: tone[side].near[radius][k]

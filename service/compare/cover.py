"""Rows of two runs set against each other, so that both sides of a pair cover the same nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Cover = frozenset[int]
"""Numbers of nodes; a node of the base and its partner in the head have one number."""
Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""Places of rows: of the base, of the head."""


def paired(base: Sequence[Cover], head: Sequence[Cover]) -> tuple[Pair, ...]:
    """Set rows against each other, in the order of the head (of the base, where it has none).

    Rows of the same nodes are pairs one by one, in their order.  Others are put together with
    as few as give both sides the same nodes; where no row does, one side has nodes that the other
    lacks.  Every row is in exactly one pair.
    Cost: linear in the sizes of covers, for every time that rows are put together.
    """
    whole = frozenset[int]().union(*base) & frozenset[int]().union(*head)
    bundles = _by_cover(base, head)
    equal = [pair for pair in bundles if pair[0] and pair[1]]
    left = [pair for pair in bundles if not (pair[0] and pair[1])]
    while True:
        left = _joined(left, base, head)
        lacking = frozenset[int]().union(*(_lack(pair, base, head) for pair in left)) & whole
        needed = [pair for pair in equal if _nodes(pair, base, head) & lacking]
        if not needed:
            break
        equal = [pair for pair in equal if pair not in needed]
        left += needed
    found: list[Pair] = list(left)
    for bases, heads in equal:
        if len(bases) == len(heads):
            found += [((b,), (h,)) for b, h in zip(bases, heads, strict=True)]
        else:
            found.append((bases, heads))
    return tuple(_in_order(found))


def _by_cover(base: Sequence[Cover], head: Sequence[Cover]) -> list[Pair]:
    """Rows by the nodes that they cover."""
    found: dict[Cover, tuple[list[int], list[int]]] = {}
    for side, rows in enumerate((base, head)):
        for place, cover in enumerate(rows):
            found.setdefault(cover, ([], []))[side].append(place)
    return [(tuple(b), tuple(h)) for b, h in found.values()]


def _nodes(pair: Pair, base: Sequence[Cover], head: Sequence[Cover]) -> Cover:
    return _union(pair[0], base) | _union(pair[1], head)


def _union(places: Iterable[int], rows: Sequence[Cover]) -> Cover:
    return frozenset[int]().union(*(rows[place] for place in places))


def _lack(pair: Pair, base: Sequence[Cover], head: Sequence[Cover]) -> Cover:
    """Nodes that one side covers and the other does not."""
    return _union(pair[0], base) ^ _union(pair[1], head)


def _joined(pairs: Sequence[Pair], base: Sequence[Cover], head: Sequence[Cover]) -> list[Pair]:
    """Pairs that share nodes, put together."""
    root = list(range(len(pairs)))

    def find(k: int) -> int:
        while root[k] != k:
            root[k] = root[root[k]]
            k = root[k]
        return k

    first: dict[int, int] = {}
    for k, pair in enumerate(pairs):
        for node in _nodes(pair, base, head):
            first.setdefault(node, k)
            root[find(k)] = find(first[node])
    together: dict[int, tuple[list[int], list[int]]] = {}
    for k, pair in enumerate(pairs):
        sides = together.setdefault(find(k), ([], []))
        for side, places in zip(sides, pair, strict=True):
            side.extend(places)
    return [(tuple(sorted(b)), tuple(sorted(h))) for b, h in together.values()]


def _in_order(pairs: Sequence[Pair]) -> list[Pair]:
    """By the place in the head; what the head lacks stands behind what came before it in the
    base."""
    head_at = {b: pair[1][0] for pair in pairs if pair[1] for b in pair[0]}
    behind: dict[int, int] = {}
    last = -1
    for place in range(1 + max((b for pair in pairs for b in pair[0]), default=-1)):
        last = head_at.get(place, last)
        behind[place] = last

    def order(pair: Pair) -> tuple[int, int, int]:
        if pair[1]:
            return (pair[1][0], 0, 0)
        return (behind[pair[0][0]], 1, pair[0][0])

    return sorted(pairs, key=order)

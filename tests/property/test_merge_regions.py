"""Region merge against brute force: convex, acyclic all at once, maximal, glue kept."""

from __future__ import annotations

import numpy as np
import pytest
from counted_work import growth
from hypothesis import assume, given
from hypothesis import strategies as st

from worker.compiler.errors import InternalError
from worker.compiler.partition.regions import merge_regions

Graph = list[list[int]]


def reachable(edges: set[tuple[int, int]], count: int) -> list[list[bool]]:
    """Paths of one or more edges, by Warshall's closure."""
    found = [[(a, b) in edges for b in range(count)] for a in range(count)]
    for k in range(count):
        for a in range(count):
            if found[a][k]:
                for b in range(count):
                    found[a][b] = found[a][b] or found[k][b]
    return found


def contracted(successors: Graph, group_of: list[int]) -> set[tuple[int, int]]:
    return {
        (group_of[a], group_of[b])
        for a, after in enumerate(successors)
        for b in after
        if group_of[a] != group_of[b]
    }


def is_acyclic(edges: set[tuple[int, int]], count: int) -> bool:
    closure = reachable(edges, count)
    return not any(closure[k][k] for k in range(count))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Graph, list[str | None], list[tuple[int, ...]]]:
    count = draw(st.integers(1, 12))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    kept = draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    density = draw(st.sampled_from([1, 2, 3]))
    sparse = draw(st.lists(st.integers(1, 3), min_size=len(pairs), max_size=len(pairs)))
    successors: Graph = [[] for _ in range(count)]
    for (a, b), keep, dice in zip(pairs, kept, sparse, strict=True):
        if keep and dice <= density:
            successors[a].append(b)
    names = draw(st.sampled_from([["a"], ["a", "b"]]))
    targets = draw(
        st.lists(st.sampled_from([*names, *names, None]), min_size=count, max_size=count)
    )
    glued: list[tuple[int, ...]] = []
    free = [k for k in range(count) if targets[k] is not None]
    for _ in range(draw(st.integers(0, 3))):
        if len(free) < 2:
            break
        first = draw(st.sampled_from(free))
        like = [k for k in free if targets[k] == targets[first]]
        size = draw(st.integers(1, min(3, len(like))))
        group = tuple(sorted(draw(st.permutations(like))[:size]))
        free = [k for k in free if k not in group]
        glued.append(group)
    return successors, targets, glued


def unit_groups(count: int, glued: list[tuple[int, ...]]) -> list[int]:
    group_of = list(range(count))
    for group in glued:
        for node in group:
            group_of[node] = group[0]
    return group_of


@given(problems())
def test_regions_are_convex_acyclic_and_maximal(
    drawn: tuple[Graph, list[str | None], list[tuple[int, ...]]],
) -> None:
    successors, targets, glued = drawn
    count = len(targets)
    assume(is_acyclic(contracted(successors, unit_groups(count, glued)), count))
    found = list(merge_regions(successors, targets, glued))
    members: dict[int, list[int]] = {}
    for node, group in enumerate(found):
        members.setdefault(group, []).append(node)
    assert list(members) == sorted(members) == list(range(len(members)))
    for composite in glued:
        assert len({found[n] for n in composite}) == 1
    closure = reachable({(a, b) for a, after in enumerate(successors) for b in after}, count)
    for nodes in members.values():
        assert len({targets[n] for n in nodes}) == 1
        assert targets[nodes[0]] is not None or len(nodes) == 1
        for a in nodes:
            for b in nodes:
                between = [k for k in range(count) if closure[a][k] and closure[k][b]]
                assert set(between) <= set(nodes), "a path leaves the region and comes back"
    edges = contracted(successors, found)
    assert is_acyclic(edges, count)
    for a, b in edges:
        if targets[members[a][0]] is None or targets[members[a][0]] != targets[members[b][0]]:
            continue
        merged = [a if group == b else group for group in found]
        assert not is_acyclic(contracted(successors, merged), count), f"{a} and {b} could merge"


@given(problems())
def test_the_result_is_the_same_every_time(
    drawn: tuple[Graph, list[str | None], list[tuple[int, ...]]],
) -> None:
    successors, targets, glued = drawn
    assume(is_acyclic(contracted(successors, unit_groups(len(targets), glued)), len(targets)))
    shuffled = [list(reversed(after)) for after in successors]
    assert merge_regions(successors, targets, glued) == merge_regions(shuffled, targets, glued)


def test_tv_by_2_diamond_around_an_unsupported_node() -> None:
    """A(sup) -> B(unsup) -> D(sup), A -> C(sup) -> D: regions {A, C} and {D}."""
    a, b, c, d = range(4)
    found = merge_regions([[b, c], [d], [d], []], ["t", None, "t", "t"], [])
    assert found[a] == found[c] != found[d]
    assert len(set(found)) == 3


def test_regions_of_different_levels_merge_where_no_cycle_arises() -> None:
    # side (level 0) feeds the last node (level 2); nothing else joins them
    first, host, side, last = range(4)
    found = merge_regions([[host], [last], [last], []], ["t", None, "t", "t"], [])
    assert found[side] == found[last] != found[first]


def test_composites_that_block_each_other_are_our_bug() -> None:
    with pytest.raises(InternalError, match="neither can run first"):
        merge_regions([[2], [3], [], []], ["t"] * 4, [(0, 3), (1, 2)])
    with pytest.raises(InternalError, match="several targets"):
        merge_regions([[1], []], ["t", "u"], [(0, 1)])


def random_graph(count: int, reach: int, seed: int) -> Graph:
    rng = np.random.default_rng(seed)
    successors: Graph = [[] for _ in range(count)]
    for node in range(1, count):
        for source in {int(rng.integers(max(0, node - reach), node)) for _ in range(2)}:
            successors[source].append(node)
    return successors


def chain(count: int) -> Graph:
    return [[k + 1] if k + 1 < count else [] for k in range(count)]


def ladder(count: int) -> Graph:
    """Diamonds in a row: 0 -> 1, 2 -> 3 -> 4, 5 -> 6, with a bypass over each diamond."""
    successors: Graph = [[] for _ in range(count)]
    for top in range(0, count - 3, 3):
        successors[top] = [top + 1, top + 2, top + 3]
        successors[top + 1] = [top + 3]
        successors[top + 2] = [top + 3]
    return successors


def nested_skips(count: int) -> Graph:
    """A long U: node k feeds k + 1 and its mirror image."""
    successors = chain(count)
    for k in range(count // 2 - 1):
        successors[k].append(count - 1 - k)
    return successors


GRAPHS = {
    "global": lambda n: random_graph(n, n, 1),
    "window50": lambda n: random_graph(n, 50, 2),
    "window3": lambda n: random_graph(n, 3, 3),
    "chain": chain,
    "ladder": ladder,
    "nested skips": nested_skips,
}


@pytest.mark.parametrize("shape", GRAPHS)
@pytest.mark.parametrize("host_share", [0.02, 0.5])
def test_work_stays_far_from_quadratic(shape: str, host_share: float) -> None:
    """4 would be quadratic; seconds at 10 000 nodes are printed by `benchmarks.partition_speed`."""

    def merged(count: int) -> None:
        rng = np.random.default_rng(7)
        targets = [
            None if rng.random() < host_share else ("a" if rng.random() < 0.8 else "b")
            for _ in range(count)
        ]
        merge_regions(GRAPHS[shape](count), targets, [])

    assert growth(merged, 1500) < (3 if shape == "global" else 2.2)

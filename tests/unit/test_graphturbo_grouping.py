"""Algorithm 2: the paper's figures, refusals, and what must hold of every result."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.strategies.graphturbo.grouping import Pattern, group, group_traced
from worker.compiler.strategies.graphturbo.split_info import split_values
from worker.compiler.strategies.graphturbo.values import LayerGroup

Edges = list[tuple[int, int]]
FactorOf = Callable[[tuple[int, ...]], int | None]


def by_max(factors: dict[int, int | None]) -> FactorOf:
    """A set is cut into the most instances that one of its nodes needs."""

    def factor_of(members: tuple[int, ...]) -> int | None:
        found = [factors[k] for k in members]
        return None if None in found else max(f for f in found if f)

    return factor_of


def layers(groups: tuple[LayerGroup, ...]) -> list[tuple[int, ...]]:
    return [g.layers for g in groups]


def residual(first: int, length: int, entry: int | None) -> Edges:
    """`length` layers in a row and an add behind them that also reads `entry`."""
    edges = [(k, k + 1) for k in range(first, first + length)]
    return edges if entry is None else [*edges, (entry, first), (entry, first + length)]


CONV_BLOCK: Edges = [(0, 1), (1, 2), (2, 4), (3, 4)]
"""Convs 0-1-2 and the shortcut 3 (both read the block's input), add 4."""


def test_conv_and_identity_block_become_one_group() -> None:
    # TV-GT-7: Fig. 5
    edges = [*CONV_BLOCK, *residual(5, 3, 4)]
    groups = group(9, edges, by_max(dict.fromkeys(range(9), 2)))
    assert groups == (LayerGroup(tuple(range(9)), 2),)


def test_the_block_input_may_be_a_group_of_another_factor() -> None:
    # the same figure with the previous stage, whose factor is larger, as entry
    edges = [(0, 1), (0, 4), (1, 2), (2, 3), (3, 5), (4, 5), *residual(6, 3, 5)]
    groups = group(10, edges, by_max({0: 8} | dict.fromkeys(range(1, 10), 4)))
    assert layers(groups) == [(0,), tuple(range(1, 10))]


def test_a_stage_that_down_samples_is_not_merged_with_the_one_before() -> None:
    # TV-GT-8
    def factor_of(members: tuple[int, ...]) -> int:
        return {(0,): 8, (1,): 4, (0, 1): 8}[members]

    assert layers(group(2, [(0, 1)], factor_of)) == [(0,), (1,)]


@pytest.mark.parametrize(("merged", "expected"), [(4, [(0, 1)]), (8, [(0,), (1,)])])
def test_rule_one_bounds_the_merged_factor_by_the_follower(
    merged: int, expected: list[tuple[int, ...]]
) -> None:
    def factor_of(members: tuple[int, ...]) -> int:
        return {(0,): 2, (1,): 4, (0, 1): merged}[members]

    assert layers(group(2, [(0, 1)], factor_of)) == expected


def test_stages_of_resnet_get_eight_four_two_and_one_instance() -> None:
    # TV-GT-3 at graph level: Fig. 3 in units of one image of stage 4, LB holds 2
    edges: Edges = []
    stage_of: list[int] = []
    previous: int | None = None
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            first = len(stage_of)
            if block:
                edges += residual(first, 3, previous)
                stage_of += [stage] * 4
            else:
                edges += [(a + first, b + first) for a, b in CONV_BLOCK]
                edges += [] if previous is None else [(previous, first), (previous, first + 3)]
                stage_of += [stage] * 5
            previous = len(stage_of) - 1

    def factor_of(members: tuple[int, ...]) -> int | None:
        top = min(stage_of[k] for k in members)
        return next(split_values(8, (16 >> top) // 2), None)

    groups = group(len(stage_of), edges, factor_of)
    assert [{stage_of[k] for k in g.layers} for g in groups] == [{0}, {1}, {2}, {3}]
    assert [g.factor for g in groups if g.factor] == [8, 4, 2, 1]


def test_a_group_that_fits_with_no_factor_never_merges() -> None:
    factors: dict[int, int | None] = dict.fromkeys(range(5), 2)
    factors[2] = None
    edges = [(0, 1), (1, 2), (2, 3), (3, 4), (1, 4)]
    groups = group(5, edges, by_max(factors))
    assert LayerGroup((2,), None) in groups
    assert all(2 not in g.layers for g in groups if g.factor)


def test_a_diamond_whose_inside_is_used_elsewhere_is_refused() -> None:
    # 0 -> {1, 2} -> 3, and 1 is also read by 4: {1, 2, 3} would have two exits
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (1, 4)]
    trace = group_traced(5, edges, by_max(dict.fromkeys(range(5), 1)))
    assert all(m.pattern is not Pattern.DIAMOND for m in trace.merges)
    assert all(not {1, 3} <= set(g.layers) for g in trace.groups)


def test_rule_two_is_bounded_by_the_largest_member_and_leaves_the_entry_out() -> None:
    def factor_of(members: tuple[int, ...]) -> int | None:
        if len(members) == 1:
            return (16, 2, 8, 4)[members[0]]
        return 8 if members == (1, 2, 3) else None

    trace = group_traced(4, [(0, 1), (0, 2), (1, 3), (2, 3)], factor_of)
    assert [m.pattern for m in trace.merges] == [Pattern.DIAMOND]
    assert layers(trace.groups) == [(0,), (1, 2, 3)]


def test_a_follower_that_up_samples_may_take_over_the_larger_factor() -> None:
    factors = by_max({0: 8, 1: 4})
    assert layers(group(2, [(0, 1)], factors, sizes=[10, 40])) == [(0, 1)]
    assert len(group(2, [(0, 1)], factors, sizes=[10, 10])) == 2
    assert len(group(2, [(0, 1)], factors, sizes=[10, 40], allow_upsampling=False)) == 2


def test_a_branch_takes_the_producer_that_nobody_else_reads() -> None:
    # 0 -> 2 <- 1 -> 3: only 0 may join 2
    trace = group_traced(4, [(0, 2), (1, 2), (1, 3)], by_max(dict.fromkeys(range(4), 2)))
    assert [m.pattern for m in trace.merges] == [Pattern.BRANCH]
    assert layers(trace.groups) == [(1,), (0, 2), (3,)]


def test_a_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="cycle"):
        group(3, [(0, 1), (1, 2), (2, 1)], by_max(dict.fromkeys(range(3), 1)))


def reachable(edges: Edges, nodes: int) -> list[set[int]]:
    after: list[set[int]] = []
    for start in range(nodes):
        seen: set[int] = set()
        queue = deque([start])
        while queue:
            here = queue.popleft()
            for a, b in edges:
                if a == here and b not in seen:
                    seen.add(b)
                    queue.append(b)
        after.append(seen)
    return after


def random_factors(seed: int) -> FactorOf:
    """Any function of the set, without structure; now and then none."""

    def factor_of(members: tuple[int, ...]) -> int | None:
        draw = zlib.crc32(repr((seed, members)).encode())
        return None if draw % 7 == 0 else 1 << (draw // 7) % 4

    return factor_of


@st.composite
def dags(draw: st.DrawFn) -> tuple[int, Edges]:
    nodes = draw(st.integers(1, 10))
    label = draw(st.permutations(range(nodes)))
    pairs = [(a, b) for b in range(nodes) for a in range(b)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=16, unique=True)) if pairs else []
    chain = [(k, k + 1) for k in range(nodes - 1) if draw(st.integers(0, 2))]
    return nodes, [(label[a], label[b]) for a, b in dict.fromkeys(chain + chosen)]


def patterns_hold(edges: Edges, pattern: Pattern, groups: tuple[tuple[int, ...], ...]) -> bool:
    """The shape of a merge, judged on nodes: who feeds whom among and around its groups."""
    inside = {node for g in groups for node in g}
    exit_ = set(groups[-1])
    leaving = {a for a, b in edges if a in inside and b not in inside}
    if pattern is Pattern.DIAMOND:
        return leaving <= exit_ and len(groups) >= 2
    producer = set(groups[0])
    into = {a for a, b in edges if b in exit_ and a not in exit_}
    only_each_other = leaving <= exit_ and bool(into & producer)
    return only_each_other and (into <= producer) == (pattern is Pattern.STRAIGHT)


@given(dags(), st.integers(0, 99), st.booleans())
def test_what_holds_of_every_grouping(dag: tuple[int, Edges], seed: int, uniform: bool) -> None:
    nodes, edges = dag
    factor_of = by_max(dict.fromkeys(range(nodes), 2)) if uniform else random_factors(seed)
    asked: list[tuple[int, ...]] = []

    def asking(members: tuple[int, ...]) -> int | None:
        asked.append(members)
        return factor_of(members)

    trace = group_traced(nodes, edges, asking)
    assert len(asked) == len(set(asked))
    assert sorted(k for g in trace.groups for k in g.layers) == list(range(nodes))
    after = reachable(edges, nodes)
    home = {k: n for n, g in enumerate(trace.groups) for k in g.layers}
    for n, g in enumerate(trace.groups):
        inside = set(g.layers)
        assert list(g.layers) == sorted(inside)
        assert g.factor == factor_of(g.layers)
        for k in set(range(nodes)) - inside:  # convex: nothing outside is after and before it
            assert not (any(k in after[a] for a in inside) and after[k] & inside)
        assert all(home[b] >= n for a, b in edges if a in inside)
    for merge in trace.merges:
        assert merge.factors == tuple(map(factor_of, merge.members))
        together = factor_of(tuple(sorted(k for m in merge.members for k in m)))
        assert together is not None and together == merge.factor
        if merge.pattern is Pattern.DIAMOND:
            assert merge.factor <= max(merge.factors)
        else:
            producer, follower = merge.factors
            assert follower >= producer and merge.factor <= follower
        assert patterns_hold(edges, merge.pattern, merge.members)
    number = len(trace.groups)
    between = sorted({(home[a], home[b]) for a, b in edges if home[a] != home[b]})

    def merged(members: tuple[int, ...]) -> int | None:
        return factor_of(tuple(sorted(k for m in members for k in trace.groups[m].layers)))

    assert not group_traced(number, between, merged).merges


@pytest.mark.parametrize("factor", [2, None])
def test_work_is_proportional_to_the_graph(factor: int | None) -> None:
    # a thousand residual blocks, all merged or all refused; nothing quadratic
    def work(blocks: int) -> int:
        nodes, edges, previous = 1, list[tuple[int, int]](), 0
        for _ in range(blocks):
            edges += residual(nodes, 4, previous)
            nodes, previous = nodes + 5, nodes + 4
        splits: FactorOf = lambda m: 2 if factor or len(m) == 1 else None  # noqa: E731
        return group_traced(nodes, edges, splits).num_visits

    small, large = work(250), work(1000)
    assert large < 4.2 * small
    assert large < 100 * 5000


def test_long_skips_do_not_make_a_round_quadratic() -> None:
    def work(nodes: int) -> int:
        edges = [(0, k) for k in range(2, nodes)] + [(k, k + 1) for k in range(nodes - 1)]
        return group_traced(nodes, edges, lambda m: 1 if len(m) == 1 else None).num_visits

    assert work(2000) < 4.5 * work(500)

"""The matcher agrees with brute force on random graphs and patterns, and matches are convex."""

from __future__ import annotations

from random import Random

import onnx_ir as ir
from hypothesis import given
from hypothesis import strategies as st
from pattern_oracle import brute_force
from pattern_toys import toy_graph, toy_rules

from worker.compiler.machine.pattern import PatternRule
from worker.compiler.partition.patterns.matching import Match, match_patterns, near_misses

SEEDS = st.integers(0, 1 << 32)


def toy(seed: int) -> tuple[ir.Graph, tuple[PatternRule, ...]]:
    rng = Random(seed)
    graph = toy_graph(rng)
    return graph, toy_rules(graph, rng)


def found_in(graph: ir.Graph, table: tuple[PatternRule, ...]) -> tuple[Match, ...]:
    return match_patterns(list(graph), table, [str(v.name) for v in graph.outputs])


def named(graph: ir.Graph, matches: tuple[Match, ...]) -> dict[str, tuple[str, tuple[str, ...]]]:
    nodes = list(graph)
    return {
        str(nodes[m.root].name): (m.rule.name, tuple(str(nodes[k].name) for k in m.nodes))
        for m in matches
    }


@given(SEEDS)
def test_matches_are_those_of_brute_force(seed: int) -> None:
    graph, table = toy(seed)
    assert named(graph, found_in(graph, table)) == brute_force(list(graph), table)


def test_the_toys_exercise_the_language() -> None:
    """Guards the property above: enough of its examples have composites of several nodes."""
    sizes = [
        len(match.nodes)
        for graph, table in map(toy, range(300))
        for match in found_in(graph, table)
    ]
    assert sum(size > 1 for size in sizes) > 60
    assert sum(size > 2 for size in sizes) > 10


@given(SEEDS)
def test_matches_are_disjoint_convex_and_every_other_candidate_is_explained(seed: int) -> None:
    graph, table = toy(seed)
    nodes = list(graph)
    position = {id(node): k for k, node in enumerate(nodes)}
    matches = found_in(graph, table)
    members = [k for match in matches for k in match.nodes]
    assert len(members) == len(set(members))
    for match in matches:
        below: set[int] = set()  # outside nodes that the match reaches
        for k, node in enumerate(nodes):
            sources = {position[id(p)] for v in node.inputs if v and (p := v.producer())}
            if k in match.nodes:
                assert not sources & below  # no path leaves and comes back
            elif sources & (below | set(match.nodes)):
                below.add(k)
    outputs = [str(v.name) for v in graph.outputs]
    misses = near_misses(nodes, table, outputs, matches)
    seen = [(miss.pattern, miss.root_node) for miss in misses]
    assert len(seen) == len(set(seen))
    for rule in table:
        inside = {nodes[k].name for m in matches if m.rule is rule for k in m.nodes}
        missed = {miss.root_node for miss in misses if miss.pattern == rule.name}
        assert not inside & missed
    assert all(miss.sentence and miss.at_node for miss in misses)

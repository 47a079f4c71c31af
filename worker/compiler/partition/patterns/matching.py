"""Find the composites of a target's pattern table in a model (BYOC section 3.1.1).

Rules come by priority, then table order; a node belongs to at most one composite; within a rule
the first root in model order wins.  The root is the last node of a composite, and only its outputs
may be read outside.
Source: BYOC section 3.1.1.  Deviates: the paper says nothing of commutative operands, types, uses
or paths, and tries patterns in table order only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir

from worker.compiler.machine.pattern import Pattern, PatternRule
from worker.compiler.partition.patterns.explain import Explainer
from worker.compiler.partition.patterns.search import Search, TooManyWays, Way
from worker.compiler.partition.patterns.steps import Step, steps_of
from worker.compiler.partition.patterns.view import ModelIndex


@dataclass(frozen=True, slots=True)
class Match:
    """One composite."""

    rule: PatternRule
    nodes: tuple[int, ...]
    """Positions in the given nodes, ascending."""
    root: int
    """Position of the last node."""
    bindings: tuple[tuple[str, str], ...]
    """(name in the pattern, value name), by name."""


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A node that could have been a pattern's root, and what stood against it."""

    pattern: str
    root_node: str
    """Name of the node that could have been the root."""
    at_node: str
    """Name of the node where the deepest attempt failed."""
    sentence: str


def match_patterns(
    nodes: Sequence[onnx_ir.Node], rules: Sequence[PatternRule], graph_outputs: Sequence[str]
) -> tuple[Match, ...]:
    """Composites in order of their roots.

    `nodes` are a whole graph in topological order; `graph_outputs` names the values that leave it;
    `rules` come by precedence.

    Cost: linear in nodes times rules whose root type they have, times the places of a pattern;
    at most MAX_STEPS (patterns_search.py) combinations per root.
    """
    view = ModelIndex(nodes, graph_outputs)
    taken: set[int] = set()
    found: list[Match] = []
    search = Search(view)
    known: dict[Pattern, Step] = {}
    for rule in rules:
        step = steps_of(rule.root, known)
        for k in search.candidates(step):
            if k in taken:
                continue
            way = _first(search, step, k, taken)
            if way is not None:
                taken |= way.nodes
                found.append(_match(rule, way, k))
    return tuple(sorted(found, key=lambda match: match.root))


def near_misses(
    nodes: Sequence[onnx_ir.Node],
    rules: Sequence[PatternRule],
    graph_outputs: Sequence[str],
    matches: Sequence[Match],
) -> tuple[NearMiss, ...]:
    """For every rule, why each node of its root's type that is in no match of it was not one.

    Rules in the given order, nodes in model order.  The sentence names the node or operand where
    the deepest attempt failed, with what was there against what the pattern wants.

    Cost: as `match_patterns`, plus one walk of the pattern per near miss.
    """
    view = ModelIndex(nodes, graph_outputs)
    found: list[NearMiss] = []
    before: dict[int, str] = {}
    """Nodes of the composites that come before the one in question -> their pattern."""
    search = Search(view)
    explainer = Explainer(view, search)
    known: dict[Pattern, Step] = {}
    for rule in rules:
        step = steps_of(rule.root, known)
        own = sorted((m for m in matches if m.rule.name == rule.name), key=lambda m: m.root)
        inside = {k for match in own for k in match.nodes}
        waiting = iter(own)
        coming = next(waiting, None)
        for k in search.candidates(step):
            while coming is not None and coming.root < k:
                before.update(dict.fromkeys(coming.nodes, rule.name))
                coming = next(waiting, None)
            if k not in inside:
                at, sentence = explainer.why(step, k, before)
                found.append(NearMiss(rule.name, view.name(k), view.name(at), sentence))
        before.update(dict.fromkeys(inside, rule.name))
    return tuple(found)


def _first(search: Search, step: Step, k: int, taken: set[int]) -> Way | None:
    try:
        return search.first(step, k, taken)
    except TooManyWays:
        return None


def _match(rule: PatternRule, way: Way, root: int) -> Match:
    bindings = tuple((name, value.name or "") for name, value in way.bound)
    return Match(rule, tuple(sorted(way.nodes)), root, bindings)

"""The search behind pattern matching: every way a pattern can stand at a value, lazily, each once.

A way is the set of nodes it takes plus what it binds.  Ways of one place at one value do not depend
on the root, so they are kept in streams that all roots share; different choices that take the same
nodes are one way.  What depends on the whole match (values that escape, bindings, nodes that
another composite has) is checked at the root, and the next way is tried when it fails.

The order of ways is part of the language: an optional node present before absent, alternatives as
listed, commutative inputs as given before swapped, the longest path first.  The match is the first
way that satisfies everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir

from worker.compiler.machine.pattern import Alternatives, AnyValue, OpMatch, PathTo, SameValue
from worker.compiler.partition.patterns.local import Local, orders
from worker.compiler.partition.patterns.steps import Step
from worker.compiler.partition.patterns.view import OUTSIDE, ModelIndex, Operands

MAX_STEPS = 2000
"""Ways put together for one root before the search gives up.  Patterns with choices inside choices
can have exponentially many; a match that needs more than this is not found, never a wrong one."""

Binding = tuple[tuple[str, onnx_ir.Value], ...]


@dataclass(frozen=True, slots=True)
class Way:
    """One way a place of a pattern stands at a value."""

    nodes: frozenset[int] = frozenset()
    """Positions of the nodes it takes."""
    outside: frozenset[int] = frozenset()
    """Positions that define values matched by wildcards: they must stay outside."""
    bound: Binding = ()
    asked: Binding = ()
    """Values that must be the ones bound under these names."""


class TooManyWays(Exception):
    """The search for one root gave up."""


class _Stream:
    """Results of a generator, computed when first asked for, kept for all later readers."""

    __slots__ = ("_is_broken", "_kept", "_seen", "_source")

    def __init__(self, source: Iterator[Way]) -> None:
        self._source = source
        self._kept: list[Way] = []
        self._seen: set[Way] = set()
        self._is_broken = False

    def __iter__(self) -> Iterator[Way]:
        k = 0
        while k < len(self._kept) or self._pull():
            yield self._kept[k]
            k += 1

    def _pull(self) -> bool:
        if self._is_broken:
            raise TooManyWays
        try:
            for way in self._source:
                if way not in self._seen:
                    self._seen.add(way)
                    self._kept.append(way)
                    return True
        except TooManyWays:
            # The generator is dead; whoever asks again must not take its silence for the end.
            self._is_broken = True
            raise
        return False


class Search:
    """Matches prepared patterns against one model."""

    def __init__(self, view: ModelIndex, local: Local | None = None) -> None:
        self._view = view
        self.local = local or Local(view)
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._left = MAX_STEPS

    def candidates(self, root: Step) -> list[int]:
        """Positions whose op type may be the root, in model order."""
        by_type = self._view.by_type
        return sorted(k for op_type in root.heads for k in by_type.get(op_type, ()))

    def first(self, root: Step, k: int, taken: Collection[int]) -> Way | None:
        """The match whose root is node `k` and that uses no node of `taken`.

        Raises:
            TooManyWays: more than MAX_STEPS ways were put together.
        """
        for way in self.ways_at(root, k):
            conflict = self.conflict(way, k, taken)
            if conflict is None:
                return way
            if conflict[0] in ("escape", "taken"):
                return self._without_dead(root, k, taken)
        return None

    def _without_dead(self, root: Step, k: int, taken: Collection[int]) -> Way | None:
        """Search again without the nodes that no match with this root can have.

        A node read by one that no way takes is dead, and without it others are: what remains often
        shows at once that there is no match, where trying one way after another would take long.
        """
        value = self._view.nodes[k].outputs[0]
        dead: set[int] = set()
        local = self.local
        while True:
            reach = local.reach(root, value, k)
            more = {
                j
                for j in reach - dead
                if j in taken or (j != k and not self._view.readers(j) <= reach)
            }
            if not more:
                break
            dead |= more
            local = Local(self._view, frozenset(dead))
        for way in Search(self._view, local).ways_at(root, k):
            if self.conflict(way, k, taken) is None:
                return way
        return None

    def ways_at(self, root: Step, k: int) -> Iterator[Way]:
        """Ways that take node `k` as the root, before `conflict` is asked."""
        value = self._view.nodes[k].outputs[0]
        if not self.local.fits(root, value, k):
            return
        self._left = MAX_STEPS
        for way in self._ways(root, value, k):
            self._spend()
            if k in way.nodes:
                yield way

    def conflict(self, way: Way, root: int, taken: Collection[int]) -> tuple[str, int] | None:
        """What stands against a way as a whole: the kind and the node, None when nothing does.

        Kinds: `taken` (the node is in another composite), `escape` (an output of the node is read
        outside), `unbound` and `differs` (bindings; the node is the root).  A way without conflict
        is convex: a path that leaves it starts at the root, since no other value is read outside,
        and every node of it leads to the root, so a path that came back would close a cycle.
        """
        for k in sorted(way.nodes):
            if k in taken:
                return "taken", k
        bound = dict(way.bound)
        for name, value in way.asked:
            if name not in bound:
                return "unbound", root
            if bound[name] is not value:
                return "differs", root
        for k in sorted(way.nodes):
            if k != root and not self._view.readers(k) <= way.nodes:
                return "escape", k
        return None

    def _ways(self, step: Step, value: onnx_ir.Value, definer: int) -> Iterable[Way]:
        """All ways of one place at one value, in order of preference."""
        if not self.local.fits(step, value, definer):
            return ()
        key = (id(step), id(value))
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream(self._produce(step, value, definer))
        return stream

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooManyWays

    def _produce(self, step: Step, value: onnx_ir.Value, definer: int) -> Iterator[Way]:
        match step.pattern:
            case AnyValue(bind=bind):
                outside = frozenset() if definer == OUTSIDE else frozenset((definer,))
                yield Way(outside=outside, bound=_binding(bind, value))
            case SameValue(bind=name):
                yield Way(asked=((name, value),))
            case Alternatives():
                for child in step.children:
                    yield from self._ways(child, value, definer)
            case PathTo() as path:
                yield from self._along(path, step.children[0], value)
            case OpMatch() as op:
                yield from self._present(op, step, value, definer)
                if op.optional:
                    yield from self._absent(op, step, value, definer)

    def _present(self, op: OpMatch, step: Step, value: onnx_ir.Value, k: int) -> Iterator[Way]:
        if not self.local.stands(op, value, k):
            return
        start = Way(nodes=frozenset((k,)), bound=_binding(op.bind, value))
        operands = self._view.operands[k]
        for children in orders(op, step, operands):
            yield from self._combine(children, operands, 0, start)

    def _absent(self, op: OpMatch, step: Step, value: onnx_ir.Value, definer: int) -> Iterator[Way]:
        """The optional node is not there: what would be its input stands here."""
        here = Way(bound=_binding(op.bind, value))
        if op.through >= len(step.children):
            yield here
            return
        for way in self._ways(step.children[op.through], value, definer):
            merged = _merged(here, way)
            if merged is not None:
                yield merged

    def _along(self, path: PathTo, end: Step, value: onnx_ir.Value) -> Iterator[Way]:
        """Longest path first: as with optional nodes, more in the composite is better."""
        chain, values = self.local.chain(path, value)
        for count in range(len(chain), -1, -1):
            passed = Way(nodes=frozenset(chain[:count]))
            definer = self._view.definer(values[count])
            for way in self._ways(end, values[count], definer):
                self._spend()
                if count and self._hides(way, definer):
                    continue
                merged = _merged(passed, way)
                if merged is not None:
                    yield merged

    def _hides(self, way: Way, definer: int) -> bool:
        """Whether the way takes a node whose value leaves although the match reads it."""
        return definer in way.nodes and self._view.leaves(definer)

    def _combine(
        self, children: Sequence[Step], operands: Operands, at: int, partial: Way
    ) -> Iterator[Way]:
        """Every combination of the ways of the inputs from `at` on that is consistent."""
        if at == len(children):
            yield partial
            return
        for child, (operand, definer) in zip(children[at:], operands[at:], strict=False):
            if not self.local.fits_inside(child, operand, definer):
                return  # none of the combinations would come to an end
        operand, definer = operands[at]
        assert operand is not None
        for way in self._ways(children[at], operand, definer):
            self._spend()
            if self._hides(way, definer):
                continue
            merged = _merged(partial, way)
            if merged is not None:
                yield from self._combine(children, operands, at + 1, merged)


def _binding(name: str | None, value: onnx_ir.Value) -> Binding:
    return () if name is None else ((name, value),)


def _merged(a: Way, b: Way) -> Way | None:
    """Both ways at once; None when they contradict each other."""
    nodes = a.nodes | b.nodes
    outside = a.outside | b.outside
    if not nodes.isdisjoint(outside):
        return None  # a wildcard would stand for a value of the match itself
    bound, asked = a.bound, a.asked
    if b.bound:
        names = dict(bound)
        for name, value in b.bound:
            if names.setdefault(name, value) is not value:
                return None
        bound = tuple(sorted(names.items(), key=lambda item: item[0]))
    if b.asked:
        asked = tuple(dict.fromkeys((*asked, *b.asked)))
    if asked and bound:
        names = dict(bound)
        if any(names.get(name, value) is not value for name, value in asked):
            return None
    return Way(nodes, outside, bound, asked)

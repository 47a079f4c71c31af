"""Patterns prepared for matching: which op types may stand where, worked out once."""

from __future__ import annotations

from dataclasses import dataclass

from worker.compiler.machine.pattern import (
    Alternatives,
    AnyValue,
    OpMatch,
    PathTo,
    Pattern,
    SameValue,
    ValueRule,
)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A pattern at one or several places."""

    pattern: Pattern
    children: tuple[Step, ...]
    """Of an operator its inputs, of alternatives the options, of a path its end."""
    heads: frozenset[str]
    """Op types of nodes of the match that may define the value here."""
    is_open: bool
    """A value from outside the match may stand here."""
    is_free: bool = False
    """Any value may stand here."""

    @property
    def wanted(self) -> tuple[str, ...]:
        """Op types that may stand here, in the order of the pattern, each once."""
        found: dict[str, None] = {}
        stack = [self]
        while stack:
            step = stack.pop()
            match step.pattern:
                case OpMatch(op_types=op_types, optional=optional, through=through):
                    found.update(dict.fromkeys(op_types))
                    if optional and through < len(step.children):
                        stack.append(step.children[through])
                case PathTo(op_types=op_types):
                    found.update(dict.fromkeys(op_types))
                    stack.append(step.children[0])
                case Alternatives():
                    stack.extend(reversed(step.children))
                case _:
                    pass
        return tuple(found)


def steps_of(pattern: Pattern, known: dict[Pattern, Step]) -> Step:
    """Prepare a pattern; equal patterns become one step, so that they are judged once.

    Cost: linear in its places times their op types.
    """
    step = known.get(pattern)
    if step is None:
        step = known[pattern] = _step(pattern, known)
    return step


def _step(pattern: Pattern, known: dict[Pattern, Step]) -> Step:
    match pattern:
        case AnyValue(value=rule):
            return Step(pattern, (), frozenset(), is_open=True, is_free=rule == ValueRule())
        case SameValue():
            return Step(pattern, (), frozenset(), is_open=True, is_free=True)
        case Alternatives(options=options):
            children = tuple(steps_of(option, known) for option in options)
            heads = frozenset[str]().union(*(c.heads for c in children))
            return Step(pattern, children, heads, any(c.is_open for c in children))
        case PathTo(op_types=op_types, end=end):
            last = steps_of(end, known)
            return Step(pattern, (last,), last.heads | frozenset(op_types), last.is_open)
        case OpMatch(op_types=op_types, inputs=inputs, optional=optional, through=through):
            children = tuple(steps_of(item, known) for item in inputs)
            heads, is_open = frozenset(op_types), False
            if optional and through < len(children):
                heads |= children[through].heads
                is_open = children[through].is_open
            elif optional:
                is_open = True
            return Step(pattern, children, heads, is_open)

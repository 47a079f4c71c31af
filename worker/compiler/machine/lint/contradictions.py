"""Rows that no node can satisfy: bounds are narrowed by every demand until one leaves nothing.

Each quantity has an interval and numbers that must divide it; comparisons narrow the intervals of
their sides.  What is reported is impossible for every node that has the quantities; what is not
reported may be impossible still (two alternatives of different choices that exclude each other).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil, floor, inf, lcm

from worker.compiler.machine.lint.terms import factors, is_measured, is_number, level_bytes
from worker.compiler.machine.lint.view import Defect, SpecReader
from worker.compiler.machine.rule import Relation, operand_name

_MAX_ROUNDS = 64
_MAX_STEP = 1 << 40
_SLACK = 1e-9
_MOST = 1e15
"""Attributes' values beyond it, and what is none, narrow nothing."""
_FROM_ZERO = {"depthwise": 1.0, "pad_h": inf, "pad_w": inf}
"""Quantities that may be 0, and their most; the others are counts of something that is there."""
_QUANTITIES_OF = {
    "group": ("group", "group"),
    "kernel_shape": ("kernel_h", "kernel_w"),
    "strides": ("stride_h", "stride_w"),
    "dilations": ("dilation_h", "dilation_w"),
}
"""Attributes whose first and last elements are quantities too."""


@dataclass(frozen=True, slots=True)
class _Range:
    low: float
    high: float = inf
    step: int = 1
    """A whole number of these."""
    why: str = "what it counts"
    """Who set the bound that is met first, for the message."""


@dataclass(slots=True)
class _Facts:
    """What is known of each quantity so far."""

    ranges: dict[str, _Range] = field(default_factory=dict)
    clash: tuple[str, str] | None = None
    """(pointer, why nothing is left), once nothing is."""

    def of(self, name: str) -> _Range:
        operand = operand_name(name)
        is_free = name in _FROM_ZERO or (operand is not None and operand.figure == "rank")
        least = -inf if name.startswith("attribute.") else 0.0 if is_free else 1.0
        return self.ranges.get(name, _Range(least, _FROM_ZERO.get(name, inf)))

    def narrow(self, name: str, low: float, high: float, step: int, at: str) -> bool:
        """Keep what lies in [low, high] and is a multiple of `step`; whether that is less."""
        known = self.of(name)
        steps = lcm(known.step, step)
        if steps > _MAX_STEP:
            steps = known.step
        low, high = max(low, known.low), min(high, known.high)
        is_whole = not name.startswith("attribute.") or steps > 1
        if is_whole and low > -inf:
            low = ceil(low / steps - _SLACK) * steps
        if is_whole and high < inf:
            high = floor(high / steps + _SLACK) * steps
        if low > high * (1 + _SLACK) if high > 0 else low > high:
            multiple = f" in multiples of {steps}" if steps > 1 else ""
            self.clash = self.clash or (
                at, f"{name} would have to be at least {low:.15g} and at most {high:.15g}"
                f"{multiple} ({known.why} and {at})",
            )  # fmt: skip
            return False
        found = replace(known, low=low, high=high, step=steps)
        is_less = (found.low, found.high, found.step) != (known.low, known.high, known.step)
        if is_less:
            self.ranges[name] = replace(found, why=at)
        return is_less

    def copy(self) -> _Facts:
        return _Facts(dict(self.ranges), self.clash)


def contradictions(view: SpecReader, row: str, op_type: str) -> Iterator[Defect]:
    """Demands of the row at the pointer `row` that cannot hold together.

    Cost: demands times the rounds in which bounds still move, at most 64.
    """
    facts = _Facts()
    _settle(view, facts, row)
    if facts.clash is not None:
        pointer, why = facts.clash
        yield Defect(
            pointer, f"no {op_type} can satisfy this beside the other demands of its row: {why}",
            "bounds that leave a value, or one demand less", None,
        )  # fmt: skip
        return
    yield from _impossible_clauses(view, facts, row, op_type)


def _impossible_clauses(
    view: SpecReader, facts: _Facts, row: str, op_type: str
) -> Iterator[Defect]:
    for condition in view.items(f"{row}/conditions"):
        for clause in view.items(f"{condition}/any_of"):
            inner = facts.copy()
            _settle(view, inner, clause)
            if inner.clash is not None:
                pointer, why = inner.clash
                yield Defect(
                    pointer, f"no {op_type} can take this alternative beside the other demands of "
                    f"its row: {why}", "bounds that leave a value, or one alternative less", None,
                )  # fmt: skip
            else:
                yield from _impossible_clauses(view, inner, clause, op_type)


def _settle(view: SpecReader, facts: _Facts, clause: str) -> None:
    """Narrow by the demands of a clause, its alternatives apart, until nothing moves."""
    for name in view.keys(f"{clause}/limits"):
        at = f"{clause}/limits/{name}"
        low, high = view.number(f"{at}/min"), view.number(f"{at}/max")
        if low is not None and high is not None and low <= high:
            facts.narrow(name, low, high, 1, at)
    for name in view.keys(f"{clause}/attributes"):
        _attribute(view, facts, f"{clause}/attributes/{name}", name)
    for _ in range(_MAX_ROUNDS):
        is_moving = [
            _compare(view, facts, condition)
            for condition in view.items(f"{clause}/conditions")
            if view.raw(f"{condition}/compare") is not None
        ]
        if facts.clash is not None or not any(is_moving):
            return


def _attribute(view: SpecReader, facts: _Facts, at: str, name: str) -> None:
    """Bounds of an attribute's numbers, and of the quantities that are elements of it."""
    allowed = [view.raw(item) for item in view.items(f"{at}/allowed")]
    bounds = (view.number(f"{at}/min"), view.number(f"{at}/max"))
    for end, quantity in zip((0, -1), _QUANTITIES_OF.get(name, ()), strict=False):
        values = [value[end] if isinstance(value, list) and value else value for value in allowed]
        _values(facts, quantity, values, bounds, at)
    if not any(isinstance(value, list) for value in allowed):
        _values(facts, f"attribute.{name}", allowed, bounds, at)


def _values(
    facts: _Facts,
    name: str,
    values: list[object],
    bounds: tuple[float | None, float | None],
    at: str,
) -> None:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values) or any(not abs(v) < _MOST for v in numbers):
        return
    low, high = (min(numbers), max(numbers)) if numbers else (-inf, inf)
    low = low if bounds[0] is None else max(low, bounds[0])
    high = high if bounds[1] is None else min(high, bounds[1])
    if low <= high:  # else the rule is a finding of its own
        facts.narrow(name, low, high, 1, at)


def _compare(view: SpecReader, facts: _Facts, at: str) -> bool:
    """Narrow both sides by one comparison; whether that moved anything."""
    relations = [r for r in Relation if view.raw(f"{at}/{r}") is not None]
    if len(relations) != 1:
        return False
    relation = relations[0]
    left, right = (_Side.of(view, facts, f"{at}/{key}") for key in ("compare", relation))
    if left is None or right is None:
        return False
    moved = False
    if relation in (Relation.AT_MOST, Relation.EQUALS):
        moved |= left.limit(facts, -inf, right.high, at) | right.limit(facts, left.low, inf, at)
    if relation in (Relation.AT_LEAST, Relation.EQUALS):
        moved |= left.limit(facts, right.low, inf, at) | right.limit(facts, -inf, left.high, at)
    if relation is Relation.MULTIPLE_OF and left.low > 0:
        moved |= left.limit(facts, right.low, inf, at) | right.limit(facts, -inf, left.high, at)
        if right.is_constant and right.low == int(right.low) and left.scale == 1.0:
            moved |= left.limit(facts, -inf, inf, at, int(right.low))
    return moved


@dataclass(frozen=True, slots=True)
class _Side:
    """A product: its numbers, and what is known of its quantities."""

    low: float
    high: float
    scale: float
    """Product of the numbers."""
    name: str | None
    """The quantity, where there is exactly one; None: only numbers, or several."""
    is_constant: bool

    @classmethod
    def of(cls, view: SpecReader, facts: _Facts, at: str) -> _Side | None:
        """None: something of it is not understood, which is a finding of its own."""
        low = high = scale = 1.0
        has_sign = False
        names: list[str] = []
        for _, item in factors(view, at):
            number = level_bytes(view, item) if isinstance(item, str) else item
            if isinstance(item, str) and is_measured(view, item):
                known = facts.of(item)
                names.append(item)
                has_sign |= known.low < 0
                low, high = low * known.low, high * known.high if known.high else 0.0
            elif is_number(number):
                scale *= number
            else:
                return None
        if has_sign and len(names) > 1:
            return None
        name = names[0] if len(names) == 1 else None
        return cls(low * scale, high * scale, scale, name, not names)

    def limit(self, facts: _Facts, low: float, high: float, at: str, step: int = 1) -> bool:
        """Keep the part of the side in [low, high]; whether that is less."""
        if self.name is not None:
            return facts.narrow(self.name, low / self.scale, high / self.scale, step, at)
        wanted = ""
        if self.low > high * (1 + _SLACK):
            wanted = f"at most {high:.15g}"
        elif self.high < low * (1 - _SLACK):
            wanted = f"at least {low:.15g}"
        if wanted and facts.clash is None:
            facts.clash = (at, f"a side that is {self.low:.15g} or more, and {self.high:.15g} or "
                           f"less, would have to be {wanted}")  # fmt: skip
        return False

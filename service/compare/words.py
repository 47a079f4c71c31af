"""How a comparison says numbers, values and lists of names, in every form it is printed in."""

from __future__ import annotations

import json
from collections.abc import Sequence

from worker.report.node_names import node_span

_MOST_CHARACTERS = 60


def span(names: Sequence[str]) -> str:
    """A list of nodes in one line: all of a few, else the first, the last and how many."""
    return node_span(names) or "no nodes"


def count(number: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def value(held: object) -> str:
    """A JSON value in one line; None is what a side lacks."""
    if held is None:
        return "none"
    if isinstance(held, bool):
        return "yes" if held else "no"
    if isinstance(held, int | float):
        return number(held)
    text = held if isinstance(held, str) else json.dumps(held, ensure_ascii=False)
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


def number(held: float) -> str:
    """Whole numbers in full, others with six digits."""
    if isinstance(held, int) or (held.is_integer() and abs(held) < 1e15):
        return f"{int(held):,}"
    return f"{held:.6g}"


def signed(held: float) -> str:
    """With its sign: `+12,900`, `-3`, `0`."""
    return f"+{number(held)}" if held > 0 else number(held)


def percent(base: float, head: float) -> str:
    """By how much: `+12.3 %`; `new` from nothing."""
    if base == head:
        return "0 %"
    if base == 0:
        return "new"
    return f"{100 * (head / base - 1):+.3g} %"


def seconds(held: float) -> str:
    """A time with its unit."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if held >= scale:
            return f"{held / scale:.4g} {unit}"
    return f"{held * 1e9:.4g} ns"

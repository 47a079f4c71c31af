"""A comparison as Markdown, for a comment on a change."""

from __future__ import annotations

from collections.abc import Iterable

from service.compare.deltas import Comparison
from service.compare.tables import lines_of_sides, tables

_NUMBERS = frozenset({"base", "head", "change", "%", "pJ", "cycles"})


def markdown(found: Comparison, *, is_whole: bool = False) -> str:
    """The headline, what was compared, and what differs as tables."""
    sides = "\n".join(f"- {_escaped(line)}" for line in lines_of_sides(found))
    parts = [f"**{_escaped(found.headline)}**", sides]
    for table in tables(found, is_whole=is_whole):
        rows = [
            _row(table.columns),
            _row("---:" if name in _NUMBERS and table.title != "placement" else "---"
                 for name in table.columns),
            *(_row(_escaped(row[name]) for name in table.columns) for row in table.rows),
        ]  # fmt: skip
        parts += [f"### {table.title}", "\n".join(rows)]
        if table.left_out:
            parts.append(f"and {table.left_out} more")
    return "\n\n".join(parts) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Names are anybody's: nothing of them is markup, and none ends its row."""
    for mark in "\\`*_[]<|":
        text = text.replace(mark, f"\\{mark}")
    return "".join(c if c.isprintable() else " " for c in text)

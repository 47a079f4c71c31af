"""A comparison as one page: no scripts, no requests, everything that differs."""

from __future__ import annotations

from html import escape

from service.compare.deltas import Comparison
from service.compare.tables import lines_of_sides, tables
from service.compare.words import span
from worker.compiler.errors import Detail
from worker.report.plots import paired_bars
from worker.report.style import page_of
from worker.report.tables import html_table

_MOST_BARS = 40


def page(found: Comparison) -> str:
    """All of `parts`, as a file."""
    title = f"{found.base.name} -> {found.head.name}"
    return page_of(title, [f"<h1>{escape(title)}</h1>", *parts_of(found)])


def parts_of(found: Comparison) -> list[str]:
    """The headline, what was compared, cycles by cause and by layer, and all tables whole."""
    parts = [
        f"<p><b>{escape(found.headline)}</b></p>",
        *(f"<p>{escape(line)}</p>" for line in lines_of_sides(found)),
    ]
    causes = [(row.cause, row.base_cycles, row.head_cycles) for row in found.causes]
    if causes:
        parts += ["<h2>What the cycles are spent on</h2>", paired_bars(causes, "cycles")]
    layers = [
        (span(row.nodes), row.base_cycles, row.head_cycles)
        for row in found.moved[:_MOST_BARS]
        if row.delta_cycles
    ]
    if layers:
        parts += ["<h2>Layers that moved most</h2>", paired_bars(layers, "cycles")]
    for table in tables(found, is_whole=True):
        rows = [dict[str, Detail](row) for row in table.rows]
        parts += [
            f"<h2>{escape(table.title.capitalize())}</h2>",
            html_table(table.columns, rows),
        ]
    return parts

"""The page's parts on strategies: what they registered to be shown of their summaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from worker.compiler.errors import Detail
from worker.compiler.strategies.sections import Figures, PageBlock, Table
from worker.report.sections import page_blocks, stored_summaries
from worker.report.tables import flat, html_table


def summaries_html(document: Mapping[str, Detail]) -> list[str]:
    """Headings and tables, strategy by strategy; why not, where one cannot be shown."""
    parts: list[str] = []
    for stored in stored_summaries(document):
        blocks = page_blocks(stored)
        if isinstance(blocks, str):
            parts += [f"<h2>{escape(stored.name)}</h2>", f'<p class="bad">{escape(blocks)}</p>']
        else:
            parts += blocks_html(blocks or ())
    return parts


def blocks_html(blocks: Sequence[PageBlock]) -> list[str]:
    """Blocks in order, each below its title."""
    parts: list[str] = []
    for block in blocks:
        if block.title:
            parts.append(f"<h2>{escape(block.title)}</h2>")
        match block:
            case Figures():
                parts.append(html_table(("figure", "value"), flat(dict(block.values))))
            case Table():
                parts.append(html_table(block.columns, block.rows))
            case _:
                parts.append(block.html)
    return parts

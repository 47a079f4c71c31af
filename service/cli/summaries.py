"""What strategies registered to be printed of their summaries in a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.cli.output import note, print_fields, print_table, print_text


def print_summaries(report: Mapping[str, Any]) -> None:
    """Print strategy by strategy; why not, on stderr, where one cannot be shown."""
    from worker.report.sections import stored_summaries, text_blocks

    for stored in stored_summaries(report):
        blocks = text_blocks(stored)
        if isinstance(blocks, str):
            note(blocks)
        else:
            print_blocks(blocks or ())


def print_blocks(blocks: Sequence[Any]) -> None:
    """Blocks in order, each below its title."""
    from worker.compiler.strategies.sections import Figures
    from worker.report.tables import flat

    for block in blocks:
        if block.title:
            print_text(f"{block.title}:")
        if isinstance(block, Figures):
            figures = {str(row["figure"]): row["value"] for row in flat(dict(block.values))}
            print_fields(figures, list(figures))
        else:
            print_table(block.columns, block.rows)

"""The page's part on GraphTurbo, as a golden file: one table row per line."""

from __future__ import annotations

from pathlib import Path

import pytest
from graphturbo_summaries import lone, stages

from worker.compiler.strategies.graphturbo.descriptor import Variant
from worker.compiler.strategies.graphturbo.report_blocks import page_blocks
from worker.compiler.strategies.graphturbo.report_summary import GraphTurboSummary
from worker.report.summary_page import blocks_html

GOLDEN = Path(__file__).parent / "report" / "graphturbo.html"


def test_the_fragment_keeps_its_text(request: pytest.FixtureRequest) -> None:
    summary = GraphTurboSummary.about((stages(calls=3), lone()), Variant.FULL)
    found = blocks_html(tuple(page_blocks(summary)))
    text = "\n".join(found).replace("<tr>", "\n<tr>") + "\n"
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")

"""The page's part on GraphTurbo, as a golden file: one table row per line."""

from __future__ import annotations

from pathlib import Path

import pytest
from graphturbo_summaries import lone, stages

from worker.compiler.strategies.graphturbo.descriptor import Variant
from worker.report.graphturbo import graphturbo_section
from worker.report.graphturbo_page import graphturbo_html

GOLDEN = Path(__file__).parent / "report" / "graphturbo.html"


def test_the_fragment_keeps_its_text(request: pytest.FixtureRequest) -> None:
    found = graphturbo_html(graphturbo_section((stages(calls=3), lone()), Variant.FULL))
    text = "\n".join(found).replace("<tr>", "\n<tr>") + "\n"
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")

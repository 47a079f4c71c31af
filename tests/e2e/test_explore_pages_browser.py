"""A range that is explored from a browser: made, followed, looked at, by mouse and by keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_fixtures import Serve
from browsing import NARROW, WIDE, chromium, visit

from service.jobs import exploring

EXAMPLE = Path(__file__, "../../../service/cli/example/tiny_cnn.onnx").resolve()
FIELD = "/levels/GBUF/capacity_bytes"
PARTS = 2
"""Machines of a part."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def pictures(pytestconfig: pytest.Config) -> str | None:
    folder = pytestconfig.getoption("--screenshots")
    return None if folder is None else str(folder)


def test_a_range_is_explored(
    browser: Any, serve: Serve, monkeypatch: pytest.MonkeyPatch, pictures: str | None
) -> None:
    monkeypatch.setattr(exploring, "MACHINES_OF_PART", PARTS)
    served = serve("worker.job.job:run_job", memory_base_bytes=2 << 30)
    with visit(browser, served.url) as seen:
        page = seen.page
        page.goto("/ui/sweeps/new?base=kapla-edge")
        page.locator("[name=model-file]").set_input_files(EXAMPLE)
        page.get_by_label("Field", exact=True).fill(FIELD)
        page.get_by_label("Values", exact=True).fill("16,16KiB..64KiB")
        winners = page.get_by_label("Winners of each model")
        assert not winners.is_visible()
        page.get_by_role("radio", name="Every machine", exact=True).focus()
        page.keyboard.press("ArrowDown")  # to the other way, by keys
        winners.wait_for()
        assert seen.violations() == []
        winners.fill("21")
        page.get_by_role("button", name="Start").click()
        page.locator("[name=winners][aria-invalid=true]").wait_for()
        winners.fill("1")
        for name in ("on-chip bytes", "off-chip bandwidth"):
            page.get_by_role("checkbox", name=name).uncheck()
        page.get_by_label("Verify").select_option("none")
        page.get_by_label("Strategy").select_option("naive")
        seen.said.clear()  # the browser says of itself that a request was refused
        page.get_by_role("button", name="Start").click()
        page.wait_for_url("**/ui/sweeps/swp_*")
        page.locator("#pareto .guess").first.wait_for(timeout=120_000)  # as soon as a part ends
        page.locator(".state-succeeded").wait_for(timeout=120_000)
        page.locator("#counts", has_text="3 with results, 4 machines estimated.").wait_for()

        sweep = page.url.rsplit("/", 1)[1].split("#")[0]
        found: Any = served.client.sweep(sweep)
        items: Any = served.client.sweep_results(sweep)["items"]
        assert found["explore"]["costs"] == ["latency_s", "energy_pj", "area_mm2"]
        guesses = [row for item in items for row in item["estimates"]]
        drawn = [row for row in guesses if row["latency_s"] is not None]
        assert [row["values"] for row in guesses if row["latency_s"] is None] == [[16]]
        page.locator("#pareto rect.winner").wait_for()
        assert page.locator("#pareto circle.guess").count() == len(drawn) == 3
        best = sum(row["is_on_front"] for row in guesses)
        assert page.locator("#pareto circle.guess.best").count() == best
        assert page.locator("#pareto rect.winner").count() == 1
        assert page.locator("#pareto line.off").count() == 1
        rows = page.locator("#items tbody tr[data-row]")
        assert rows.count() == 5
        assert rows.filter(has_text="estimated").count() == 4
        assert rows.filter(has_text=re.compile("needs .* has 16")).count() == 1
        page.locator("#cost").select_option("area_mm2")
        page.locator("#pareto text", has_text="mm²").first.wait_for()
        assert page.locator("#pareto rect.winner").count() == 1

        page.locator("#pareto").focus()
        page.keyboard.press("Home")
        spoken = [page.locator("#pointed").inner_text()]
        for _ in range(3):
            page.keyboard.press("ArrowRight")
            spoken.append(page.locator("#pointed").inner_text())
        assert sum("estimated" in text for text in spoken) == 3
        assert sum("simulated" in text for text in spoken) == 1
        page.keyboard.press("Enter")
        page.locator("#item-title:focus").wait_for()
        page.keyboard.press("Escape")
        page.locator("#pareto rect.winner").click()
        panel = page.locator(".panel.item")
        panel.locator("dt", has_text="Latency, estimated").wait_for()
        assert panel.get_by_role("link", name="Job", exact=True).is_visible()
        seen.keep(pictures, "explore")
        page.reload()
        page.locator(".panel.item", has_text="Latency, estimated").wait_for()
        page.keyboard.press("Escape")
        page.locator("#pareto circle.guess").first.click()
        page.locator("#item-title", has_text="Estimate ").wait_for()
        seen.check()
    for width, scheme in ((WIDE, "light"), (WIDE, "dark"), (NARROW, "light")):
        with visit(browser, served.url, width=width, scheme=scheme) as seen:
            seen.page.goto(f"/ui/sweeps/{sweep}#item=2")
            seen.page.locator(".panel.item", has_text="Latency, estimated").wait_for()
            assert seen.violations() == []
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
            seen.check()

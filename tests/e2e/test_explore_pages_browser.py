"""A range that is explored from a browser: made, followed, looked at, by mouse and by keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_fixtures import Serve
from browsing import NARROW, WIDE, chromium, visit
from explored_ranges import estimate_all

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


def rings(page: Any) -> list[tuple[float, float]]:
    """Where estimates that are not the best are drawn, by latency: all in one shape."""
    shape = page.locator("#pareto .crowd")
    text = shape.get_attribute("d") if shape.count() else ""
    found = re.findall(r"M([\d.]+) ([\d.]+)a4 ", text)
    return [(float(x) + 4, float(y)) for x, y in found]


def test_of_many_estimates_the_one_that_is_meant_is_chosen(browser: Any, serve: Serve) -> None:
    served = serve(worker=False)
    body = {
        "models": [served.model()["id"]], "base": "kapla-edge", "explore": {"winners": 0},
        "vary": [f"{FIELD}=1024,2048,4096,8192", "clock_hz=100M,200M,300M,400M,500M"],
    }  # fmt: skip
    sweep = served.client.submit_sweep(body)["id"]
    assert estimate_all(served, sweep) == 20
    shown: Any = served.client.sweep_results(sweep)["items"]
    guesses = sorted((row for item in shown for row in item["estimates"]), key=by_latency)
    plain = [row for row in guesses if not row["is_on_front"]]
    with visit(browser, served.url) as seen:
        page = seen.page
        page.goto(f"/ui/sweeps/{sweep}")
        page.locator("#pareto .crowd").wait_for()
        places = rings(page)
        assert len(places) == len(plain) >= 3
        page.locator("#pareto").scroll_into_view_if_needed()
        box = page.locator("#pareto svg").bounding_box()
        scale = box["width"] / page.locator("#pareto svg").evaluate(
            "svg => svg.viewBox.baseVal.width"
        )
        for k in (0, len(plain) // 2, len(plain) - 1):
            x, y = places[k]
            page.mouse.click(box["x"] + (x + 1) * scale, box["y"] + (y - 1) * scale)
            said = [f"{value:,}" for value in plain[k]["values"]]
            for text in said:
                page.locator(".panel.item dd", has_text=re.compile(f"^{text}$")).first.wait_for()
            page.keyboard.press("Escape")
            page.locator("#pareto").scroll_into_view_if_needed()
            box = page.locator("#pareto svg").bounding_box()
        seen.check()


def by_latency(row: dict[str, Any]) -> float:
    return float(row["latency_s"])


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
        best = sum(row["is_on_front"] for row in guesses)
        assert len(drawn) == 3
        assert len(rings(page)) == len(drawn) - best
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

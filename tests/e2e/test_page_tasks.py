"""No task of a page is longer than 50 ms, on a processor like the one that this was measured on.

With nothing else running: a task that waits for the processor has the page wait as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from api_fixtures import Serve
from browsing import chromium, visit
from explored_ranges import estimate_all
from long_tables import MOST_ROWS, many_layers, scrolled

FIELD = "/levels/GBUF/capacity_bytes"
LONG_MS = 50
SORTED_MS = 40
"""What `_SORTING` took, 34 to 45, where the longest tasks of these pages took 21 to 30 ms."""
_SORTING = """() => {
  const took = [];
  for (let k = 0; k < 5; k++) {
    const numbers = Array.from({length: 200000}, (_, i) => (i * 7919) % 200003);
    const began = performance.now();
    numbers.sort((a, b) => a - b);
    took.push(performance.now() - began);
  }
  return Math.min(...took);
}"""
pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def longest_allowed(browser: Any, url: str) -> float:
    """50 ms, and longer by as much as this machine's scripts are slower than that one's."""
    with visit(browser, url) as seen:
        return LONG_MS * max(1.0, float(seen.page.evaluate(_SORTING)) / SORTED_MS)


def test_scrolling_through_a_long_table_holds_nobody_up(browser: Any, serve: Serve) -> None:
    url, job = many_layers(serve)
    longest: list[float] = []
    allowed = longest_allowed(browser, url)
    # What else a machine does (caches that others emptied, a clock turned down) only ever adds to
    # a task's time: what the page itself needs is in the best of a few visits.
    while len(longest) < 3 and min(longest, default=allowed + 1.0) > allowed:
        with visit(browser, url) as seen:
            with seen.traced() as tasks:
                scrolled(seen, job)
            assert len(tasks) > 100
            longest.append(max(tasks))
    assert min(longest) <= allowed, (longest, allowed)


def test_a_thousand_items_hold_nobody_up(browser: Any, serve: Serve) -> None:
    """Read, drawn, sorted and filtered: no task of the page's is longer than 50 ms, and few rows
    are in the document."""
    served = serve(worker=False)
    body = {
        "models": [served.model()["id"]], "base": "kapla-edge",
        "vary": [f"{FIELD}={','.join(map(str, range(1024, 1064)))}",
                 f"clock_hz={','.join(f'{n}M' for n in range(500, 525))}"],
    }  # fmt: skip
    sweep = served.client.submit_sweep(body)["id"]
    allowed = longest_allowed(browser, served.url)
    longest: list[float] = []
    while len(longest) < 3 and min(longest, default=allowed + 1.0) > allowed:
        with visit(browser, served.url) as seen:
            page = seen.page
            with seen.traced() as tasks:
                page.goto(f"/ui/sweeps/{sweep}")
                page.locator("#counted", has_text=re.compile("^1000$")).wait_for()
                page.locator("#items thead").get_by_role("button", name="capacity").click()
                page.locator("#filter").fill("1063")
                page.locator("#counted", has_text="25 of 1000").wait_for()
            assert page.locator("tr").count() <= MOST_ROWS
            longest.append(max(tasks))
    assert min(longest) <= allowed, (longest, allowed)


def test_thousands_of_estimates_hold_nobody_up(browser: Any, serve: Serve) -> None:
    """A range of machines that has been estimated: drawn, gone through by keys, one chosen."""
    served = serve(worker=False)
    sizes, clocks = range(1024, 1124), range(500, 540)
    body = {
        "models": [served.model()["id"]], "base": "kapla-edge",
        "vary": [f"{FIELD}={','.join(map(str, sizes))}",
                 f"clock_hz={','.join(f'{n}M' for n in clocks)}"],
        "explore": {"winners": 0},
    }  # fmt: skip
    sweep = served.client.submit_sweep(body)["id"]
    estimated = estimate_all(served, sweep)
    assert estimated == len(sizes) * len(clocks) == 4000
    allowed = longest_allowed(browser, served.url)
    longest: list[float] = []
    while len(longest) < 3 and min(longest, default=allowed + 1.0) > allowed:
        with visit(browser, served.url) as seen:
            page = seen.page
            with seen.traced() as tasks:
                page.goto(f"/ui/sweeps/{sweep}")
                page.locator("#counted", has_text=re.compile("^4000$")).wait_for()
                page.locator("#pareto .crowd").wait_for()
                page.locator("#pareto").focus()
                for key in ("Home", "ArrowRight", "ArrowRight", "Enter"):
                    page.keyboard.press(key)
                page.locator("#item-title", has_text="Estimate").wait_for()
                page.locator("#cost").select_option("on_chip_bytes")
                page.locator("#filter").fill("1063")
                page.locator("#counted", has_text="40 of 4000").wait_for()
            assert page.locator("tr").count() <= MOST_ROWS
            assert page.locator("#pareto *").count() < 300
            longest.append(max(tasks))
    assert min(longest) <= allowed, (longest, allowed)

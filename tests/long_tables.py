"""A job with more layers than a document should have rows, and a way through its table."""

from __future__ import annotations

from api_fixtures import Serve
from browsing import Visit
from page_payloads import LAYERS

MOST_ROWS = 200


def many_layers(serve: Serve) -> tuple[str, str]:
    """(address of a server, a job with many layers that has ended)."""
    served = serve("page_payloads:many_layers")
    job = served.submit()["id"]
    assert served.ended(job)["state"] == "succeeded"
    return served.url, job


def scrolled(seen: Visit, job: str) -> None:
    """Open the page of a job and go through its table."""
    page = seen.page
    page.goto(f"/ui/jobs/{job}")
    page.locator("#timeline canvas").wait_for()
    page.locator("#graph canvas").wait_for()
    for name in ("Show the costliest", "Zoom out", "Show all of the graph"):
        page.locator("#graph").get_by_role("button", name=name).click()
    page.locator("#graph").focus()
    for key in ("Home", "ArrowUp", "ArrowUp", "-", "0"):
        page.keyboard.press(key)
    assert page.locator("#counted").inner_text() == str(LAYERS)
    height = page.evaluate("document.querySelector('#layers').scrollHeight")
    assert height > 1400 * 28, "there is room for all rows"
    found: set[str] = set()
    for share in range(0, 101, 4):
        counts = page.evaluate(
            """async (top) => {
              document.querySelector('#layers').scrollTop = top;
              await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
              const rows = [...document.querySelectorAll('#layers tr[data-row]')];
              return [document.querySelectorAll('tr').length, rows.map((row) => row.dataset.row)];
            }""",
            height * share / 100,
        )
        assert counts[0] <= MOST_ROWS
        found |= set(counts[1])
    assert {"0", str(LAYERS - 1)} <= found
    page.locator("#layers thead").get_by_role("button", name="Cycles").click()
    page.locator("#filter").fill("conv12")

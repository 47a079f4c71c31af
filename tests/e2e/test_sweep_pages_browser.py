"""The pages of sweeps in a browser: made, followed, canceled, resumed, looked at, by mouse and by
keys, against servers that run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_fixtures import Serve, onnx_bytes
from browsing import NARROW, WIDE, chromium, visit

from service.client import Client

EXAMPLE = Path(__file__, "../../../service/cli/example/tiny_cnn.onnx").resolve()
FIELD = "/levels/GBUF/capacity_bytes"
KIB = 1024


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def swept(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A server as users start it, and a sweep of eight machines that has ended."""
    del browser  # without one, nothing needs to be compiled
    folder = tmp_path_factory.mktemp("sweeps")
    server = subprocess.Popen(
        [sys.executable, "-m", "service.cli.main", "serve", "--port=0", f"--data-dir={folder}"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout
        url = server.stdout.readline().strip()
        with Client(url) as client:
            body = {
                "models": [client.upload_model(EXAMPLE)["id"]], "base": "kapla-edge",
                "vary": [f"{FIELD}=x0.5,x1,x2,x4", "DRAM.read_bytes_per_cycle=x1,x2"],
                "options": {"strategy": "naive", "verify": "none"}, "label": "buffers",
            }  # fmt: skip
            sweep = str(client.submit_sweep(body)["id"])
            assert client.wait_sweep(sweep, timeout_s=300)["state"] == "succeeded"
        yield url, sweep
    finally:
        server.terminate()
        server.wait(timeout=60)


@pytest.fixture
def pictures(pytestconfig: pytest.Config) -> str | None:
    folder = pytestconfig.getoption("--screenshots")
    return None if folder is None else str(folder)


def items_of(url: str, sweep: str) -> list[dict[str, Any]]:
    with Client(url) as client:
        found: Any = client.sweep_results(sweep)["items"]
    return list(found)


def test_which_machine_and_what_one_field_changes(
    browser: Any, swept: tuple[str, str], pictures: str | None
) -> None:
    """From the list to a comparison of two items in four clicks."""
    url, sweep = swept
    items = items_of(url, sweep)
    with visit(browser, url) as seen:
        page = seen.page
        page.goto("/ui/")
        seen.click(page.get_by_role("link", name="Sweeps", exact=True))
        seen.keep(pictures, "sweeps")
        seen.click(page.get_by_role("link", name="buffers"))
        page.locator("#items tbody tr[data-row]").first.wait_for()
        assert page.locator("#counts").inner_text() == "8 with results."
        best = {item["number"] for item in items if item["is_on_front"]}
        drawn = page.locator("#pareto circle.best")
        drawn.first.wait_for()
        assert {int(n) for n in drawn.evaluate_all("c => c.map(p => p.dataset.item)")} == best
        assert page.locator("#pareto circle").count() == len(items)
        in_table = page.locator("#items tbody tr[data-row]", has_text=re.compile("front"))
        assert {int(n) for n in in_table.evaluate_all("r => r.map(p => p.dataset.row)")} == best
        page.locator("#cost").select_option("on_chip_bytes")
        number = min(best)
        seen.click(page.locator(f'#pareto circle[data-item="{number}"]'))
        panel = page.locator(f'.panel.item[data-item="{number}"]')
        panel.wait_for()
        one = items[number]
        others = {
            o["number"] for o in items
            if sum(a != b for a, b in zip(o["values"], one["values"], strict=True)) == 1
        }  # fmt: skip
        rows = panel.locator("#what-if tbody tr")
        assert rows.count() == len(others) == 4
        seen.keep(pictures, "sweep")
        other = items[max(others)]
        row = rows.filter(has_text=f"compare with item {other['number']}")
        percent = 100 * (other["energy_pj"] / one["energy_pj"] - 1)
        assert f"({percent:+.1f} %)" in row.inner_text()
        seen.click(row.get_by_role("link"))
        page.wait_for_url("**/ui/compare?*")
        assert seen.clicks == 4
        assert page.locator(".compared table").first.is_visible()
        page.go_back()
        page.locator(f'.panel.item[data-item="{number}"]').wait_for()
        page.get_by_role("button", name="Compare others with this").click()
        page.locator(f"#items tr[data-row='{other['number']}']").click()
        link = page.get_by_role("link", name=f"Compare with item {number}", exact=True)
        assert link.get_attribute("href").endswith(f"head={sweep}:{other['number']}")
        seen.check()


def test_the_same_by_keys(browser: Any, swept: tuple[str, str]) -> None:
    """Through the plot and through the table; what is pointed at is said."""
    url, sweep = swept
    items = sorted(items_of(url, sweep), key=lambda item: (item["latency_s"], item["energy_pj"]))
    with visit(browser, url) as seen:
        page = seen.page
        page.goto(f"/ui/sweeps/{sweep}")
        page.locator("#pareto circle").first.wait_for()
        for _ in range(200):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.id") == "pareto":
                break
        assert page.evaluate("document.activeElement.id") == "pareto"
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        said = page.locator("#pointed").inner_text()
        assert all(f"{value}" in said for value in items[1]["values"])
        page.keyboard.press("ArrowDown")
        assert "on the front" in page.locator("#pointed").inner_text()
        page.keyboard.press("Enter")
        page.locator("#item-title:focus").wait_for()
        page.keyboard.press("Escape")
        page.locator(".panel.item").wait_for(state="detached")
        page.locator("#items").focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.locator(".panel.item[data-item='1']").wait_for()
        assert page.url.endswith("#item=1")
        page.reload()
        page.locator(".panel.item[data-item='1']").wait_for()
        page.locator("#items thead").get_by_role("button", name="Latency").click()
        first = page.locator("#items tbody tr[data-row]").first
        assert float(first.get_attribute("data-row")) in {
            item["number"] for item in items if item["latency_s"] == items[-1]["latency_s"]
        }
        page.locator("#filter").fill("front")
        best = sum(item["is_on_front"] for item in items)
        assert page.locator("#counted").inner_text() == f"{best} of {len(items)}"
        seen.check()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_everybody_can_use_it(
    browser: Any, swept: tuple[str, str], width: int, scheme: str, pictures: str | None
) -> None:
    url, sweep = swept
    with visit(browser, url, width=width, scheme=scheme) as seen:
        page = seen.page
        for name, place in (
            ("sweeps", "/ui/sweeps"), ("sweep", f"/ui/sweeps/{sweep}#item=0"),
            ("sweep-new", "/ui/sweeps/new?base=kapla-edge"),
        ):  # fmt: skip
            page.goto(place)
            if name == "sweep":
                page.locator("#what-if").wait_for()
            assert seen.violations() == [], name
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            seen.keep(pictures, f"{name}-{width}-{scheme}")
        seen.check()


@pytest.mark.parametrize("page", ["new", "sweep_new"])
def test_nothing_is_sent_before_the_page_can(browser: Any, serve: Serve, page: str) -> None:
    """The browser's own way of sending a form would lose what was chosen."""
    with visit(browser, serve("figured").url) as seen:
        seen.page.route(f"**/{page}.js", lambda route: route.abort())
        seen.page.goto({"new": "/ui/new", "sweep_new": "/ui/sweeps/new"}[page])
        assert seen.page.locator("#new button.main").is_disabled()


def test_a_sweep_is_made_in_the_browser(browser: Any, serve: Serve) -> None:
    """What is refused is said at its field; then it is followed as its items end."""
    served = serve("figured")
    served.model(onnx_bytes(b"one"), "one")
    with visit(browser, served.url) as seen:
        page = seen.page
        page.goto("/ui/hardware/kapla-edge")
        page.get_by_role("link", name="Vary it").click()
        page.get_by_role("button", name="Start").click()
        page.locator("fieldset[aria-invalid=true][data-pointer='/models']").wait_for()
        page.get_by_role("checkbox", name="one").check()
        page.locator("[name=model-file]").set_input_files(
            {"name": "two.onnx", "mimeType": "", "buffer": onnx_bytes(b"two")}
        )
        page.locator("#fields option").first.wait_for(state="attached")
        known = page.locator("#fields option").evaluate_all("o => o.map(p => p.value)")
        assert FIELD in known
        assert "/schema_version" not in known
        page.get_by_role("button", name="Vary a field").click()
        fields = page.get_by_label("Field", exact=True)
        values = page.get_by_label("Values", exact=True)
        fields.nth(0).fill(FIELD)
        values.nth(0).fill("8KiB,16KiB")
        fields.nth(1).fill("/levels/GBUF/wheels")
        values.nth(1).fill("x1,x2")
        page.get_by_role("button", name="Start").click()
        page.locator(".field-error", has_text="wheels").wait_for()
        assert fields.nth(1).get_attribute("aria-invalid") == "true"
        assert fields.nth(0).get_attribute("aria-invalid") is None
        assert page.evaluate("document.activeElement.value") == "/levels/GBUF/wheels"
        said = fields.nth(1).get_attribute("aria-describedby")
        assert "has no 'wheels'" in page.locator(f"#{said}").inner_text()
        assert "TW-OPT-001" in page.locator("#refused").inner_text()
        page.get_by_role("button", name="Do not vary this field").nth(1).click()
        page.locator("[name=label]").fill("by hand")
        seen.said.clear()  # the browser says of itself that requests were refused
        page.keyboard.press("Enter")
        page.wait_for_url("**/ui/sweeps/swp_*")
        page.locator("#counts", has_text="4 with results.").wait_for()
        page.locator(".state-succeeded").wait_for()  # it loads itself again when all has ended
        page.locator("#pareto circle").nth(1).wait_for()
        page.locator("#model").select_option(label="two")
        assert page.locator("#pareto circle").count() == 2
        page.get_by_role("link", name="Jobs", exact=True).last.click()
        assert page.locator("#jobs tbody tr").count() == 4
        seen.check()


def test_a_sweep_is_followed_canceled_and_resumed(
    browser: Any, serve: Serve, tmp_path: Path
) -> None:
    """Without being loaded again: partial results, the front as it grows, what failed and why."""
    gates = tmp_path / "gates"
    (gates / f"closed-{64 * KIB}").touch()
    (gates / f"refuse-{16 * KIB}").touch()
    served = serve("figured")
    body = {
        "models": [served.model()["id"]], "base": "kapla-edge",
        "vary": [f"{FIELD}=8KiB,16KiB,32KiB,64KiB"],
    }  # fmt: skip
    sweep = served.client.submit_sweep(body)["id"]
    with visit(browser, served.url) as seen:
        page = seen.page
        page.goto("/ui/sweeps")
        page.locator(".state-running").wait_for()
        page.goto(f"/ui/sweeps/{sweep}")
        counts = page.locator("#counts")
        page.locator("#counts", has_text="2 with results, 1 running, 1 failed").wait_for()
        assert "left" in counts.inner_text()
        page.locator("#pareto circle.best").nth(1).wait_for()
        page.locator("#items tr[data-row='1']", has_text="TW-MODEL-004").click()
        assert "the graph has a cycle" in page.locator(".panel.item .alert").inner_text()
        page.get_by_role("button", name="Cancel").click()
        page.locator(".state-canceled").wait_for()
        page.locator("#counts", has_text="2 with results, 1 failed, 1 canceled.").wait_for()
        page.locator(".panel.item[data-item='1']").wait_for()
        for gate in gates.iterdir():
            gate.unlink()
        page.get_by_role("button", name="Resume").click()
        page.locator("#counts", has_text="4 with results.").wait_for()
        page.locator(".state-succeeded").wait_for()
        assert page.get_by_role("button", name="Resume").count() == 0
        with page.expect_download() as told:
            page.get_by_role("link", name="CSV").click()
        assert told.value.suggested_filename == f"{sweep}.csv"
        assert len(Path(told.value.path()).read_text().splitlines()) == 5
        seen.check()


def test_a_cancel_that_is_refused_is_shown(browser: Any, serve: Serve) -> None:
    served = serve("figured", worker=False)
    body = {"models": [served.model()["id"]], "hardware": ["kapla-edge"]}
    sweep = served.client.submit_sweep(body)["id"]
    with visit(browser, served.url) as seen:
        page = seen.page
        page.goto(f"/ui/sweeps/{sweep}")
        page.locator("#counts", has_text="1 waiting").wait_for()
        # The server is right about the page's own button: another page of it was faster.
        page.route("**/cancel", lambda route: route.continue_(url=route.request.url + "led"))
        page.get_by_role("button", name="Cancel").click()
        page.locator("#link .alert").wait_for()
        assert "TW-SVC-001" in page.locator("#link").inner_text()

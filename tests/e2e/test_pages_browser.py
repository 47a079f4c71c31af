"""The pages in a browser, against servers that run: a person's way through them, by mouse and by
keys, in both schemes and at both widths."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from api_fixtures import Serve
from browsing import NARROW, WIDE, chromium, visit
from long_tables import many_layers, scrolled
from page_payloads import HOSTILE, LAYERS

from service.client import Client
from service.jobs import keys
from service.keys import Scope

EXAMPLE = Path(__file__, "../../../service/cli/example/tiny_cnn.onnx").resolve()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@dataclass(frozen=True)
class Running:
    """A server as users start it, with two jobs that have ended."""

    url: str
    jobs: tuple[str, str]
    """By `naive` and by `graphturbo`."""


@pytest.fixture(scope="module")
def running(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    del browser  # without one, nothing needs to be compiled
    folder = tmp_path_factory.mktemp("pages")
    server = subprocess.Popen(
        [sys.executable, "-m", "service.cli.main", "serve", "--port=0", f"--data-dir={folder}"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout
        url = server.stdout.readline().strip()
        with Client(url) as client:
            model = client.upload_model(EXAMPLE)
            made = []
            for strategy in ("naive", "graphturbo"):
                options = {"strategy": strategy, "verify": "none"}
                body = {"model": model["id"], "hardware": "kapla-edge", "options": options,
                        "label": strategy}  # fmt: skip
                job = client.post("/v1/jobs", body)["id"]
                assert client.wait(job, timeout_s=300)["state"] == "succeeded"
                made.append(job)
        yield Running(url, (made[0], made[1]))
    finally:
        server.terminate()
        server.wait(timeout=60)


@pytest.fixture
def pictures(pytestconfig: pytest.Config) -> str | None:
    folder = pytestconfig.getoption("--screenshots")
    return None if folder is None else str(folder)


def costliest(running: Running) -> dict[str, Any]:
    """By the report itself: `naive` has a row for every kernel."""
    with Client(running.url) as client:
        rows = client.get(f"/v1/jobs/{running.jobs[0]}/report")["layers"]
    return max(rows, key=lambda row: row["cycles_total"])


def test_which_layer_why_and_what_would_help(
    browser: Any, running: Running, pictures: str | None
) -> None:
    """Three clicks from the list of jobs."""
    most = costliest(running)
    with visit(browser, running.url) as seen:
        page = seen.page
        page.goto("/ui/")
        seen.keep(pictures, "jobs")
        seen.click(page.locator(f'a[href="/ui/jobs/{running.jobs[0]}"]'))
        page.locator("#layers tbody tr[data-row]").first.wait_for()
        page.locator("#timeline canvas").wait_for()
        page.locator("#graph canvas").wait_for()
        seen.click(page.locator(".top [data-layer]").first)
        panel = page.locator(".panel.layer")
        assert most["onnx_nodes"][0] in panel.locator("h2").inner_text()
        assert f"{most['cycles_total']:,}" in panel.inner_text()
        why = panel.locator(".legend tbody tr").first.inner_text()
        first = max(most["causes"], key=lambda cause: cause["cycles"])
        assert first["cause"] in why
        assert f"{first['cycles']:,}" in why
        seen.click(panel.get_by_role("button", name="What would help"))
        helps = page.locator("#help table.helps tbody tr")
        helps.first.wait_for()
        assert seen.clicks == 3
        with_more = helps.first.inner_text()
        assert "×" in with_more
        panel.get_by_role("button", name="Loop nest").click()
        page.locator("#nest .nest code").first.wait_for()
        seen.keep(pictures, "job")
        seen.check()


def test_rows_and_the_timeline_lead_to_each_other(browser: Any, running: Running) -> None:
    with Client(running.url) as client:
        rows = client.get(f"/v1/jobs/{running.jobs[0]}/report")["layers"]
    total = rows[-1]["end_cycle"]
    most = costliest(running)
    with visit(browser, running.url) as seen:
        page = seen.page
        page.goto(f"/ui/jobs/{running.jobs[0]}")
        canvas = page.locator("#timeline canvas")
        canvas.wait_for()
        box = canvas.bounding_box()
        lanes = 92  # the names of lanes stand before them
        middle = (most["start_cycle"] + most["end_cycle"]) / 2 / total
        canvas.click(position={"x": lanes + middle * (box["width"] - lanes), "y": 30})
        title = page.locator("#layer-title")
        assert most["onnx_nodes"][0] in title.inner_text()
        chosen = page.locator('#layers tr[aria-selected="true"]')
        assert chosen.get_attribute("data-row") == str(most["index"])
        assert page.url.endswith(f"#layer={most['index']}")
        page.locator("#layers tr[data-row='0']").click()
        page.locator(".panel.layer[data-row='0']").wait_for()
        page.keyboard.press("Escape")
        title.wait_for(state="detached")
        page.goto(f"/ui/jobs/{running.jobs[0]}#layer=2")
        page.reload()
        page.locator(".panel.layer[data-row='2']").wait_for()
        seen.check()


def test_the_graph_and_the_table_lead_to_each_other(
    browser: Any, running: Running, pictures: str | None
) -> None:
    """By mouse and by keys; places are those that the server gives."""
    with Client(running.url) as client:
        graph: Any = json.loads(client.raw(f"/ui/jobs/{running.jobs[0]}/graph"))
    boxes = {box["row"]: box for box in graph["nodes"]}
    assert len(graph["edges"]) >= len(boxes) - 1
    most = costliest(running)
    with visit(browser, running.url) as seen:
        page = seen.page
        page.goto(f"/ui/jobs/{running.jobs[0]}")
        canvas = page.locator("#graph canvas")
        canvas.wait_for()
        size = canvas.bounding_box()
        # All of it is shown: the middle of the drawing is that of the canvas.
        scale = min(size["width"] / graph["width"], size["height"] / graph["height"], 1)
        box = boxes[most["index"]]
        x = (box["x"] - graph["width"] / 2) * scale + size["width"] / 2
        y = (box["y"] + graph["box"][1] / 2 - graph["height"] / 2) * scale + size["height"] / 2
        canvas.click(position={"x": x, "y": y})
        page.locator(f".panel.layer[data-row='{most['index']}']").wait_for()
        chosen = page.locator('#layers tr[aria-selected="true"]')
        assert chosen.get_attribute("data-row") == str(most["index"])
        seen.keep(pictures, "graph")
        page.keyboard.press("Escape")
        page.locator(".panel.layer").wait_for(state="detached")
        page.locator("#graph").focus()
        page.keyboard.press("Home")
        says = page.locator("#graph-says")
        page.locator("#graph-says", has_text=f"{most['cycles_total']:,} cycles").wait_for()
        first = says.inner_text()
        page.keyboard.press("ArrowUp")
        page.wait_for_function(
            "before => document.getElementById('graph-says').textContent !== before", arg=first
        )
        [above] = {e["from"] for e in graph["edges"] if e["to"] == most["index"]}
        assert boxes[above]["name"] in says.inner_text()
        page.keyboard.press("Enter")
        page.locator(f".panel.layer[data-row='{above}']").wait_for()
        page.locator("#layers tr[data-row='0']").click()
        page.locator(".panel.layer[data-row='0']").wait_for()
        page.locator("#graph-says", has_text=boxes[0]["name"]).wait_for()
        seen.check()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_report_is_one_file_that_loads_nothing(
    browser: Any, running: Running, width: int, scheme: str, tmp_path: Path, pictures: str | None
) -> None:
    """With its causes, what twice of each would bring, and a timeline; from a disk, offline."""
    path = tmp_path / "report.html"
    with Client(running.url) as client:
        rows: Any = client.get(f"/v1/jobs/{running.jobs[0]}/artifacts")
        [stored] = [row for row in rows["items"] if row["name"] == "report_html"]
        path.write_bytes(client.raw(f"/v1/artifacts/{stored['sha256']}"))
        summary: Any = client.get(f"/v1/jobs/{running.jobs[0]}/report")["summary"]
    assert path.stat().st_size <= 2 << 20
    with visit(browser, path.as_uri(), width=width, scheme=scheme) as seen:
        page = seen.page
        page.goto(path.as_uri())
        heading = page.locator("h2", has_text="What would help").first
        table = heading.locator("xpath=following-sibling::div[1]//table")
        first = summary["causes"][0]
        row = table.locator("tr", has_text=first["cause"]).first.inner_text()
        total = summary["latency_cycles"]
        assert f"{first['cycles']:,}" in row
        assert f"{total / (total - first['cycles'] / 2):.3f}x" in row
        assert page.get_by_role("img", name="Timeline of layers").is_visible()
        colour = "getComputedStyle(document.querySelector('svg rect.cause-engine')).fill"
        assert page.evaluate(colour) == "rgb(47, 111, 179)", "the sheet is let in"
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 21, 26)"}[scheme]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert seen.violations() == []
        seen.keep(pictures, f"report-{width}-{scheme}")
        seen.check()


def test_a_job_without_a_graph_says_so(browser: Any, serve: Serve) -> None:
    served = serve("figured")
    job = served.submit()["id"]
    served.ended(job)
    with visit(browser, served.url) as seen:
        page = seen.page
        page.goto(f"/ui/jobs/{job}")
        assert page.locator("#graph").count() == 0, "there is no report"
    refused = served.http.get(f"/ui/jobs/{job}/graph", headers={"Accept": "application/json"})
    assert refused.status_code == 404
    assert refused.json()["code"] == "TW-SVC-001"


def test_the_table_sorts_and_filters(browser: Any, running: Running) -> None:
    with Client(running.url) as client:
        rows = client.get(f"/v1/jobs/{running.jobs[0]}/report")["layers"]
    with visit(browser, running.url) as seen:
        page = seen.page
        page.goto(f"/ui/jobs/{running.jobs[0]}")
        body = page.locator("#layers tbody tr[data-row]")
        body.first.wait_for()
        page.locator("#layers thead").get_by_role("button", name="Cycles").click()
        assert page.locator("#layers th[aria-sort=descending]").inner_text().startswith("Cycles")
        wanted = max(rows, key=lambda row: (row["cycles_total"], row["index"]))
        assert body.first.get_attribute("data-row") == str(wanted["index"])
        page.locator("#layers thead").get_by_role("button", name="Cycles").click()
        wanted = min(rows, key=lambda row: (row["cycles_total"], row["index"]))
        assert body.first.get_attribute("data-row") == str(wanted["index"])
        page.locator("#filter").fill("maxpool")
        pools = [row for row in rows if "MaxPool" in row["op_type"]]
        assert page.locator("#counted").inner_text() == f"{len(pools)} of {len(rows)}"
        assert {int(n) for n in body.evaluate_all("rows => rows.map(row => row.dataset.row)")} == {
            row["index"] for row in pools
        }
        seen.check()


def test_all_of_it_by_keys(browser: Any, running: Running) -> None:
    with visit(browser, running.url) as seen:
        page = seen.page
        page.goto(f"/ui/jobs/{running.jobs[0]}")
        page.locator("#layers tbody tr[data-row]").first.wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        for _ in range(200):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.id") == "layers":
                break
        assert page.evaluate("document.activeElement.id") == "layers"
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.locator(".panel.layer[data-row='2']").wait_for()
        page.locator("#layer-title:focus").wait_for()
        page.keyboard.press("Escape")
        page.locator(".panel.layer").wait_for(state="detached")
        seen.check()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_everybody_can_use_it(
    browser: Any, running: Running, width: int, scheme: str, pictures: str | None
) -> None:
    """axe finds nothing serious, and nothing is wider than the window."""
    naive, other = running.jobs
    with visit(browser, running.url, width=width, scheme=scheme) as seen:
        page = seen.page
        for name, place in (
            ("jobs", "/ui/"), ("new", "/ui/new"), ("login", "/ui/login"), ("pick", "/ui/compare"),
            ("compare", f"/ui/compare?base={naive}&head={other}"), ("job", f"/ui/jobs/{naive}"),
            ("hardware", "/ui/hardware"), ("machine", "/ui/hardware/simba"),
            ("edit", "/ui/hardware/edit?from=kapla-edge"),
        ):  # fmt: skip
            page.goto(place)
            if name == "job":
                page.locator("#timeline canvas").wait_for()
                page.locator(".top [data-layer]").first.click()
                page.locator(".panel.layer").wait_for()
                page.get_by_role("button", name="Loop nest").click()
                page.locator("#nest .nest").wait_for()
            if name == "edit":
                page.locator("#drawing svg.blocks").wait_for()
            assert seen.violations() == [], name
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            seen.keep(pictures, f"{name}-{width}-{scheme}")
        seen.check()


def test_a_model_becomes_a_job(browser: Any, running: Running) -> None:
    with visit(browser, running.url) as seen:
        page = seen.page
        page.goto("/ui/new")
        page.get_by_role("button", name="Compile").click()
        assert "needs a model" in page.locator("#refused").inner_text()
        page.locator("[name=model-file]").set_input_files(
            {"name": "bad.onnx", "mimeType": "", "buffer": b"no model at all"}
        )
        page.locator("[name=hardware]").select_option("kapla-edge")
        seen.said.clear()
        page.get_by_role("button", name="Compile").click()
        page.locator("#refused .alert").wait_for()
        assert "TW-" in page.locator("#refused").inner_text()
        seen.said.clear()  # the browser says of itself that a request was refused
        page.locator("[name=model-file]").set_input_files(EXAMPLE)
        page.locator("[name=option-strategy]").select_option("naive")
        page.locator("[name=option-verify]").select_option("none")
        page.locator("[name=label]").fill("by hand")
        page.get_by_role("button", name="Compile").click()
        page.wait_for_url("**/ui/jobs/job_*")
        page.locator("#timeline canvas").wait_for()  # it reloads itself when the job has ended
        page.goto("/ui/?label=by+hand")
        assert page.locator("#jobs tbody tr").count() == 1
        assert "succeeded" in page.locator("#jobs tbody tr").inner_text()
        seen.check()


def test_a_spec_is_checked_as_it_is_typed(browser: Any, running: Running) -> None:
    """And what is valid is drawn, stored, and compiled for."""
    with visit(browser, running.url) as seen:
        page = seen.page
        page.goto("/ui/hardware")
        page.get_by_role("link", name="kapla-edge", exact=True).click()
        page.get_by_role("link", name="Start from this").click()
        page.locator("#drawing svg.blocks").wait_for()
        text = page.locator("#text")
        good = text.input_value().replace("my-kapla-edge", "wider")
        text.fill(good + "num_wheels: 4\n")
        error = page.locator(".findings .error")
        error.first.wait_for()
        assert "num_wheels" in error.first.inner_text()
        assert page.locator("#save").is_disabled()
        error.first.get_by_role("button").click()
        chosen = page.evaluate(
            "(t => t.value.slice(t.selectionStart, t.selectionEnd))(document.activeElement)"
        )
        assert chosen == "num_wheels"
        text.fill("levels: [")
        page.locator("#findings .alert").wait_for()
        seen.said.clear()  # the browser says of itself that a request was refused
        text.fill(good.replace("num_cores: 1", "num_cores: 4"))
        page.locator("#save:enabled").wait_for()
        page.locator("#drawing dl div", has_text=re.compile(r"^\s*Cores\s*4")).wait_for()
        page.locator("#save").click()
        page.wait_for_url(re.compile("/ui/hardware/[0-9a-f]{64}$"))
        assert page.locator("h1").inner_text() == "wider"
        page.get_by_role("link", name="Compile for it").click()
        assert page.locator("[name=hardware] option:checked").inner_text().startswith("wider")
        seen.check()


def test_a_long_table_stays_short_in_the_document(browser: Any, serve: Serve) -> None:
    url, job = many_layers(serve)
    with visit(browser, url) as seen:
        scrolled(seen, job)
    with visit(browser, url) as seen:
        page = seen.page
        page.goto(f"/ui/jobs/{job}")
        page.locator("#filter").fill("onerror")  # before the layers are there
        page.locator("#counted", has_text=f"1 of {LAYERS}").wait_for()
        last = page.locator("#layers tbody tr[data-row]")
        assert last.count() == 1
        assert HOSTILE in last.inner_text()
        last.click()
        page.locator(".panel.layer").wait_for()
        assert HOSTILE in page.locator("#layer-title").inner_text()
        assert page.locator("img[src=x]").count() == 0
        seen.check()


def test_a_browser_logs_in(browser: Any, serve: Serve) -> None:
    served = serve("page_payloads:many_layers", require_key=True)
    _, text = keys.create_key(
        served.services.database, project="a", name="b", scopes=(Scope.READ, Scope.WRITE)
    )
    with visit(browser, served.url) as seen:
        page = seen.page
        page.goto("/ui/new")
        assert "/ui/login?next=/ui/new" in page.url
        seen.said.clear()  # it asked whether there is a session
        page.get_by_label("API key").fill("tw_wrong")
        page.keyboard.press("Enter")
        page.get_by_role("alert").wait_for()
        seen.said.clear()
        page.get_by_label("API key").fill(text)
        page.keyboard.press("Enter")
        page.wait_for_url("**/ui/new")
        [cookie] = page.context.cookies()
        assert cookie["httpOnly"]
        assert cookie["sameSite"] == "Strict"
        assert page.evaluate("document.cookie") == ""
        page.locator("[name=model-file]").set_input_files(
            {"name": "m.onnx", "mimeType": "", "buffer": b"\x08\x08\x32\x01a"}
        )
        page.locator("[name=hardware]").select_option("kapla-edge")
        page.get_by_role("button", name="Compile").click()
        page.wait_for_url("**/ui/jobs/job_*")
        page.locator("#timeline canvas").wait_for()
        page.get_by_role("button", name="Share…").click()
        link = page.locator("#link input").input_value()
        with visit(browser, served.url) as guest:
            guest.page.goto(link)
            guest.page.locator("#timeline canvas").wait_for()
            guest.page.locator(".top [data-layer]").first.click()
            guest.page.locator(".panel.layer").wait_for()
            assert guest.page.locator("nav").count() == 0
            guest.check()
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("**/ui/login")
        page.goto("/ui/")
        assert "/ui/login" in page.url


def test_jobs_move_by_themselves(browser: Any, serve: Serve) -> None:
    """The list and the page of a job follow what happens without being loaded again."""
    served = serve(worker=False)
    job = served.submit()["id"]
    with visit(browser, served.url) as seen:
        page = seen.page
        page.goto("/ui/")
        row = page.locator("#jobs tbody tr")
        assert "queued" in row.inner_text()
        served.http.post(f"/v1/jobs/{job}/cancel")
        page.locator("#jobs .state-canceled").wait_for()
        second = served.submit()["id"]
        page.goto(f"/ui/jobs/{second}")
        page.get_by_role("button", name="Cancel").click()
        page.locator(".state-canceled").wait_for()
        page.get_by_role("button", name="Run again").click()
        page.wait_for_url(lambda url: second not in url)
        assert json.loads(served.http.get("/v1/jobs").text)["items"][0]["id"] in page.url
        seen.check()

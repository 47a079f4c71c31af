"""A headless Chromium for tests of the pages: what it asked for, what went wrong, how long it took.

Debian's `chromium`, driven by Playwright (extra `test-browser`); without either a test is skipped.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WIDE, NARROW = 1280, 400
_TASKS = ["devtools.timeline", "disabled-by-default-devtools.timeline"]


def why_no_browser() -> str | None:
    """What is missing."""
    if CHROMIUM is None:
        return "no chromium: apt-get install chromium"
    if importlib.util.find_spec("axe_playwright_python") is None:
        return "no Playwright with axe: pip install '.[test-browser]'"
    return None


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser."""
    why = why_no_browser()
    if why is not None:
        pytest.skip(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """One window, and what it did."""

    page: Any
    origin: str
    asked: list[str] = field(default_factory=list)
    """Addresses that it asked for."""
    said: list[str] = field(default_factory=list)
    """Errors and warnings in its console, and scripts that ended in one."""
    clicks: int = 0

    def click(self, target: Any) -> None:
        """One click of a person."""
        self.clicks += 1
        target.click()

    def check(self) -> None:
        """Nothing was asked of another origin, and nothing went wrong."""
        foreign = [url for url in self.asked if not url.startswith((self.origin, "blob:"))]
        assert not foreign, foreign
        assert self.asked
        assert not self.said, self.said

    def violations(self) -> list[str]:
        """What axe finds that is serious or worse, with where."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [
            f"{rule['id']} ({rule['impact']}): {[node['html'][:160] for node in rule['nodes'][:3]]}"
            for rule in found
            if rule["impact"] in ("serious", "critical")
        ]

    @contextmanager
    def traced(self) -> Iterator[list[float]]:
        """Processor time in ms of every task of the page's main thread, in the end.

        Wall time is that of other programs, too, where they hold the processor.
        """
        found: list[float] = []
        browser = self.page.context.browser
        browser.start_tracing(page=self.page, categories=_TASKS)
        yield found
        events = json.loads(browser.stop_tracing())["traceEvents"]
        main = {
            (event["pid"], event["tid"])
            for event in events
            if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
        }
        found += [
            event["tdur"] / 1e3
            for event in events
            if event["name"] == "RunTask"
            and "tdur" in event
            and (event["pid"], event["tid"]) in main
        ]

    def keep(self, folder: str | None, name: str) -> None:
        """A picture of the whole page, where somebody asks for pictures."""
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@contextmanager
def visit(browser: Any, url: str, *, width: int = WIDE, scheme: str = "light") -> Iterator[Visit]:
    """A new window without cookies, on a server."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, base_url=url,
        reduced_motion="reduce", timezone_id="UTC", locale="en-GB",
    )  # fmt: skip
    page = context.new_page()
    page.set_default_timeout(60_000)
    parts = urlsplit(url)
    seen = Visit(page, f"{parts.scheme}://{parts.netloc}")
    context.on("request", lambda request: seen.asked.append(request.url))
    page.on("pageerror", lambda error: seen.said.append(str(error)))
    page.on(
        "console",
        lambda line: seen.said.append(line.text) if line.type in ("error", "warning") else None,
    )
    try:
        yield seen
    finally:
        context.close()

"""Timeline and graph under fingers: one pans, two zoom about what they hold, a tap chooses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from api_fixtures import Serve
from browsing import chromium, visit
from long_tables import many_layers

# What the workers are told to draw is what is seen.
_WATCH = """
window.drawn = {};
addEventListener("pointerdown", (event) => { window.last = event.pointerId; }, true);
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  const name = message.op === "draw" && ("scale" in message.view ? "graph" : "timeline");
  if (name) window.drawn[name] = message.view;
  return post.call(this, message, ...rest);
};
"""
Point = tuple[float, float]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


class Hand:
    """Fingers on one canvas, in its pixels."""

    def __init__(self, page: Any, name: str) -> None:
        self._page, self._name = page, name
        self._canvas = page.locator(f"#{name} canvas")
        self._canvas.wait_for()
        self._canvas.scroll_into_view_if_needed()
        page.wait_for_function(f"window.drawn['{name}']")
        self._cdp = page.context.new_cdp_session(page)
        box = self._canvas.bounding_box()
        self._left, self._top = box["x"], box["y"]
        self.width, self.height = box["width"], box["height"]

    def view(self) -> Any:
        """What is drawn, after what was asked until now."""
        self._page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        return self._page.evaluate(f"window.drawn['{self._name}']")

    def at(self, kind: str, *points: Point) -> None:
        """`touchStart`, `touchMove`, `touchEnd`, `touchCancel`."""
        touches = [
            {"x": self._left + x, "y": self._top + y, "id": k} for k, (x, y) in enumerate(points)
        ]
        self._cdp.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})

    def lift_last(self) -> None:
        """The finger that came last goes alone, which the browser's own touches cannot."""
        event = "new PointerEvent('pointerup', {pointerId: window.last})"
        self._canvas.evaluate(f"canvas => canvas.dispatchEvent({event})")

    def gesture(self, *steps: Sequence[Point]) -> None:
        """Fingers down where the first step says, moved, and up."""
        self.at("touchStart", *steps[0])
        for step in steps[1:]:
            self.at("touchMove", *step)
        self.at("touchEnd")


@pytest.fixture
def page(browser: Any, serve: Serve) -> Iterator[Any]:
    url, job = many_layers(serve)
    with visit(browser, url) as seen:
        seen.page.add_init_script(_WATCH)
        seen.page.goto(f"/ui/jobs/{job}")
        yield seen.page
        seen.check()


def test_two_fingers_zoom_the_timeline_about_what_is_between_them(page: Any) -> None:
    hand = Hand(page, "timeline")
    start, end = hand.view()
    middle = hand.width / 2
    hand.gesture([(middle - 50, 20), (middle + 50, 20)], [(middle - 200, 20), (middle + 200, 20)])
    low, high = hand.view()
    assert high - low == pytest.approx((end - start) / 4, rel=0.02)
    assert (low + high) / 2 == pytest.approx((start + end) / 2, rel=0.02)

    # Off the middle, and moved while zooming: what was between the fingers stays there.
    quarter = low + 0.25 * (high - low)
    x = hand.width / 4
    hand.gesture([(x - 40, 20), (x + 40, 20)], [(x + 20, 20), (x + 180, 20)])
    first, last = hand.view()
    assert last - first == pytest.approx((high - low) / 2, rel=0.02)
    assert first + (x + 100) / hand.width * (last - first) == pytest.approx(quarter, rel=0.02)


def test_one_finger_pans_the_timeline_and_goes_on_after_a_pinch(page: Any) -> None:
    hand = Hand(page, "timeline")
    middle = hand.width / 2
    hand.gesture([(middle - 50, 20), (middle + 50, 20)], [(middle - 200, 20), (middle + 200, 20)])
    low, high = hand.view()
    hand.gesture([(middle, 20)], [(middle + hand.width / 4, 20)])
    first, last = hand.view()
    assert low - first == pytest.approx((high - low) / 4, rel=0.05)
    assert last - first == pytest.approx(high - low)

    # One of two fingers goes: nothing jumps, and the other pans from there.
    hand.at("touchStart", (middle - 50, 20), (middle + 50, 20))
    hand.lift_last()
    assert hand.view() == [first, last]
    hand.at("touchMove", (middle - 50 - hand.width / 8, 20), (middle + 50, 20))
    hand.at("touchEnd")
    moved, _ = hand.view()
    assert moved - first == pytest.approx((last - first) / 8, rel=0.05)


def test_two_fingers_zoom_the_graph(page: Any) -> None:
    hand = Hand(page, "graph")
    before = hand.view()
    x, y = hand.width / 3, hand.height / 3
    hand.gesture([(x - 30, y), (x + 30, y)], [(x - 60, y), (x + 60, y)])
    after = hand.view()
    assert after["scale"] == pytest.approx(2 * before["scale"], rel=0.02)
    for axis, place in (("x", x), ("y", y)):
        held = before[axis] + place / before["scale"]
        assert after[axis] + place / after["scale"] == pytest.approx(held, rel=0.02)


@pytest.mark.parametrize("name", ["timeline", "graph"])
def test_a_tap_chooses_and_a_pinch_or_a_scroll_does_not(page: Any, name: str) -> None:
    hand = Hand(page, name)
    before = hand.view()
    x, y = hand.width / 2, 12.0
    hand.gesture([(x - 2, y), (x + 2, y)])  # two fingers that stay where they are
    hand.at("touchStart", (x, y))
    hand.at("touchCancel")  # the page took it to scroll
    assert hand.view() == before
    assert page.locator("#layers tr[aria-selected=true]").count() == 0
    hand.at("touchStart", (x, y))
    hand.at("touchEnd")
    if name == "timeline":
        page.locator("#layers tr[aria-selected=true]").wait_for()

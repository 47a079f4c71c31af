"""What twice of each resource would bring, the timeline and units of report.html."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

import pytest

from worker.report.cause_bars import FAMILIES
from worker.report.plots import layer_bars
from worker.report.readable import readable
from worker.report.style import page_of
from worker.report.timeline import Slice, timeline
from worker.report.what_if import costs


def test_half_of_a_cause_by_hand() -> None:
    """400 of 1000 cycles at a port: 800 are left, 1.25 times as fast."""
    layers = [
        ("a", [("port:DRAM.read", 100), ("engine:PE", 300)]),
        ("b", [("port:DRAM.read", 300), ("engine:PE", 300)]),
    ]
    engine, port = costs([("port:DRAM.read", 400), ("engine:PE", 600)], 1000, layers)
    assert (engine.cause, engine.lever) == ("engine:PE", "PE.macs_per_cycle x 2")
    assert engine.least_cycles == 700
    assert engine.factor == pytest.approx(1 / 0.7)
    assert (port.lever, port.least_cycles) == ("DRAM.read_bytes_per_cycle x 2", 800)
    assert port.factor == 1.25
    assert port.layers == (("b", 300), ("a", 100))
    assert port.pct == 40


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_every_kind_of_cause_has_something_to_change(kind: str) -> None:
    [cost] = costs([(kind, 10)], 10)
    assert cost.lever
    assert cost.factor == 2


def test_a_cause_of_another_release_is_shown_without() -> None:
    [cost] = costs([("moon:phase", 10)], 20)
    assert (cost.lever, cost.least_cycles) == ("", 15)
    assert costs([], 0) == []


def test_a_timeline_has_every_cycle_once() -> None:
    slices = [
        Slice("<a>", 0, 400, False, "engine:PE"), Slice("h", 400, 600, True, "host"),
        Slice("b", 600, 1000, False, "port:DRAM.read"),
    ]  # fmt: skip
    drawn = timeline(slices, 1000, 1e6)
    assert "&lt;a&gt;: 400 µs from 0 s" in drawn
    assert ">host<" in drawn
    widths = [float(w) for w in re.findall(r'<rect [^>]*width="([0-9.]+)"', drawn)]
    assert sum(widths) == pytest.approx(880 - 92 - 16, abs=1)
    assert ">host<" not in timeline(slices[:1], 1000, 1e6)


def test_slices_too_narrow_to_be_seen_are_one() -> None:
    slices = [Slice(f"n{k}", k, k + 1, False, "engine:PE") for k in range(100_000)]
    drawn = timeline(slices, 100_000, 1e9)
    assert drawn.count("<rect") < 3000
    assert "layers from n0" in drawn


def test_bars_are_stacks_of_causes() -> None:
    drawn = layer_bars([("a", 100, 60, (("engine:PE", 75), ("port:DRAM.read", 25)))])
    heights = {
        cls: float(height)
        for cls, height in re.findall(r'class="(cause-\w+)"[^>]*height="([0-9.]+)"', drawn)
    }
    assert heights["cause-engine"] == pytest.approx(3 * heights["cause-port"], rel=1e-3)
    assert drawn.count('class="least"') == 1


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("latency_s", 0.000216, "216 µs"), ("energy_pj", 3.15e8, "315 µJ"),
        ("latency_cycles", 108_000, "108 kcycles"), ("peak_bytes.GBUF", 65536, "64 KiB"),
        ("traffic_bytes.DRAM.read", 3 << 20, "3 MiB"), ("utilization_pct", 76.12, "76.1 %"),
        ("throughput_per_s", 4600.0, "4.6 k/s"), ("kernels", 23, ""), ("bound_by", "host", ""),
        ("is_known", True, ""),
    ],
)  # fmt: skip
def test_figures_read_as_people_say_them(name: str, value: str | float, text: str) -> None:
    assert readable(name, value) == text


def test_a_page_lets_nothing_load_and_no_style_but_its_own() -> None:
    page = page_of("t", ["<p>x</p>"])
    [sheet] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = b64encode(sha256(sheet.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in page
    assert "style=" not in page

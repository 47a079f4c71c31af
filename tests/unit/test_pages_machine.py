"""A spec as a page shows it: figures by hand, the drawing, and specs that say little."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from service.pages.blocks import blocks
from service.pages.machine import EVIDENCE, evidence, facts, guesses, on_chip_bytes, peaks
from worker.compiler.machine import canonical_document, preset_document, preset_names

CHIP: dict[str, Any] = {
    "schema_version": 1, "name": "chip <1>",
    "clock_hz": {"value": 1e9, "tag": "S"}, "num_cores": {"value": 8, "tag": "P"},
    "num_clusters": 2, "launch_latency_cycles": {"value": 500, "tag": "G", "note": "none told"},
    "static_power_w": {"value": 0.5, "tag": "G"}, "process_nm": 7,
    "levels": [
        {"name": "DRAM", "capacity_bytes": 1 << 30, "instances": 1, "read_bytes_per_cycle": 32,
         "write_bytes_per_cycle": 16, "duplex": "half", "sustained_fraction": 0.5},
        {"name": "LLB", "capacity_bytes": 1 << 20, "instances": 2, "read_bytes_per_cycle": 64},
        {"name": "L1", "capacity_bytes": 1 << 16, "instances": 8, "read_bytes_per_cycle": 32,
         "write_bytes_per_cycle": 16, "duplex": "half", "engine_ports": "shared"},
    ],
    "engines": [
        {"name": "MM", "kind": "matrix", "memory": "L1", "array": [16, 16],
         "macs_per_cycle": {"f16": 256, "i8": {"value": 512, "tag": "S"}}},
        {"name": "V", "kind": "vector", "memory": "L1", "macs_per_cycle": {"f16": 16}},
        {"name": "IN", "kind": "dma_in", "memory": "L1"},
    ],
    "links": [{"name": "RING", "src": "L1", "dst": "L1", "bytes_per_cycle": 8}],
    "host": {"name": "a host", "link_bytes_per_s": 16e9},
}  # fmt: skip


def test_figures_follow_from_the_spec() -> None:
    """8 cores x 512 MACs x 1 GHz are 4.096 TMAC/s, over half of 32 GB/s: 256 MACs a byte."""
    assert peaks(CHIP) == [("i8", 512), ("f16", 256)]
    assert on_chip_bytes(CHIP) == 2 * (1 << 20) + 8 * (1 << 16)
    found = {name: (value, note) for name, value, note in facts(CHIP)}
    assert found["Peak"] == ("4.1 TMAC/s", "512 per cycle and core in i8")
    assert found["DRAM"] == ("32 GB/s", "16 GB/s sustained")
    assert found["Ridge"][0] == "256 MAC/B"
    assert found["On chip"][0] == "2.5 MiB"
    assert found["Cores"] == ("8", "in 2 clusters")
    assert found["Launch"] == ("500 ns", "500 cycles")
    assert found["Leakage"] == ("500 mW", "7 nm")


def test_evidence_is_counted() -> None:
    counted = {tag: count for tag, _, count in evidence(CHIP)}
    assert (counted["S"], counted["P"], counted["G"]) == (2, 1, 2)
    assert [(row.pointer, row.note) for row in guesses(CHIP)] == [
        ("/launch_latency_cycles", "none told"), ("/static_power_w", ""),
    ]  # fmt: skip


def drawn(document: dict[str, Any]) -> tuple[list[ET.Element], str]:
    root = ET.fromstring(blocks(document))
    return list(root), " | ".join(part.text or "" for part in root if part.tag == "text")


def rects(parts: list[ET.Element], cls: str) -> list[tuple[float, float, float, float]]:
    """(left, top, right, bottom) of boxes of a class."""
    found = []
    for part in parts:
        if part.tag == "rect" and cls in part.attrib["class"].split():
            x, y, w, h = (float(part.attrib[key]) for key in ("x", "y", "width", "height"))
            found.append((x, y, x + w, y + h))
    return found


def test_the_drawing_has_every_part_in_its_place() -> None:
    parts, text = drawn(CHIP)
    for word in ("Host: a host", "16 GB/s", "1 GiB", "1 MiB", "64 KiB", "matrix 16 × 16",
                 "i8 512, f16 256 MAC/cycle", "in by IN, RING 8 B/cycle", "2 clusters",
                 "8 cores, 4 in each", "↓ 32 B/cycle (32 GB/s)  ↑ 16 B/cycle (16 GB/s), one at",
                 "↓ 64 B/cycle (64 GB/s)"):  # fmt: skip
        assert word in text, word
    memories, engines, frames = (rects(parts, k) for k in ("memory", "engine", "frame"))
    assert (len(memories), len(engines), len(frames)) == (3, 2, 2)
    outer, inner = sorted(frames)
    for box in (*engines, memories[2]):
        assert inner[0] < box[0] < box[2] < inner[2]
        assert inner[1] < box[1] < box[3] < inner[3]
    assert outer[1] < memories[1][1] < memories[1][3] < inner[1]
    assert memories[0][3] < outer[1]
    assert engines[0][2] < engines[1][0]


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_drawn(name: str) -> None:
    document: Any = canonical_document(preset_document(name))
    parts, text = drawn(document)
    boxes = rects(parts, "memory") + rects(parts, "engine")
    compute = [e for e in document["engines"] if not e["kind"].startswith("dma")]
    assert len(boxes) == len(document["levels"]) + len(compute)
    for k, a in enumerate(boxes):
        for b in boxes[:k]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], "they overlap"
    assert all(level["name"] in text for level in document["levels"])
    found = {fact for fact, _, _ in facts(document)}
    assert {"Clock", "Cores", "Peak", "On chip", "Ridge"} <= found
    assert not [value for _, value, _ in facts(document) if re.search(r"nan|inf|e\+", value)]
    assert {tag for tag, _, _ in evidence(document)} <= set(EVIDENCE)


@pytest.mark.parametrize(
    "document",
    [{}, {"levels": 3, "engines": "x"}, {"levels": [{}], "engines": [{}], "host": {}},
     {"levels": [{"name": 7, "capacity_bytes": "x"}], "engines": [{"macs_per_cycle": [1]}]}],
    ids=["empty", "wrong", "blank", "odd"],
)  # fmt: skip
def test_a_spec_that_says_little_is_drawn_all_the_same(document: dict[str, Any]) -> None:
    drawn(document)
    facts(document)
    evidence(document)

"""A part of a cache that is set aside is a scratchpad of its own (decision 0052)."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import onnx
from onnx_models import conv_net

import tilewright as tw
from worker.compiler.machine import preset_document


def chip() -> dict[str, Any]:
    """a100 with a quarter of its L2 set aside, and half of its ports for each part."""
    document = deepcopy(preset_document("a100"))
    at, cache = next((k, m) for k, m in enumerate(document["levels"]) if m["name"] == "L2")
    shared = ("instances", "latency_cycles", "technology", "align_bytes")
    part = {key: deepcopy(cache[key]) for key in shared}
    part |= {"name": "L2P", "managed": "scratchpad", "capacity_bytes": 10485760}
    cache["capacity_bytes"] = 31457280
    for level in (cache, part):
        level |= {"read_bytes_per_cycle": 2560, "write_bytes_per_cycle": 2560}
    document["levels"].insert(at + 1, part)
    for name, kind in (("L2P_IN", "dma_in"), ("L2P_OUT", "dma_out")):
        document["engines"].append({"name": name, "kind": kind, "memory": "L2P"})
    return document


def test_tensors_stay_in_it(tmp_path: Path) -> None:
    path = tmp_path / "conv_net.onnx"
    onnx.save(conv_net(), path)
    done = tw.compile(path, tw.Machine(chip()), strategy="graphturbo", verify="full")
    summary = done.report["summary"]
    assert summary["peak_bytes"]["L2P"] > 0
    assert summary["traffic_bytes"]["L2P"]["read"] > 0
    assert all(check["passed"] for check in done.report["sanity"])

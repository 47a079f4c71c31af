"""A payload whose report is as long as the largest models' are, for tests of the pages."""

from __future__ import annotations

import gzip
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from worker.compiler.cache import Cache
from worker.job.request import JobOutcome, JobRequest, ProgressSink

LAYERS = 1500
CLOCK_HZ = 1e9
HOSTILE = "<img src=x onerror=alert(1)>"
"""A name that a page must show as it is."""


def many_layers(
    request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink
) -> JobOutcome:
    """`LAYERS` kernels of a node each; layer k takes 1000 + k cycles, the last is the costliest.

    Each reads the one before it, every tenth one also what began its block.
    """
    layers: list[dict[str, Any]] = []
    nodes: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    start = 0
    for k in range(LAYERS):
        cycles = 1000 + k
        name = HOSTILE if k == LAYERS - 1 else f"block{k // 10}/conv{k}"
        reads = [f"t{k - 1}", *([f"t{k - 9}"] if k % 10 == 9 else [])]
        nodes.append({"name": name, "op_type": "Conv", "inputs": reads, "outputs": [f"t{k}"]})
        layers.append({
            "index": k, "group_id": k, "onnx_nodes": [name],
            "op_type": "Conv" if k % 3 else "Add", "placement": "accelerator",
            "placement_reason": "OFFLOADED", "signature": f"{k:064x}", "cycles_total": cycles,
            "causes": [{"cause": "engine:PE", "cycles": cycles - 400},
                       {"cause": "port:DRAM.read", "cycles": 400}],
            "start_cycle": start, "end_cycle": start + cycles, "lower_bound_cycles": cycles // 2,
            "utilization_pct": 50.0, "energy_pj": 1e6, "tile": "16x16", "macs": 10**6,
        })  # fmt: skip
        for pid, at, took in ((0, start, cycles), *((1, start + 100 * j, 80) for j in range(8))):
            events.append({
                "ph": "X", "pid": pid, "tid": 0, "name": "COMPUTE" if pid else "Conv",
                "ts": at / CLOCK_HZ * 1e6, "dur": took / CLOCK_HZ * 1e6,
                "args": {} if pid else {"start_cycle": start, "end_cycle": start + cycles},
            })  # fmt: skip
        start += cycles
    summary = {
        "latency_cycles": start, "latency_s": start / CLOCK_HZ,
        "causes": [{"cause": "engine:PE", "cycles": start - 400 * LAYERS},
                   {"cause": "port:DRAM.read", "cycles": 400 * LAYERS}],
    }  # fmt: skip
    report = {
        "summary": summary, "model": {"name": "many"}, "verification": {},
        "hardware": {"name": "chip", "clock_hz": CLOCK_HZ}, "layers": layers,
    }  # fmt: skip
    trace = {"otherData": {"clock_hz": CLOCK_HZ, "cycles": start}, "traceEvents": events}
    (out_dir / "report.json").write_text(json.dumps(report))
    (out_dir / "trace.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
    (out_dir / "graph.json").write_text(json.dumps({"nodes": nodes}))
    files = (("report", "report.json"), ("trace", "trace.json.gz"), ("graph", "graph.json"))
    return JobOutcome(files, sha256(b"").hexdigest(), summary)

"""Documents of runs for tests of comparisons, made without a compile."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker.compiler.package.manifest import FORMAT_VERSION

if TYPE_CHECKING:
    from service.compare import Run

SPEC: dict[str, Any] = {
    "name": "toy",
    "clock_hz": 1e9,
    "levels": [
        {"name": "DRAM", "read_bytes_per_cycle": 16.0},
        {"name": "SRAM", "capacity_bytes": 65536},
    ],
    "engines": [{"name": "PE", "macs_per_cycle": 256}],
    "guesses": [{"pointer": "/clock_hz", "value": "1e+09", "note": "a guess"}],
    "energy_ranges": [],
}


def node(
    name: str, op_type: str = "Conv", reads: Sequence[str] = (), *, weights: str = "",
    attributes: Mapping[str, Any] | None = None, shape: Sequence[int] = (1, 8),
) -> dict[str, Any]:  # fmt: skip
    """A node that reads the outputs of others, called `NAME.out`, and weights of its own."""
    inputs = [f"{other}.out" for other in reads] or ["image"]
    return {
        "name": name, "op_type": op_type, "inputs": [*inputs, f"{name}.w"] if weights else inputs,
        "outputs": [f"{name}.out"], "attributes": dict(attributes or {}), "weights": weights,
        "shape": list(shape),
    }  # fmt: skip


def graph(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """graph.json of some nodes."""
    tensors: dict[str, Any] = {"image": {"dtype": "f32", "shape": [1, 8]}}
    rows = []
    for each in nodes:
        for output in each["outputs"]:
            tensors[output] = {"dtype": "f32", "shape": each["shape"]}
        if each["weights"]:
            digest = hashlib.sha256(each["weights"].encode()).hexdigest()
            tensors[each["inputs"][-1]] = {"dtype": "f32", "shape": [8, 8], "sha256": digest}
        rows.append({k: v for k, v in each.items() if k not in ("weights", "shape")})
    return {"schema_version": 2, "nodes": rows, "tensors": tensors}


def causes(spent: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"cause": name, "cycles": cycles} for name, cycles in spent.items()]


def group(nodes: Sequence[str], **spent: int) -> dict[str, Any]:
    """Cycles of a group of nodes by cause; `DRAM` stands for `port:DRAM.read`."""
    told = {{"PE": "engine:PE", "DRAM": "port:DRAM.read"}.get(k, k): v for k, v in spent.items()}
    return {
        "onnx_nodes": list(nodes), "op_type": "Conv", "cycles": sum(spent.values()),
        "causes": causes(told), "macs": 10 * len(nodes), "repeated_macs": 0,
    }  # fmt: skip


def kernel(*groups: Mapping[str, Any], launch: int = 0, **columns: Any) -> dict[str, Any]:
    """A layer of the report: of one group, or fused."""
    names = list(dict.fromkeys(name for each in groups for name in each["onnx_nodes"]))
    total: dict[str, int] = {}
    for each in groups:
        for row in each["causes"]:
            total[row["cause"]] = total.get(row["cause"], 0) + row["cycles"]
    if launch:
        total["launch"] = launch
    row: dict[str, Any] = {
        "onnx_nodes": names, "op_type": "Conv", "placement": "accelerator",
        "cycles_total": sum(total.values()), "causes": causes(total), "energy_pj": 5.0,
        "macs": sum(each["macs"] for each in groups), "repeated_macs": 0,
        "signature": "+".join(map(str, range(len(names)))), "tile": "4x4", "cores": 1,
        "peak_buffer_bytes": 64, **columns,
    }  # fmt: skip
    return row if len(groups) == 1 else {**row, "groups": list(groups)}


def report(
    nodes: Sequence[Mapping[str, Any]], layers: Sequence[Mapping[str, Any]], **sections: Any
) -> dict[str, Any]:
    """report.json of some layers."""
    cycles = sum(layer["cycles_total"] for layer in layers)
    total: dict[str, int] = {}
    for layer in layers:
        for row in layer["causes"]:
            total[row["cause"]] = total.get(row["cause"], 0) + row["cycles"]
    return {
        "schema_version": 3,
        "model": {"name": "toy", "sha256": "0" * 64},
        "hardware": {"name": "toy", "digest": "d", "clock_hz": 1e9},
        "options": {"objective": "latency", "no_cache": False},
        "toolchain": {"version": "0.1.0", "simulator": "10"},
        "summary": {
            "latency_cycles": cycles, "latency_s": cycles / 1e9, "energy_pj": 5.0 * len(layers),
            "causes": causes(total), "kernels": len(layers),
        },
        "strategies": [
            {"name": "first", "chosen": True, "latency_cycles": cycles, "reason": "least latency"}
        ],
        "placement": [
            {"node": each["name"], "op_type": each["op_type"], "target": "accelerator",
             "reason_code": "OFFLOADED", "reason": "offered"} for each in nodes
        ],
        "verification": {"passed": True},
        "layers": list(layers),
        **sections,
    }  # fmt: skip


def run(
    nodes: Sequence[Mapping[str, Any]], layers: Sequence[Mapping[str, Any]], *,
    spec: Mapping[str, Any] = SPEC, name: str = "run", **sections: Any,
) -> Run:  # fmt: skip
    """A run with everything that can be told of it."""
    from service.compare import Run  # the sandbox that writes these documents has no service

    document = report(nodes, layers, **sections)
    return Run.of(name, document, graph=graph(nodes), schedule=schedule_of(layers), spec=dict(spec))


def schedule_of(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """schedule.json of some layers."""
    units = {layer["signature"]: layer for layer in layers}
    return {
        "units": [{"signature": s, "strategy": "first", "text": f"schedule\nloop {row['tile']}"}
                  for s, row in units.items()]
    }  # fmt: skip


def trace(cycles: int) -> bytes:
    """A trace of one slice."""
    events = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "program"}},
        {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "core 2"}},
        {"ph": "X", "pid": 0, "tid": 0, "name": "Conv", "ts": 0.0, "dur": cycles / 1e3},
        {"ph": "X", "pid": 3, "tid": 1, "name": "COMPUTE", "ts": 0.0, "dur": cycles / 2e3},
    ]
    document = {"displayTimeUnit": "ns", "otherData": {"cycles": cycles}, "traceEvents": events}
    return gzip.compress(json.dumps(document).encode(), mtime=0)


def bundle(
    report_: Mapping[str, Any], schedule: Mapping[str, Any], spec: Mapping[str, Any], *,
    version: int = FORMAT_VERSION, padding: int = 0,
) -> bytes:  # fmt: skip
    """What of a bundle is compared, behind some bytes of weights."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("weights.safetensors", bytes(padding))
        archive.writestr("manifest.json", json.dumps({"format_version": version}))
        archive.writestr("hardware.json", json.dumps(spec))
        archive.writestr("report.json", json.dumps(report_))
        archive.writestr("schedule.json", json.dumps(schedule))
        archive.writestr("trace.json.gz", trace(int(report_["summary"]["latency_cycles"])))
    return stream.getvalue()


def write(
    folder: Path, nodes: Sequence[Mapping[str, Any]], layers: Sequence[Mapping[str, Any]], *,
    spec: Mapping[str, Any] = SPEC, padding: int = 0, **sections: Any,
) -> dict[str, str]:  # fmt: skip
    """Write what `-o` would; gives the files by the names of artifacts."""
    folder.mkdir(parents=True, exist_ok=True)
    document, loops = report(nodes, layers, **sections), schedule_of(layers)
    files = {
        "report": ("report.json", json.dumps(document).encode()),
        "graph": ("graph.json", json.dumps(graph(nodes)).encode()),
        "schedule": ("schedule.json", json.dumps(loops).encode()),
        "trace": ("trace.json.gz", trace(int(document["summary"]["latency_cycles"]))),
        "bundle": ("toy.twb", bundle(document, loops, spec, padding=padding)),
    }
    for name, data in files.values():
        (folder / name).write_bytes(data)
    return {artifact: name for artifact, (name, _) in files.items()}


def slow_spec() -> dict[str, Any]:
    """The machine with half the rate of its DRAM."""
    dram = {**SPEC["levels"][0], "read_bytes_per_cycle": 8.0}
    return {**SPEC, "levels": [dram, *SPEC["levels"][1:]]}


NODES = [node("a", weights="a"), node("b", "Relu", ["a"]), node("c", "Conv", ["b"], weights="c")]


def layers(a: int = 20, c: int = 30) -> list[dict[str, Any]]:
    """One fused kernel of three groups; cycles that a and c wait for DRAM."""
    groups = group(["a"], PE=60, DRAM=a), group(["b"], PE=10), group(["c"], PE=50, DRAM=c)
    return [kernel(*groups, launch=5)]


SLOW: dict[str, Any] = {"hardware": {"name": "slow", "digest": "e", "clock_hz": 1e9}}
"""Sections of the report of a run on that machine."""

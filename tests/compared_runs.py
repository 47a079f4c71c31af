"""Documents of runs for tests of comparisons, made without a compile."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

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
    units = {layer["signature"]: layer for layer in layers}
    schedule = {
        "units": [{"signature": s, "strategy": "first", "text": f"schedule\nloop {row['tile']}"}
                  for s, row in units.items()]
    }  # fmt: skip
    document = report(nodes, layers, **sections)
    return Run.of(name, document, graph=graph(nodes), schedule=schedule, spec=dict(spec))

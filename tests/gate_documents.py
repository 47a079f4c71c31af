"""Documents of runs that never were: small enough to know every figure by heart, and a compiler
that makes them of models which are JSON texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from service.gate.runs import Outcome
from service.orders.order import Order
from worker.compiler.errors import ModelError, SpecError

CLOCK_HZ = 1e6
"""A cycle is a microsecond."""
TOOLCHAIN = {
    "version": "1.0", "ir": "1", "lower": "1", "codegen": "1", "simulator": "1",
    "strategies": {"s": {"version": "1", "distribution": "d 1.0"}},
}  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """One kernel of a run."""

    node: str
    causes: Mapping[str, int]
    energy_pj: float = 1e9
    read: int = 1000
    written: int = 500
    is_on_host: bool = False
    op_type: str = "Conv"

    @property
    def cycles(self) -> int:
        return sum(self.causes.values())


def documents(
    kernels: Sequence[Kernel], *, toolchain: Mapping[str, Any] = TOOLCHAIN, sha256: str = "00",
    spec: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The documents of a run."""
    rows, at = [], 0
    totals: dict[str, int] = {}
    for number, kernel in enumerate(kernels):
        causes = [{"cause": c, "cycles": n} for c, n in kernel.causes.items()]
        for cause, cycles in kernel.causes.items():
            totals[cause] = totals.get(cause, 0) + cycles
        rows.append({
            "index": number, "group_id": number, "onnx_nodes": [kernel.node],
            "op_type": kernel.op_type, "placement": "host" if kernel.is_on_host else "accelerator",
            "placement_reason": "OFFLOADED", "signature": f"s{number}",
            "cycles_total": kernel.cycles, "groups": [], "tile": "1", "cores": 1,
            "causes": causes, "energy_pj": kernel.energy_pj, "macs": 10, "repeated_macs": 0,
            "bytes_DRAM_read": kernel.read, "bytes_DRAM_write": kernel.written,
            "start_cycle": at, "end_cycle": at + kernel.cycles,
        })  # fmt: skip
        at += kernel.cycles
    energy = sum(kernel.energy_pj for kernel in kernels)
    read, written = sum(k.read for k in kernels), sum(k.written for k in kernels)
    machine = dict(spec or {"name": "h", "clock_hz": CLOCK_HZ})
    on_host = [kernel for kernel in kernels if kernel.is_on_host]
    seconds = at / CLOCK_HZ
    summary = {
        "latency_cycles": at, "latency_s": seconds, "throughput_per_s": 1 / seconds if at else 0.0,
        "energy_pj": energy, "edp": energy * seconds, "kernels": len(kernels) - len(on_host),
        "kernels_unique": len(kernels) - len(on_host), "host_ops": len(on_host),
        "traffic_bytes": {"DRAM": {"read": read, "write": written}}, "peak_bytes": {"DRAM": 4096},
        "home_arena_bytes": 4096, "weight_bytes": 2048, "boundary_bytes": 0,
        "accelerator_mac_pct": 100.0, "utilization_pct": 50.0, "instructions": 7 * len(kernels),
        "launch_cycles": totals.get("launch", 0), "host_cycles": 0, "repeated_macs": 0,
        "distance_to_bound": 1.5, "causes": [{"cause": c, "cycles": n} for c, n in totals.items()],
    }  # fmt: skip
    placement = [
        {
            "node": k.node, "op_type": k.op_type, "is_inserted": False, "composite": "",
            "target": "host" if k.is_on_host else "accelerator",
            "reason_code": "NO_RULE" if k.is_on_host else "OFFLOADED", "reason": "told",
        }
        for k in kernels
    ]  # fmt: skip
    report = {
        "schema_version": 3, "toolchain": dict(toolchain), "summary": summary, "layers": rows,
        "placement": placement, "model": {"name": "m", "sha256": sha256},
        "hardware": {"name": "h", "digest": json.dumps(machine), "clock_hz": CLOCK_HZ},
        "options": dict(options or {}), "verification": {"mode": "none", "passed": None},
        "strategies": [{"name": "s", "chosen": True, "offchip_bytes": read + written,
                        "latency_cycles": at, "energy_pj": energy}],
    }  # fmt: skip
    tensors = [f"t{k}" for k in range(len(kernels) + 1)]
    graph = {
        "schema_version": 2,
        "nodes": [
            {"name": k.node, "op_type": k.op_type, "inputs": [tensors[n]],
             "outputs": [tensors[n + 1]], "attributes": {}}
            for n, k in enumerate(kernels)
        ],
        "tensors": {
            name: {"dtype": "f32", "shape": [n + 1], "sha256": None}
            for n, name in enumerate(tensors)
        },
    }  # fmt: skip
    return {"report": report, "graph": graph, "schedule": {"units": []}, "spec": machine}


def outcome(*kernels: Kernel, **changes: Any) -> Outcome:
    """The outcome of a compile that gave these kernels."""
    return Outcome(documents=documents(kernels, **changes))


@dataclass
class JsonCompiler:
    """Compiles models that are JSON: `{"node": cycles, ...}`, or `{"refuse": "why"}`.

    A spec's `slower_by` multiplies the cycles; one with `broken` is refused.
    """

    toolchain: Mapping[str, Any] = field(default_factory=lambda: TOOLCHAIN)
    seen: list[Order] = field(default_factory=list)

    def outcome(self, order: Order) -> Outcome:
        self.seen.append(order)
        data = order.model.read_bytes()
        told = json.loads(data)
        if "refuse" in told:
            error = ModelError("TW-MODEL-004", told["refuse"], node="loop")
            return Outcome(problem=error.to_problem())
        if "broken" in order.hardware:
            spec_error = SpecError("TW-SPEC-001", "broken is not a field", pointer="/broken")
            return Outcome(problem=spec_error.to_problem())
        factor = order.hardware.get("slower_by", 1)
        kernels = [Kernel(node, {"engine:PE": n * factor}) for node, n in told.items()]
        return Outcome(documents=documents(
            kernels, toolchain=self.toolchain, sha256=data.hex(), options=order.options,
            spec={"name": "h", "slower_by": factor},
        ))  # fmt: skip

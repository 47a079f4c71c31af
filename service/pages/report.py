"""What a page shows of a report.  A job's own process wrote it, so its shape is checked first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from worker.report.mesh_map import MeshLoad
from worker.report.parts import causes_in, layer_parts

_MOST_NODES = 40
"""Names of a row that the table can be filtered by; a fused kernel's groups have theirs."""


class Cause(msgspec.Struct):
    """Cycles that one cause is to blame for."""

    cause: str
    cycles: int


class Traffic(msgspec.Struct):
    """Bytes through a memory's ports."""

    read: int | None = None
    write: int | None = None


class Figures(msgspec.Struct):
    """The summary; docs/figures.md defines each."""

    latency_cycles: int
    latency_s: float
    causes: list[Cause]
    throughput_per_s: float | None = None
    energy_pj: float | None = None
    energy_low_pj: float | None = None
    energy_high_pj: float | None = None
    utilization_pct: float | None = None
    macs: int | None = None
    kernels: int | None = None
    kernels_unique: int | None = None
    accelerator_ops: int | None = None
    host_ops: int | None = None
    bound_by: str | None = None
    lower_bound_cycles: int | None = None
    lower_bound_by: str | None = None
    distance_to_bound: float | None = None
    roofline_cycles: int | None = None
    roofline_by: str | None = None
    distance_to_roofline: float | None = None
    traffic_bytes: dict[str, Traffic] = {}
    peak_bytes: dict[str, int | None] = {}


class Program(msgspec.Struct):
    """A strategy's program that competed."""

    name: str
    chosen: bool
    reason: str = ""
    latency_cycles: int | None = None
    energy_pj: float | None = None
    offchip_bytes: int | None = None
    kernels: int | None = None
    peak_bytes: int | None = None


class Insight(msgspec.Struct):
    """A finding an architect acts on."""

    message: str
    severity: str = "info"
    nodes: list[str] = []


class Unlock(msgspec.Struct):
    """What would bring nodes from the host to the accelerator."""

    sentence: str
    op_type: str = ""
    num_nodes: int | None = None
    saves_s: float | None = None


class Placed(msgspec.Struct):
    """Where a node runs."""

    node: str
    op_type: str
    target: str
    reason: str = ""
    reason_code: str = ""


class Energy(msgspec.Struct):
    """An item of the energy ledger."""

    item: str
    pj: float
    low_pj: float
    high_pj: float


class Check(msgspec.Struct):
    """An invariant of the simulation."""

    name: str
    passed: bool
    detail: str = ""


class Verification(msgspec.Struct):
    """Whether the kernels computed what ONNX Runtime does."""

    mode: str = "none"
    passed: bool | None = None
    detail: str = ""
    max_rel_err: float | None = None


class Named(msgspec.Struct):
    """The model, or the machine."""

    name: str = ""
    clock_hz: float | None = None
    nodes: int | None = None


class Report(msgspec.Struct):
    """A report as far as pages show it."""

    summary: Figures
    model: Named
    hardware: Named
    verification: Verification
    strategies: list[Program] = []
    insights: list[Insight] = []
    unlock: list[Unlock] = []
    placement: list[Placed] = []
    energy: list[Energy] = []
    sanity: list[Check] = []
    layers: list[dict[str, Any]] = []
    mesh: list[MeshLoad] = []

    @property
    def host_nodes(self) -> list[Placed]:
        """Nodes that the host runs."""
        return [row for row in self.placement if row.target == "host"]

    @property
    def failed(self) -> list[Check]:
        """Invariants that do not hold."""
        return [check for check in self.sanity if not check.passed]


def report_of(document: Mapping[str, Any]) -> Report | str:
    """The report, or why it cannot be shown."""
    try:
        return msgspec.convert(document, Report)
    except msgspec.ValidationError as error:
        return f"its report has another shape than this release's: {error}"


class Layer(msgspec.Struct):
    """A row of the layer table: a kernel of one group of nodes, one group of a fused kernel, or
    what of a fused kernel no group has."""

    row: int
    """Position in the table: its address."""
    part: str
    index: int | None
    """The kernel's position in the program; of all its groups the same."""
    op_type: str
    onnx_nodes: list[str]
    placement: str
    cycles: int
    pct: float
    causes: list[tuple[str, int]]
    told: dict[str, Any]
    """The whole row of the report."""

    @property
    def name(self) -> str:
        """Its nodes in few words."""
        names = self.onnx_nodes
        more = f" … {names[-1]} ({len(names)} nodes)" if len(names) > 1 else ""
        return f"{names[0]}{more}" if names else "no nodes"

    @property
    def bound_by(self) -> str:
        """Its costliest cause."""
        return self.causes[0][0] if self.causes else "–"


def layers_of(report: Report) -> list[Layer]:
    """The rows of the layer table, in the order of execution."""
    total = report.summary.latency_cycles
    found = []
    for row, told in enumerate(layer_parts(report.layers, total)):
        cycles, index, nodes = told.get("cycles_total"), told.get("index"), told.get("onnx_nodes")
        known = cycles if isinstance(cycles, int) else 0
        found.append(
            Layer(
                row=row,
                part=str(told.get("part")),
                index=index if isinstance(index, int) else None,
                op_type=str(told.get("op_type") or "?"),
                onnx_nodes=[*map(str, nodes)] if isinstance(nodes, list) else [],
                placement=str(told.get("placement") or "?"),
                cycles=known,
                pct=100.0 * known / max(total, 1),
                causes=sorted(causes_in(told.get("causes")), key=lambda pair: (-pair[1], pair[0])),
                told=told,
            )
        )
    return found


def table_of(report: Report) -> dict[str, Any]:
    """The layer table for the script that draws it: columns once, causes by number."""
    layers = layers_of(report)
    causes = sorted({cause for layer in layers for cause, _ in layer.causes})
    number = {cause: k for k, cause in enumerate(causes)}
    return {
        "cycles": report.summary.latency_cycles,
        "clock_hz": report.hardware.clock_hz,
        "causes": causes,
        "columns": ["part", "index", "op", "nodes", "placement", "cycles", "lower_bound",
                    "utilization", "energy_pj", "tile", "start", "end", "causes"],
        "rows": [
            [
                layer.part, layer.index, layer.op_type,
                layer.onnx_nodes[:1 if layer.part == "kernel" else _MOST_NODES] or ["–"],
                layer.placement, layer.cycles,
                _number(layer.told, "lower_bound_cycles"), _number(layer.told, "utilization_pct"),
                _number(layer.told, "energy_pj"), str(layer.told.get("tile") or ""),
                _number(layer.told, "start_cycle"), _number(layer.told, "end_cycle"),
                [[number[cause], cycles] for cause, cycles in layer.causes],
            ]
            for layer in layers
        ],
    }  # fmt: skip


def _number(row: Mapping[str, Any], key: str) -> int | float | None:
    value = row.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None

"""What is compared: the documents of one run, read once and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import MappingProxyType
from typing import Any

import msgspec

from service.compare.model_graph import (
    ModelGraph,
    Node,
    graph_of,
    graph_of_placement,
    graph_of_regions,
)
from worker.compiler.errors import InputError
from worker.report.parts import layer_parts

REPORT_VERSIONS = (3,)
"""Of report.json: those whose rows have causes and say nothing of their run."""
UNTOLD = "untold"
"""Cause of cycles that a report gives none for; there are none in reports of ours."""


MOST_DEPTH = 64
"""Levels of a report or a spec; ours have a dozen.  What is deeper no answer can carry."""


@dataclass(frozen=True, slots=True)
class Row:
    """What cycles were spent for: a group of nodes, or what a fused kernel spent for none."""

    kernel: int
    """Number of the kernel or host part in `Run.kernels`; -1: outside all of them."""
    is_rest: bool
    """A fused kernel's cycles that none of its groups has: its launch, waits."""
    nodes: tuple[str, ...]
    op_type: str
    placement: str
    cycles: int
    causes: tuple[tuple[str, int], ...]
    """They sum to the cycles."""
    macs: int | None


@dataclass(frozen=True, slots=True)
class Kernel:
    """One executed kernel or host part, whole."""

    index: int
    nodes: tuple[str, ...]
    op_type: str
    placement: str
    cycles: int
    energy_pj: float
    told: Mapping[str, Any]
    """The row of the report."""
    strategy: str | None
    """Who scheduled it; None: unknown, or the host runs it."""
    schedule: str | None
    """Digest of its schedule's text; None: unknown."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where one node runs, and why."""

    node: str
    target: str
    reason_code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """One compiled and simulated model, as its documents tell it.  `Run.of` makes it."""

    name: str
    """What the user calls it: a folder, a file, a job."""
    report: Mapping[str, Any]
    """report.json."""
    graph: ModelGraph
    rows: tuple[Row, ...]
    """In the order of execution; their cycles sum to `cycles`."""
    kernels: tuple[Kernel, ...]
    placement: tuple[Placed, ...]
    cycles: int
    latency_s: float
    summary: Mapping[str, Any]
    spec: Mapping[str, Any] | None
    """The machine with every default filled in: hardware.json of the bundle."""
    missing: tuple[str, ...] = field(default=())
    """Sentences: what could not be told, for want of which document."""

    @staticmethod
    def of(
        name: str,
        report: object,
        *,
        graph: object = None,
        regions: Sequence[object] | None = None,
        schedule: object = None,
        spec: object = None,
    ) -> Run:
        """Read a run out of its documents; only the report is needed.

        Args:
            report: report.json.
            graph: graph.json.
            regions: `regions/N/graph.json` of the bundle, for want of a graph.
            schedule: schedule.json.
            spec: hardware.json of the bundle.

        Raises:
            InputError: TW-CMP-001, the report has another version, or a document is not what it is
                said to be.
        """
        if not isinstance(report, Mapping):
            raise _unlike(name, "the report is no JSON object")
        version = report.get("schema_version")
        if version not in REPORT_VERSIONS:
            raise InputError(
                "TW-CMP-001", f"{name}: the report has version {version}",
                pointer="/schema_version", limit=list(REPORT_VERSIONS), actual=str(version),
            )  # fmt: skip
        if _is_deep(report) or _is_deep(spec):
            raise _unlike(name, f"a document is nested deeper than {MOST_DEPTH} levels")
        missing: list[str] = []
        try:
            told = msgspec.convert(report, _Report)
            schedules = _schedules(schedule)
            if schedules is None:
                missing.append("which strategy and loops each kernel has (schedule.json)")
            if graph is not None:
                model = graph_of(graph)
                if not model.tensors:
                    missing.append(
                        "attributes, shapes and weights of nodes (graph.json is of an older"
                        " version)"
                    )
            elif regions is not None:
                model = graph_of_regions(regions, report["placement"])
                if any(node.attributes is None for node in model.nodes):
                    missing.append("attributes and edges of nodes on the host (graph.json)")
            else:
                model = graph_of_placement(report["placement"])
                missing.append("edges, attributes, shapes and weights of nodes (graph.json)")
            if spec is None:
                missing.append("fields of the machine (hardware.json of the bundle)")
            elif not isinstance(spec, Mapping):
                raise _unlike(name, "hardware.json is no JSON object")
            rows, kernels = _rows(told, report, schedules or {})
        except (msgspec.ValidationError, IndexError, KeyError) as error:
            raise _unlike(name, str(error)) from error
        return Run(
            name, report, _with_strangers(model, rows), rows, kernels,
            tuple(Placed(p.node, p.target, p.reason_code, p.reason) for p in told.placement),
            told.summary.latency_cycles, told.summary.latency_s, report["summary"],
            spec, tuple(missing),
        )  # fmt: skip

    def renamed(self, name: str) -> Run:
        """The same run, called otherwise."""
        return replace(self, name=name)


class _Summary(msgspec.Struct):
    latency_cycles: int
    latency_s: float
    causes: list[dict[str, Any]]


class _Placed(msgspec.Struct):
    node: str
    op_type: str
    target: str
    reason_code: str = ""
    reason: str = ""


class _Layer(msgspec.Struct):
    onnx_nodes: list[str]
    op_type: str
    placement: str
    cycles_total: int
    energy_pj: float
    signature: str | None = None


class _Cause(msgspec.Struct):
    cause: str
    cycles: int


class _Part(msgspec.Struct):
    part: str
    index: int
    onnx_nodes: list[str]
    op_type: str
    placement: str
    cycles_total: int
    causes: list[_Cause]
    macs: int | None = None


class _Report(msgspec.Struct):
    """What a comparison needs of report.json."""

    summary: _Summary
    layers: list[_Layer]
    placement: list[_Placed]
    model: dict[str, Any]
    hardware: dict[str, Any]
    options: dict[str, Any]
    toolchain: dict[str, Any]


class _Unit(msgspec.Struct):
    signature: str
    strategy: str
    text: str


class _Schedule(msgspec.Struct):
    units: list[_Unit]


def _is_deep(document: object) -> bool:
    """Whether a document has more than `MOST_DEPTH` levels; level by level, no recursion."""
    held: list[object] = [document]
    for _ in range(MOST_DEPTH):
        held = [
            inner
            for value in held
            if isinstance(value, Mapping | list)
            for inner in (value.values() if isinstance(value, Mapping) else value)
        ]
        if not held:
            return False
    return True


def _unlike(name: str, why: str) -> InputError:
    return InputError("TW-CMP-001", f"{name}: {why}", actual=why)


def _schedules(document: object) -> dict[str, tuple[str, str]] | None:
    """Strategy and digest of the loops, by signature.

    Notes that strategies left, which also tell of predictions, are no part of the loops.
    """
    if document is None:
        return None
    units = msgspec.convert(document, _Schedule).units
    found: dict[str, tuple[str, str]] = {}
    for unit in units:
        lines = unit.text.splitlines()
        kept = [row for row in lines if not row.startswith(("schedule ", "note "))]
        found[unit.signature] = (unit.strategy, sha256("\n".join(kept).encode()).hexdigest())
    return found


def _rows(
    told: _Report, report: Mapping[str, Any], schedules: Mapping[str, tuple[str, str]]
) -> tuple[tuple[Row, ...], tuple[Kernel, ...]]:
    kernels: list[Kernel] = []
    for number, (layer, raw) in enumerate(zip(told.layers, report["layers"], strict=True)):
        strategy, loops = schedules.get(layer.signature or "", (None, None))
        kernels.append(
            Kernel(number, tuple(layer.onnx_nodes), layer.op_type, layer.placement,
                   layer.cycles_total, layer.energy_pj, MappingProxyType(raw), strategy, loops)
        )  # fmt: skip
    numbered = [{**row, "index": number} for number, row in enumerate(report["layers"])]
    parts = msgspec.convert(layer_parts(numbered, told.summary.latency_cycles), list[_Part])
    rows = [
        Row(part.index, part.part == "kernel", tuple(part.onnx_nodes), part.op_type,
            part.placement, part.cycles_total, _whole(part), part.macs)
        for part in parts
    ]  # fmt: skip
    left = told.summary.latency_cycles - sum(row.cycles for row in rows)
    if left:
        rows.append(Row(-1, True, (), "", "", left, ((UNTOLD, left),), None))
    return tuple(rows), tuple(kernels)


def _whole(part: _Part) -> tuple[tuple[str, int], ...]:
    """The causes of a part; whatever they lack of its cycles has one of its own."""
    left = part.cycles_total - sum(cause.cycles for cause in part.causes)
    causes = [(cause.cause, cause.cycles) for cause in part.causes]
    return (*causes, (UNTOLD, left)) if left else tuple(causes)


def _with_strangers(graph: ModelGraph, rows: Sequence[Row]) -> ModelGraph:
    """The graph, and nodes that only rows name: those of nested graphs."""
    known = {node.name for node in graph.nodes}
    named = dict.fromkeys(name for row in rows for name in row.nodes if name not in known)
    return replace(graph, nodes=(*graph.nodes, *(Node(name, "") for name in named)))

"""How much of a model the accelerator runs, counted the ways BYOC's tables can be read.

Source: BYOC Tables 1, 3, 4; 4-papers.md 2.3: (b) a composite counts as its nodes, or as one; (c)
exporters differ most in index arithmetic (Shape, Concat of dimensions, NonZero), which the paper's
importer folds away or never has: nodes with a number as result are counted apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir

from worker.compiler.frontend.model_summary import node_macs
from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.ir.dtype import DType
from worker.compiler.partition.plan import HOST, Partitioning

_COUNTS = ("nodes", "units", "values", "macs", "on_nodes", "on_units", "on_values", "on_macs")


@dataclass(frozen=True, slots=True)
class OffloadRatios:
    """Counts behind the ratios; conversions that the compiler inserted are left out."""

    nodes: int
    offloaded_nodes: int
    units: int
    """Nodes with every composite counted as one."""
    offloaded_units: int
    value_nodes: int
    """Nodes with a result in floats or 8-bit integers: no index or mask arithmetic."""
    offloaded_value_nodes: int
    macs: int
    offloaded_macs: int

    @property
    def node_pct(self) -> float | None:
        return _pct(self.offloaded_nodes, self.nodes)

    @property
    def unit_pct(self) -> float | None:
        return _pct(self.offloaded_units, self.units)

    @property
    def value_node_pct(self) -> float | None:
        return _pct(self.offloaded_value_nodes, self.value_nodes)

    @property
    def mac_pct(self) -> float | None:
        return _pct(self.offloaded_macs, self.macs)


def offload_ratios(nodes: Sequence[onnx_ir.Node], parts: Partitioning) -> OffloadRatios:
    """Count a partitioning of `nodes` (parallel to its placement rows).  Cost: linear."""
    inner: set[int] = set()
    for part in parts.parts:
        for composite in part.composites:
            kept = [k for k in composite.nodes if not parts.placement[k].is_inserted]
            inner.update(kept[:-1])  # the last one stands for all
    counts = dict.fromkeys(_COUNTS, 0)
    for k, (node, row) in enumerate(zip(nodes, parts.placement, strict=True)):
        if row.is_inserted:
            continue
        macs = node_macs(node)
        is_unit = k not in inner
        is_value = any(_is_number(value) for value in node.outputs)
        for prefix in ("", "on_") if row.target != HOST else ("",):
            counts[f"{prefix}nodes"] += 1
            counts[f"{prefix}units"] += is_unit
            counts[f"{prefix}values"] += is_value
            counts[f"{prefix}macs"] += macs
    return OffloadRatios(
        counts["nodes"], counts["on_nodes"], counts["units"], counts["on_units"],
        counts["values"], counts["on_values"], counts["macs"], counts["on_macs"],
    )  # fmt: skip


def _is_number(value: onnx_ir.Value) -> bool:
    dtype = DTYPES.get(value.dtype) if value.dtype is not None else None
    return dtype is not None and (dtype.is_float or dtype in (DType.I8, DType.U8))


def _pct(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None

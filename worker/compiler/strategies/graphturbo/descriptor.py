"""What is known of GraphTurbo before it is loaded: its version and options."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from worker.compiler.descriptors import StrategyDescriptor


class Variant(StrEnum):
    """How much of GraphTurbo is used: the paper's ablation (V1 to V4) and its two rivals.

    Source: GraphTurbo, evaluation; V4 is called FULL here.
    """

    FULL = "full"
    """V4: V3 and scheduling across layers."""
    LAYERWISE = "layerwise"
    """One kernel per layer, exchanging through off-chip memory, as TVM does."""
    ASTITCH = "astitch"
    """Intermediates stay in local buffers, nothing is cut into instances, as AStitch does."""
    V1 = "v1"
    """Kernel outputs in the global buffer of the cluster."""
    V2 = "v2"
    """V1 with outputs in the local buffers of the cores."""
    V3 = "v3"
    """V2 with instances, in an order that keeps them on chip."""
    PAPER = "paper"
    """What the paper describes, run as such: groups, their instances in the best order that is
    known, and whatever one binding reaches in the cores' local buffers."""


class GraphTurboOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What users may ask of the strategy."""

    variant: Variant = Variant.FULL


DESCRIPTOR = StrategyDescriptor(
    name="graphturbo",
    version="25",
    help="units of many layers, cut into instances that hand over on chip (paper: GraphTurbo)",
    implementation="worker.compiler.strategies.graphturbo.strategy:GRAPHTURBO",
    options=GraphTurboOptions,
    summary="worker.compiler.strategies.graphturbo.report_summary:GraphTurboSummary",
    page="worker.compiler.strategies.graphturbo.report_blocks:page_blocks",
    text="worker.compiler.strategies.graphturbo.report_blocks:text_blocks",
)

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
    """The paper's way: groups, instances in the best known order, one binding in local buffers."""


class Idea(StrEnum):
    """What `without` can turn off, one by one; `benchmarks/ABLATION.md` says what each earns."""

    COMPOSE = "compose"
    """Operators of a region are merged before layers are formed."""
    TWO_STAGES = "two_stages"
    """Reductions over all rows of a sample happen in two stages."""
    LOCKSTEP = "lockstep"
    """Small layers of independent chains run level by level."""
    LOOSEN = "loosen"
    """Epilogues with poor tiles are taken off their anchors."""
    SECTIONS = "sections"
    """A unit changes how it uses the clusters at narrow places."""
    TEAMS = "teams"
    """Within a section some layers run on one cluster and some on the whole chip."""
    BANDS = "bands"
    """Rows of one sample are shared out over clusters."""
    TURNS = "turns"
    """Groups of layers (Algorithm 2) run as a nest of loops over their instances."""
    SPILL_BY_COST = "spill_by_cost"
    """Spills are also chosen by what they cost home's port, beside the paper's rule."""
    HANDOVER = "handover"
    """Tensors between layers may stay in the cores' local buffers."""


class GraphTurboOptions(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What users may ask of the strategy."""

    variant: Variant = Variant.FULL
    without: tuple[Idea, ...] = ()
    """Ideas that are left out; given in any order, kept sorted, each once."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "without", tuple(sorted(set(self.without))))


DESCRIPTOR = StrategyDescriptor(
    name="graphturbo",
    version="33",
    help="units of many layers, cut into instances that hand over on chip (paper: GraphTurbo)",
    implementation="worker.compiler.strategies.graphturbo.strategy:GRAPHTURBO",
    options=GraphTurboOptions,
    summary="worker.compiler.strategies.graphturbo.report_summary:GraphTurboSummary",
    page="worker.compiler.strategies.graphturbo.report_blocks:page_blocks",
    text="worker.compiler.strategies.graphturbo.report_blocks:text_blocks",
)

"""What is planned of a section: its instances, where its tensors live, the layers' tiles.

A section is a run of layers that use the clusters in one way.
Source: GraphTurbo, sections 3.3 and 3.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from worker.compiler.ir.graph import Graph
from worker.compiler.memory.spill import SpillRule
from worker.compiler.schedule.nodes import Box
from worker.compiler.strategies.graphturbo.handover_plan import RunPlan
from worker.compiler.strategies.graphturbo.site import Part, Spread
from worker.compiler.strategies.graphturbo.values import Instance
from worker.compiler.tiling.layer.plan_layer import LayerPlan


@dataclass(frozen=True, slots=True)
class SectionPlan:
    """Layers that run under common loops: everything its part of the tree says.

    Instances run in `order`, or as a nest of loops: before an instance of a part come the instances
    of the parts before it that it covers.
    """

    graph: Graph
    layers: tuple[LayerPlan, ...]
    parts: tuple[Part, ...]
    buffered: tuple[str, ...]
    """Tensors that live in GB."""
    staged: frozenset[str]
    """Those of them that are brought in from home."""
    kept: frozenset[str]
    """Those of them that are stored home as well."""
    summed: frozenset[str]
    """Those of them that an engine adds up in place."""
    place: Mapping[str, int]
    """Part around whose instance a tensor in GB has its place."""
    box: Mapping[str, Box]
    """What that instance holds of it."""
    share: Mapping[str, Box]
    """What an instance of the part that makes it stores of an output that lives in GB."""
    spilled: tuple[str, ...]
    """Tensors that would live in GB if there were room."""
    whole_chip: tuple[bool, ...]
    """Per layer."""
    spread: Spread
    buffer: str
    """Name of the global buffer; empty when there is none."""
    home: str
    predicted_cycles: int
    runs: tuple[RunPlan, ...] = ()
    """Layers that hand tensors over in the cores' buffers."""
    spill_rule: SpillRule = SpillRule.LONGEST_LIVENESS
    """What chose `spilled`."""
    order: tuple[Instance, ...] = ()
    """Instances of the parts in a cluster, one by one; empty: as a nest of loops."""

"""The ablation: which of GraphTurbo's ideas a variant uses.

Source: GraphTurbo, section 5.3 (V1 .. V4) and 5.2 (TVM's kernels per layer, AStitch's stitching
without instances), as switches of one machinery.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from worker.compiler.strategies.graphturbo.descriptor import GraphTurboOptions, Idea, Variant
from worker.compiler.strategies.graphturbo.handover import EAGER, RESIDENT


@dataclass(frozen=True, slots=True)
class Features:
    """What a variant may do."""

    across_layers: bool
    """Several layers in one kernel."""
    shared_buffer: bool
    """Tensors between layers stay in GB."""
    row_chains: bool
    """Vector operators are chained in LB."""
    instances: bool
    """Layers are cut into ordered instances, spread over clusters and time."""
    handover: float
    """Tensors between layers may stay in the cores' local buffers where that takes at most so much
    of the cycles through GB; 0: never."""
    prefetch: bool
    """Weights of a layer are fetched under the layers before."""
    ordered: bool = False
    """Instances run in the orders that the paper knows, one section per unit; nothing else is
    compared."""
    without: frozenset[Idea] = frozenset()

    def uses(self, idea: Idea) -> bool:
        """Whether nobody turned it off."""
        return idea not in self.without


FEATURES: dict[Variant, Features] = {
    Variant.LAYERWISE: Features(False, False, False, False, 0, False),
    Variant.ASTITCH: Features(True, False, True, False, 0, False),
    Variant.V1: Features(True, True, False, False, 0, False),
    Variant.V2: Features(True, True, True, False, EAGER, False),
    Variant.V3: Features(True, True, True, True, EAGER, False),
    Variant.FULL: Features(True, True, True, True, EAGER, True),
    Variant.PAPER: Features(True, True, True, True, RESIDENT, True, True),
}


def features_of(options: GraphTurboOptions, variant: Variant | None = None) -> Features:
    """What a variant, by default the chosen one, may do under the options."""
    found = replace(FEATURES[variant or options.variant], without=frozenset(options.without))
    return found if found.uses(Idea.HANDOVER) else replace(found, handover=0)

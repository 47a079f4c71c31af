"""Taking an epilogue off its anchor again where the two together have poor tiles.

An epilogue needs complete sums, so no stage outside of the cores may loop over the reduction; and
its operands need room beside the anchor's.  A long reduction then leaves small tiles, for which
operands are loaded again and again: the anchor alone, and a pass over its result, may be faster.
Source: our own; GraphTurbo, section 4.1, always lets the pointwise operators follow the anchor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
from worker.compiler.tiling.nest.plan import Plan
from worker.compiler.tiling.nest.splits import least_cycles

POOR = 2.0
"""Predicted cycles, as a multiple of what the best split needs at least, of poor tiles."""


def poor_anchors(
    sections: Sequence[SectionPlan], engines: Mapping[str, Engine], machine: Machine
) -> tuple[str, ...]:
    """Operators of matrix-like layers with an epilogue whose tiles are far from what can be.

    Cost: a ranking of splits per layer.
    """
    found: list[str] = []
    for section in sections:
        in_runs = {k for run in section.runs for k in range(run.run.first, run.run.last)}
        for number, layer in enumerate(section.layers):
            plan = layer.tiles
            if number in in_runs or not isinstance(plan, Plan) or not plan.facts.epilogue:
                continue
            name = layer.layer.ops[0]
            team = plan.levels[-1].stage.team
            least = least_cycles(plan.facts, engines[name], machine, team)
            if plan.predicted_cycles > POOR * least:
                found.append(name)
    return tuple(found)

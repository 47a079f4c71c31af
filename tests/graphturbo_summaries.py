"""Summaries of GraphTurbo units as a strategy would hand them over, for tests of the report."""

from __future__ import annotations

from worker.compiler.strategies.graphturbo.summary import (
    BufferScope,
    GroupSummary,
    MovementSummary,
    OrderName,
    OrderSummary,
    SectionSummary,
    SpillSummary,
    UnitSummary,
)


def stages(simulated_cycles: int | None = 1200, calls: int = 1) -> UnitSummary:
    """Figure 6 of the paper: four stages of 8, 4, 2 and 1 instances, each output one KiB.

    Peaks are those of the worked example: 9 outputs breadth first, 5 depth first.
    """
    return UnitSummary(
        unit=3,
        label="conv<1> .. relu_5 (11 nodes)",
        layers=4,
        operators=7,
        groups=tuple(GroupSummary((k,), 8 >> k, 4096) for k in range(4)),
        orders=(
            OrderSummary(OrderName.BFS, 9216, 1024, chosen=False),
            OrderSummary(OrderName.DFS, 5120, 0, chosen=True),
        ),
        tensors_by_scope={BufferScope.LB: 12, BufferScope.GB: 2, BufferScope.HOME: 1},
        spills=(SpillSummary("t7", 1024, BufferScope.GB, "longest live range"),),
        movements=(MovementSummary("copy", 2, 2048), MovementSummary("concat", 7, 7168)),
        is_ahead=True,
        samples_per_cluster=16,
        iterations=1,
        predicted_cycles=1100,
        simulated_cycles=simulated_cycles,
        sections=(SectionSummary("3 layers, 4 clusters", 700), SectionSummary("1 layer", 400)),
        calls=calls,
    )


def lone() -> UnitSummary:
    """One layer that no factor makes fit: no order, nothing on chip."""
    return UnitSummary(
        unit=4,
        label="fc",
        layers=1,
        operators=1,
        groups=(GroupSummary((0,), None, 1 << 20),),
        orders=(),
        tensors_by_scope={BufferScope.LB: 0, BufferScope.GB: 0, BufferScope.HOME: 1},
        spills=(),
        movements=(),
        is_ahead=False,
        samples_per_cluster=1,
        iterations=16,
        predicted_cycles=300,
        simulated_cycles=300,
    )

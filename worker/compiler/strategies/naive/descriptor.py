"""What is known of the naive strategy before it is loaded."""

from __future__ import annotations

from worker.compiler.descriptors import StrategyDescriptor

DESCRIPTOR = StrategyDescriptor(
    name="naive",
    version="7",
    help="one operator, or one fused composite, per kernel",
    implementation="worker.compiler.strategies.naive.strategy:NAIVE",
    is_last_resort=True,
)

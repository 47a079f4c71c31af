"""What Tilewright reads before anything is compiled: keep numpy and the strategy out of here."""

from __future__ import annotations

import msgspec

from worker.compiler.descriptors import StrategyDescriptor


class ChainOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What users may say: `--strategy-option chains.longest=4`."""

    longest: int = 8
    """Operators of a chain, at most."""


DESCRIPTOR = StrategyDescriptor(
    name="chains",
    version="1.0",
    help="every operator takes the pointwise operators behind it into its kernel",
    implementation="chain_strategy.strategy:CHAINS",
    options=ChainOptions,
    summary="chain_strategy.report:ChainSummary",
    page="chain_strategy.report:page_blocks",
    text="chain_strategy.report:text_blocks",
)

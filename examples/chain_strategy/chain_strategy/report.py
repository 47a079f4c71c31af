"""What reports say of the chains: a summary in the JSON, and how a page and a terminal show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import ClassVar, Self

import msgspec

from chain_strategy.descriptor import ChainOptions
from worker.compiler.strategies.sections import (
    Figures,
    Markup,
    PageBlock,
    Summary,
    Table,
    TextBlock,
    UnitNotes,
)


class Chain(msgspec.Struct, frozen=True):
    """One kernel."""

    nodes: tuple[str, ...]
    calls: int
    simulated_cycles: int | None


class ChainSummary(Summary, frozen=True):
    """Every kernel of the strategy's, the longest chain first."""

    nulls: ClassVar[Mapping[str, str]] = {"simulated_cycles": "not every kernel was simulated"}
    longest_allowed: int
    chains: tuple[Chain, ...]

    @classmethod
    def of(cls, units: Sequence[UnitNotes], options: ChainOptions) -> Self | None:
        """The strategy leaves no notes at its schedules: nodes and cycles say all."""
        found = [Chain(unit.nodes, unit.calls, unit.simulated_cycles) for unit in units]
        found.sort(key=lambda chain: (-len(chain.nodes), chain.nodes))
        return cls(longest_allowed=options.longest, chains=tuple(found))


def text_blocks(summary: ChainSummary) -> Iterator[TextBlock]:
    """What `tilewright report` prints."""
    lengths = [len(chain.nodes) for chain in summary.chains]
    figures = {"kernels": len(lengths), "longest": lengths[0], "allowed": summary.longest_allowed}
    yield Figures("chains", figures)


def page_blocks(summary: ChainSummary) -> Iterator[PageBlock]:
    """What report.html shows: the same, a row per chain, and a drawing of their lengths."""
    yield from text_blocks(summary)
    rows = tuple(msgspec.to_builtins(chain) for chain in summary.chains)
    yield Table("Chains: nodes", ("calls", "simulated_cycles", "nodes"), rows)
    bars = "".join(
        f'<rect class="bar" y="{16 * k}" width="{20 * len(chain.nodes)}" height="12">'
        f"<title>{escape(chain.nodes[0])}</title></rect>"
        for k, chain in enumerate(summary.chains)
        if chain.nodes
    )
    size = f"0 0 {20 * summary.longest_allowed} {16 * len(rows)}"
    yield Markup("Chains: lengths", f'<svg viewBox="{size}">{bars}</svg>')

"""What twice of each resource would bring at most, by the chain that every cycle is blamed on.

The program stays as it is: with another machine its strategy may find a better one
(`tilewright explain layer` searches again, kernel by kernel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from worker.report.cause_bars import family

_LEVERS: Mapping[str, str] = MappingProxyType(
    {
        "engine": "{name}.macs_per_cycle x 2",
        "fill": "{name}.startup_cycles / 2",
        "feed": "{name}.feed_bytes_per_cycle x 2",
        "port": "{name}_bytes_per_cycle x 2",
        "link": "{name}.bytes_per_cycle x 2",
        "dma": "{name}.setup_cycles / 2, outstanding_bytes x 2",
        "latency": "latency_cycles / 2",
        "synchronisation": "signal_cycles, engine_signal_cycles / 2",
        "launch": "launch_latency_cycles / 2",
        "host": "host: twice as fast",
        "host-link": "host.link_bytes_per_s x 2",
    }
)
"""By kind of cause, what of the machine to change; `{name}` is what of it the cause names."""
_MOST_LAYERS = 3


@dataclass(frozen=True, slots=True)
class Cost:
    """What one cause costs, and what twice of its resource would bring."""

    cause: str
    cycles: int
    pct: float
    lever: str
    """What would be changed, as the spec names it; empty: a kind that this release knows not."""
    least_cycles: float
    """Of the whole run, were all cycles of this cause halved: no fewer on the same chain."""
    factor: float
    """Cycles now over these: at most so many times faster."""
    layers: tuple[tuple[str, int], ...]
    """(layer, its cycles of this cause), the costliest first."""


def costs(
    causes: Sequence[tuple[str, int]],
    total: int,
    layers: Sequence[tuple[str, Sequence[tuple[str, int]]]] = (),
) -> list[Cost]:
    """Every cause with what twice of its resource would bring, the costliest first.

    Args:
        causes: (cause, cycles) of the run; they sum to `total`.
        layers: (name, its causes).
    """
    found = []
    for cause, cycles in sorted(causes, key=lambda row: (-row[1], row[0])):
        kind, _, name = cause.partition(":")
        least = total - cycles / 2
        own = [(label, dict(blamed).get(cause, 0)) for label, blamed in layers]
        own = sorted((row for row in own if row[1]), key=lambda row: -row[1])[:_MOST_LAYERS]
        found.append(
            Cost(
                cause,
                cycles,
                100.0 * cycles / max(total, 1),
                _LEVERS.get(family(cause), "").format(name=name or kind),
                least,
                total / least if least > 0 else 1.0,
                tuple(own),
            )
        )
    return found

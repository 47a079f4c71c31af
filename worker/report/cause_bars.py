"""Who is to blame for cycles, as one bar of stacked parts; classes of CSS give the colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from types import MappingProxyType

FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "engine": "an engine computes",
        "fill": "a pipeline fills and drains",
        "feed": "an engine waits for its own memory's ports",
        "port": "a memory's port moves bytes",
        "link": "a link moves bytes",
        "dma": "a transfer engine is busy setting up, or has no room for more bytes on their way",
        "latency": "results are ready and not yet seen",
        "synchronisation": "a signal is on its way from one core or engine to another",
        "launch": "kernels are being started",
        "host": "the host works",
        "host-link": "copies to and from the host",
    }
)
"""Kinds of causes (docs/figures.md), and what the critical chain does in their cycles."""
STYLE = """
svg.causes{height:22px}
.cause-engine{fill:#2f6fb3}.cause-fill{fill:#6ba3d6}.cause-feed{fill:#2a8f9e}
.cause-port{fill:#c8641b}.cause-link{fill:#e0a030}.cause-dma{fill:#a8731c}
.cause-latency{fill:#8a8f98}.cause-synchronisation{fill:#b06fb5}.cause-launch{fill:#7a5ab0}
.cause-host{fill:#3f8f4f}.cause-host-link{fill:#8fb84a}
"""
"""Colours that keep apart on white and on near black, and for most who confuse red and green."""
_WIDTH, _HEIGHT = 880, 22


def family(cause: str) -> str:
    """The kind of a cause: `port` of `port:DRAM.read`."""
    return cause.partition(":")[0]


def cause_bar(causes: Sequence[tuple[str, int]], total: int, label: str) -> str:
    """One bar, `total` cycles wide; `causes`: (cause, cycles), the largest first."""
    scale = _WIDTH / max(total, sum(cycles for _, cycles in causes), 1)
    x, parts = 0.0, []
    for cause, cycles in causes:
        width = cycles * scale
        title = f"{cause}: {cycles:,} cycles, {100 * cycles / max(total, 1):.1f} %"
        parts.append(
            f'<rect class="{class_of(cause)}" x="{x:.2f}" y="0" width="{max(width - 0.8, 0.2):.2f}"'
            f' height="{_HEIGHT}"><title>{escape(title)}</title></rect>'
        )
        x += width
    return (
        f'<svg class="causes" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none"'
        f' role="img" aria-label="{escape(label, quote=True)}">{"".join(parts)}</svg>'
    )


def class_of(cause: str) -> str:
    """The class that colours a cause; `cause-latency` for kinds that a later release knows."""
    kind = family(cause)
    return f"cause-{kind if kind in FAMILIES else 'latency'}"

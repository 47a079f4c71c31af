"""A figure of the report as people read it, by the unit that its name ends in."""

from __future__ import annotations

from worker.compiler.errors import Detail
from worker.report.plots import si

_UNITS = (
    ("_pj", 1e-12, "J"), ("_s", 1.0, "s"), ("_hz", 1.0, "Hz"), ("_cycles", 1.0, "cycles"),
    ("macs", 1.0, "MACs"),
)  # fmt: skip
_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def capacity(value: float) -> str:
    """Bytes with a binary prefix: `64 KiB`."""
    for scale, unit in _BINARY:
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g} B"


def readable(name: str, value: Detail) -> str:
    """`latency_s` 0.000216 as `216 µs`; empty where the number says all, or its unit is unknown.

    Names may be dotted; where the last part has no unit, the parts before it are asked.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    for part in reversed(name.split(".")):
        if part.endswith("_per_s"):
            return f"{si(value)}/s"
        if part.endswith("_pct"):
            return f"{value:.3g} %"
        if part.endswith("_bytes"):
            return capacity(value)
        for suffix, scale, unit in _UNITS:
            if part.endswith(suffix):
                return si(value * scale, unit)
    return ""

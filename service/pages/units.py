"""Numbers as people read them: with an SI prefix, or a binary one where memories are counted."""

from __future__ import annotations

from worker.report import readable
from worker.report.plots import si

_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
NONE = "–"
"""What stands where there is no number."""


def quantity(value: float | None, unit: str = "") -> str:
    """Three significant digits and a prefix: `109 k`, `217 µs`; a dash for None."""
    return NONE if value is None else si(value, unit)


def whole(value: int | None) -> str:
    """All digits, in groups of three."""
    return NONE if value is None else f"{value:,}"


def capacity(value: float | None) -> str:
    """Bytes of a memory: `64 KiB`."""
    return NONE if value is None else readable.capacity(value)


def percent(value: float | None) -> str:
    """Of 100: `76.1 %`."""
    return NONE if value is None else f"{value:.3g} %"


def ratio(value: float | None) -> str:
    """How many times: `1.42×`."""
    return NONE if value is None else f"{value:.3g}×"


def energy(pj: float | None) -> str:
    """Picojoules with a prefix."""
    return NONE if pj is None else si(pj * 1e-12, "J")


def span(seconds: float | None) -> str:
    """How long: `0.4 s`, `3.2 min`."""
    if seconds is None:
        return NONE
    for scale, unit in _AGES:
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{max(seconds, 0.0):.2g} s"

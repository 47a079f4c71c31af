"""Amounts as messages show them."""

from __future__ import annotations

from collections.abc import Sequence

from service.gate.figures import FIGURES, OF_A_LEVEL

_UNITS = {
    "ms": "ms", "cycles": "cycles", "mj": "mJ", "w": "W", "mb": "MB", "kib": "KiB", "pct": "%",
}  # fmt: skip


def unit_of(figure: str) -> str:
    """The unit that a figure's name ends in; empty for plain numbers."""
    stem = figure.partition(":")[0]
    assert stem in FIGURES or stem in OF_A_LEVEL
    return _UNITS.get(stem.rpartition("_")[2], "")


def number(value: float) -> str:
    """A number with four digits or, where it is whole, all of them."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.4g}"


def amount(value: float, figure: str) -> str:
    """A number with its unit."""
    unit = unit_of(figure)
    return f"{number(value)} {unit}" if unit else number(value)


def change(base: float, head: float, figure: str) -> str:
    """`1.24 -> 1.39 ms`, with as many digits as tell the two apart."""
    unit = unit_of(figure)
    for digits in range(4, 17):
        shown = [
            str(int(v)) if v == int(v) and abs(v) < 1e15 else f"{v:.{digits}g}"
            for v in (base, head)
        ]
        if shown[0] != shown[1] or base == head:
            break
    return f"{shown[0]} -> {shown[1]}{' ' + unit if unit else ''}"


def percent(base: float, head: float) -> str:
    """How much more or less the head is than the base."""
    if not base:
        return "from nothing"
    share = abs(head / base - 1) * 100
    return f"{share:.3g} % {'more' if head > base else 'less'}"


def subject(label: str, nodes: Sequence[str], cause: str | None) -> str:
    """What a finding is about, for its message."""
    of = f" in {cause}" if cause is not None else ""
    if not nodes:
        return f"{label}{of}"
    more = f" (+{len(nodes) - 1})" if len(nodes) > 1 else ""
    return f"{label}, layer {nodes[0]}{more}{of}"

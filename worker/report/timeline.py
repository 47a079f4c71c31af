"""Who works when, as one drawing: a slice for every layer, coloured by what it mostly waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from worker.report.cause_bars import class_of
from worker.report.plots import si

_WIDTH, _LEFT, _RIGHT, _LANE, _AXIS = 880, 92, 16, 26, 18
_LEAST = 0.35
"""Slices narrower than this join the one before, in units of the drawing."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A layer's stay."""

    label: str
    start_cycle: int
    end_cycle: int
    on_host: bool
    cause: str
    """Its costliest."""


def timeline(slices: Sequence[Slice], total: int, clock_hz: float) -> str:
    """Two lanes over time; the host's is left out where it does nothing.  Cost: linear."""
    scale = (_WIDTH - _LEFT - _RIGHT) / max(total, 1)
    lanes = [("accelerator", [one for one in slices if not one.on_host])]
    if host := [one for one in slices if one.on_host]:
        lanes.append(("host", host))
    height = _AXIS + len(lanes) * (_LANE + 6) + 4
    parts = []
    for k in range(5):
        cycle = total * k / 4
        x = _LEFT + cycle * scale
        anchor = "start" if k == 0 else "end" if k == 4 else "middle"
        parts.append(
            f'<line class="grid" x1="{x:.1f}" y1="{_AXIS - 4}" x2="{x:.1f}" y2="{height - 4}"/>'
            f'<text x="{x:.1f}" y="11" text-anchor="{anchor}" font-size="11">'
            f"{escape(si(cycle / clock_hz, 's') if k else '0')}</text>"
        )
    for row, (name, own) in enumerate(lanes):
        top = _AXIS + row * (_LANE + 6)
        parts.append(
            f'<text x="{_LEFT - 8}" y="{top + 17}" text-anchor="end" font-size="11">{name}</text>'
        )
        for first, last, members in _joined(sorted(own, key=lambda one: one.start_cycle), scale):
            x, width = _LEFT + first * scale, (last - first) * scale
            head = members[0]
            told = head.label if len(members) == 1 else f"{len(members)} layers from {head.label}"
            took = si((last - first) / clock_hz, "s")
            said = f"{told}: {took} from {si(first / clock_hz, 's')}, mostly {head.cause}"
            parts.append(
                f'<rect class="{class_of(head.cause)}" x="{x:.2f}" y="{top}"'
                f' width="{max(width - 0.3, 0.2):.2f}" height="{_LANE}">'
                f"<title>{escape(said)}</title></rect>"
            )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="Timeline of layers">'
        + "".join(parts)
        + "</svg>"
    )


def _joined(slices: Sequence[Slice], scale: float) -> list[tuple[int, int, list[Slice]]]:
    """(first cycle, last cycle, members): what is too narrow to be seen joins what it touches."""
    found: list[tuple[int, int, list[Slice]]] = []
    for one in slices:
        if found:
            first, last, members = found[-1]
            is_narrow = (last - first) * scale < _LEAST
            if is_narrow and (one.start_cycle - last) * scale < _LEAST:
                found[-1] = (first, max(last, one.end_cycle), [*members, one])
                continue
        found.append((one.start_cycle, one.end_cycle, [one]))
    return found

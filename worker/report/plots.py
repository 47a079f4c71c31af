"""Plots as plain SVG text: roofline, per-layer bars, memory occupancy, energy breakdown, scatter.

Plain strings because the report must open without a network and be byte-identical for identical
results; every label is escaped.  Colours follow the page's CSS variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log10
from typing import NamedTuple

from worker.report.cause_bars import class_of

WIDTH, HEIGHT = 880, 300
LEFT, RIGHT, TOP, BOTTOM = 76, 16, 14, 40
_LEAST_PX = 0.05
_MOST_SAID = 3


def _svg(body: Sequence[str], label: str, height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}">'
        + "".join(body)
        + "</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", size: int = 11) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(text)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, cls: str = "grid") -> str:
    return f'<line class="{cls}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


_PREFIXES = (
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1.0, ""),
    (1e-3, "m"),
    (1e-6, "µ"),
    (1e-9, "n"),
    (1e-12, "p"),
)


def si(value: float, unit: str = "") -> str:
    """A number with an SI prefix, three significant digits."""
    for scale, prefix in _PREFIXES:
        if abs(value) >= scale:
            return f"{value / scale:.3g} {prefix}{unit}".rstrip()
    return f"{value:.3g} {unit}".rstrip()


def _ticks(top: float) -> list[float]:
    if top <= 0:
        return [0.0]
    step = 10 ** int(log10(top)) if top >= 1 else top
    while top / step < 4:
        step /= 2
    return [step * k for k in range(int(top / step) + 1)]


class _Decades(NamedTuple):
    """A plane of logarithms."""

    x0: float
    x1: float
    y0: float
    y1: float

    def px(self, v: float) -> float:
        return LEFT + (v - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def py(self, v: float) -> float:
        return HEIGHT - BOTTOM - (v - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)

    def grid(self) -> list[str]:
        body = []
        for decade in range(floor(self.x0) - 1, floor(self.x1) + 2):
            if self.x0 <= decade <= self.x1:
                x = self.px(decade)
                body += [_line(x, TOP, x, HEIGHT - BOTTOM),
                         _text(x, HEIGHT - BOTTOM + 15, f"1e{decade}")]  # fmt: skip
        for decade in range(floor(self.y0) - 1, floor(self.y1) + 2):
            if self.y0 <= decade <= self.y1:
                y = self.py(decade)
                body += [_line(LEFT, y, WIDTH - RIGHT, y),
                         _text(LEFT - 6, y + 4, f"1e{decade}", "end")]  # fmt: skip
        return body


def scatter(points: Sequence[tuple[str, float, float, bool]], x: str, y: str) -> str:
    """Points above 0 on logarithmic axes that are called `x` and `y`.

    `points`: (label, x, y, whether it is one of those to look at).
    """
    kept = [p for p in points if p[1] > 0 and p[2] > 0]
    xs = [log10(p[1]) for p in kept] or [0.0]
    ys = [log10(p[2]) for p in kept] or [0.0]
    plane = _Decades(min(xs) - 0.1, max(xs) + 0.1, min(ys) - 0.1, max(ys) + 0.1)
    body = plane.grid()
    for label, across, up, is_kept in sorted(kept, key=lambda p: p[3]):
        body.append(
            f'<circle class="dot{"" if is_kept else " dim"}" cx="{plane.px(log10(across)):.1f}"'
            f' cy="{plane.py(log10(up)):.1f}" r="{5 if is_kept else 3}">'
            f"<title>{escape(label)}</title></circle>"
        )
    body += [
        _text((LEFT + WIDTH) / 2, HEIGHT - 6, f"{x}: {_span(10 ** min(xs), 10 ** max(xs))}"),
        _text(LEFT, TOP - 3, f"{y}: {_span(10 ** min(ys), 10 ** max(ys))}", "start"),
    ]
    return _svg(body, f"{y} over {x}")


def _span(low: float, high: float) -> str:
    return f"{low:.3g} to {high:.3g}"


def roofline(
    points: Sequence[tuple[str, float, float, int]],
    peak_macs_per_cycle: float,
    home_bytes_per_cycle: float,
) -> str:
    """Layers on the machine's roofline.

    `points`: (label, MACs per home byte, MACs per cycle, cycles); the roof is
    min(peak, intensity * home bandwidth), of both directions where they have a port each.  Both
    axes are logarithmic.
    """
    kept = [p for p in points if p[1] > 0 and p[2] > 0]
    ridge = peak_macs_per_cycle / home_bytes_per_cycle
    xs = [log10(p[1]) for p in kept] + [log10(ridge) - 1, log10(ridge) + 1]
    ys = [log10(p[2]) for p in kept] + [log10(peak_macs_per_cycle)]
    x0, x1 = min(xs) - 0.2, max(xs) + 0.2
    y0, y1 = min(*ys, log10(peak_macs_per_cycle) - 3), max(ys) + 0.3

    plane = _Decades(x0, x1, y0, y1)
    px, py = plane.px, plane.py
    body = plane.grid()
    roof = log10(peak_macs_per_cycle)
    bandwidth = log10(home_bytes_per_cycle)
    start = max(x0, y0 - bandwidth)
    corner = log10(ridge)
    body += [
        _line(px(start), py(start + bandwidth), px(corner), py(roof), "roof"),
        _line(px(corner), py(roof), px(x1), py(roof), "roof"),
        _text((LEFT + WIDTH) / 2, HEIGHT - 6, "MACs per byte of off-chip traffic"),
        _text(LEFT, TOP - 3, "MACs per cycle", "start"),
    ]
    heaviest = max((p[3] for p in kept), default=1)
    for label, intensity, rate, cycles in kept:
        radius = 2.5 + 7 * (cycles / heaviest) ** 0.5
        body.append(
            f'<circle class="dot" cx="{px(log10(intensity)):.1f}" cy="{py(log10(rate)):.1f}"'
            f' r="{radius:.1f}"><title>{escape(label)}: {intensity:.3g} MAC/B, {rate:.4g}'
            f" MAC/cycle, {cycles} cycles</title></circle>"
        )
    return _svg(body, "Roofline")


Bar = tuple[str, int, int, Sequence[tuple[str, int]]]
"""(label, cycles, lower bound cycles, causes with their cycles)."""


def layer_bars(bars: Sequence[Bar]) -> str:
    """Cycles per layer in execution order, stacked by cause, with a mark at its lower bound."""
    top = max((b[1] for b in bars), default=1) or 1
    scale = (HEIGHT - TOP - BOTTOM) / top
    slot = (WIDTH - LEFT - RIGHT) / max(len(bars), 1)
    base = HEIGHT - BOTTOM
    body = []
    for tick in _ticks(top):
        body += [_line(LEFT, base - tick * scale, WIDTH - RIGHT, base - tick * scale),
                 _text(LEFT - 6, base - tick * scale + 4, si(tick), "end")]  # fmt: skip
    for k, (label, cycles, bound, causes) in enumerate(bars):
        x, w = LEFT + k * slot, max(slot * 0.86, 0.4)
        stack = 0
        for cause, own in causes or (("", cycles),):
            height = own * scale
            if height >= _LEAST_PX:  # nothing of less would be seen
                body.append(
                    f'<rect class="{class_of(cause) if cause else "bar"}" x="{x:.2f}"'
                    f' y="{base - stack * scale - height:.2f}" width="{w:.2f}"'
                    f' height="{height:.2f}"/>'
                )
            stack += own
        if bound:
            y = base - min(bound, cycles) * scale
            body.append(_line(x, y, x + w, y, "least"))
        said = ", ".join(f"{cause} {own:,}" for cause, own in causes[:_MOST_SAID])
        body.append(
            f'<rect class="over" x="{x:.2f}" y="{TOP}" width="{w:.2f}" height="{base - TOP}">'
            f"<title>{escape(label)}: {cycles:,} cycles, bound {bound:,}; {escape(said)}</title>"
            "</rect>"
        )
    said = "layers in execution order, cycles by cause (line: lower bound)"
    body.append(_text((LEFT + WIDTH) / 2, HEIGHT - 8, said))
    return _svg(body, "Cycles per layer")


def paired_bars(pairs: Sequence[tuple[str, float, float]], unit: str) -> str:
    """Two bars side by side for each label: before (light) and after (dark).

    `pairs`: (label, before, after), in `unit`.
    """
    top = max((max(before, after) for _, before, after in pairs), default=1) or 1
    scale = (HEIGHT - TOP - BOTTOM) / top
    slot = (WIDTH - LEFT - RIGHT) / max(len(pairs), 1)
    base = HEIGHT - BOTTOM
    body = []
    for tick in _ticks(top):
        body += [_line(LEFT, base - tick * scale, WIDTH - RIGHT, base - tick * scale),
                 _text(LEFT - 6, base - tick * scale + 4, si(tick), "end")]  # fmt: skip
    for k, (label, before, after) in enumerate(pairs):
        width = max(slot * 0.43, 0.4)
        title = f"<title>{escape(label)}: {before:,} -> {after:,} {escape(unit)}</title>"
        for place, value, cls in ((0, before, "bar"), (1, after, "bound")):
            height = max(value, 0) * scale
            body.append(
                f'<rect class="{cls}" x="{LEFT + k * slot + place * width:.2f}"'
                f' y="{base - height:.2f}" width="{width:.2f}" height="{height:.2f}">{title}</rect>'
            )
    label = f"light: base, dark: head, {unit}"
    body.append(_text((LEFT + WIDTH) / 2, HEIGHT - 8, label))
    return _svg(body, label)


def occupancy(name: str, capacity: int, steps: Sequence[tuple[int, int]], total_cycles: int) -> str:
    """Bytes in use over time in the fullest instance of one level.

    `steps`: (cycle, bytes from then on), ascending.
    """
    height = 150
    base = height - BOTTOM
    top = max(capacity, max((b for _, b in steps), default=0), 1)
    sx = (WIDTH - LEFT - RIGHT) / max(total_cycles, 1)
    sy = (base - TOP) / top
    body = [
        _line(LEFT, base - capacity * sy, WIDTH - RIGHT, base - capacity * sy, "roof"),
        _text(LEFT - 6, base - capacity * sy + 4, si(capacity, "B"), "end"),
        _text(LEFT - 6, base + 4, "0", "end"),
        _text(LEFT, height - 8, f"{name}: bytes in use over {si(total_cycles)} cycles", "start"),
    ]
    path = [f"M{LEFT:.1f} {base:.1f}"]
    last = 0
    for cycle, used in steps:
        x = LEFT + cycle * sx
        path += [f"L{x:.1f} {base - last * sy:.1f}", f"L{x:.1f} {base - used * sy:.1f}"]
        last = used
    end = LEFT + total_cycles * sx
    path += [f"L{end:.1f} {base - last * sy:.1f}", f"L{end:.1f} {base:.1f}Z"]
    body.append(f'<path class="area" d="{"".join(path)}"/>')
    return _svg(body, f"Occupancy of {name}", height)


def energy_bars(lines: Sequence[tuple[str, float, float, float]]) -> str:
    """Horizontal bars of the energy ledger, largest first: item, pJ, and the range as a whisker."""
    kept = sorted((x for x in lines if x[1] > 0), key=lambda x: (-x[1], x[0]))
    row = 22
    height = TOP + row * max(len(kept), 1) + 10
    whole = sum(pj for _, pj, _, _ in kept) or 1.0
    top = max((high for *_, high in kept), default=1.0)
    scale = (WIDTH - 420) / top
    body = []
    for k, (item, pj, low, high) in enumerate(kept):
        y = TOP + k * row
        text = f"{si(pj * 1e-12, 'J')} ({100 * pj / whole:.1f} %)"
        body += [
            _text(150, y + 14, item, "end"),
            f'<rect class="bar" x="160" y="{y + 3:.1f}" width="{scale * pj:.2f}"'
            f' height="{row - 7}"/>',
        ]
        if low < high:
            text += f", {si(low * 1e-12, 'J')} to {si(high * 1e-12, 'J')}"
            body.append(_line(160 + scale * low, y + 10.5, 160 + scale * high, y + 10.5, "whisker"))
        body.append(_text(166 + scale * max(pj, high), y + 14, text, "start"))
    return _svg(body, "Energy breakdown", height)

"""A spec as a block diagram: memories from the host inward, what stands in a cluster and in a core,
engines below the memory that they work from, and what moves between them.  SVG text."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from service.pages.machine import Document, number, plain, rows
from service.pages.units import capacity, quantity

WIDTH = 760
_MEMORY, _ENGINE, _GAP, _WIRE, _INSET = 44, 60, 10, 32, 22
_MOVERS: Mapping[str, str] = {"dma_in": "in by", "dma_out": "out by"}
_MOST_FORMATS = 3
_MOST_BESIDE = 4


class _Drawing:
    """Parts so far, how far down they reach, and the frames that are open."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.y = 8.0
        self._open: list[tuple[int, float, str]] = []

    @property
    def left(self) -> float:
        """Where boxes begin inside the innermost frame."""
        return 4 + _INSET * len(self._open)

    @property
    def inner_width(self) -> float:
        """How wide a box may be there."""
        return WIDTH - 2 * self.left

    def text(self, x: float, y: float, text: str, cls: str, anchor: str = "middle") -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{cls}">'
            f"{escape(text)}</text>"
        )

    def box(self, x: float, width: float, height: float, cls: str) -> None:
        self.parts.append(
            f'<rect class="{cls}" x="{x:.1f}" y="{self.y:.1f}" width="{width:.1f}"'
            f' height="{height:.1f}" rx="4"/>'
        )

    def wire(self, label: str) -> None:
        """A way down the middle, with what passes."""
        x = WIDTH / 2
        self.parts.append(
            f'<line class="wire" x1="{x}" y1="{self.y:.1f}" x2="{x}" y2="{self.y + _WIRE:.1f}"/>'
        )
        self.text(x + 9, self.y + _WIRE / 2 + 4, label, "what", "start")
        self.y += _WIRE

    def open(self, name: str) -> None:
        """Begin a frame; what follows stands in it."""
        self._open.append((len(self.parts), self.y, name))
        self.parts.append("")  # the frame stands behind what is in it
        self.text(self.left, self.y + 16, name, "frame-name", "start")
        self.y += 26

    def close(self) -> None:
        """End all frames, the innermost first."""
        while self._open:
            place, top, _ = self._open.pop()
            self.y += _GAP
            left = self.left
            self.parts[place] = (
                f'<rect class="frame" x="{left:.1f}" y="{top:.1f}" width="{WIDTH - 2 * left:.1f}"'
                f' height="{self.y - top:.1f}" rx="6"/>'
            )


def blocks(document: Document) -> str:
    """The diagram; what a spec does not say is left out.  Cost: a box a memory and engine."""
    drawing = _Drawing()
    clock = number(document, "clock_hz")
    host = document.get("host")
    if isinstance(host, Mapping):
        _host(drawing, host)
    framed = 1.0
    above: Document | None = None
    for level in rows(document, "levels"):
        if above is not None:
            drawing.wire(_rates(above, clock))
        instances = number(level, "instances") or 1
        if instances > framed:
            drawing.open(_name_of(document, instances, framed))
            framed = instances
        _memory(drawing, document, level)
        _engines(drawing, document, level)
        above = level
    drawing.close()
    label = f"Block diagram of {document.get('name') or 'a machine'}"
    return (
        f'<svg class="blocks" viewBox="0 0 {WIDTH} {drawing.y + 6:.0f}" role="img"'
        f' aria-label="{escape(label, quote=True)}">{"".join(drawing.parts)}</svg>'
    )


def _host(drawing: _Drawing, host: Document) -> None:
    width = 300.0
    drawing.box((WIDTH - width) / 2, width, 30, "host")
    drawing.text(WIDTH / 2, drawing.y + 20, f"Host: {host.get('name') or 'unnamed'}", "name")
    drawing.y += 30
    rate = number(host, "link_bytes_per_s")
    is_shared = bool(plain(host.get("shared_memory")))
    drawing.wire("one memory for both" if is_shared else f"{quantity(rate)}B/s")


def _name_of(document: Document, instances: float, around: float) -> str:
    """What a frame stands for: so many cores, clusters, or parts."""
    inner = f", {instances / around:g} in each" if around > 1 else ""
    for key, word in (("num_cores", "cores"), ("num_clusters", "clusters")):
        if number(document, key) == instances:
            return f"{instances:,.0f} {word}{inner}"
    return f"{instances:,.0f} of these{inner}"


def _rates(level: Document, clock: float | None) -> str:
    """What passes a memory's ports, per cycle and second."""
    read, write = number(level, "read_bytes_per_cycle"), number(level, "write_bytes_per_cycle")
    parts = []
    for word, rate in (("↓", read), ("↑", write)):
        if rate is not None:
            each = f" ({quantity(rate * clock)}B/s)" if clock else ""
            parts.append(f"{word} {rate:,.4g} B/cycle{each}")
    said = "  ".join(parts)
    if parts and plain(level.get("duplex")) == "half":
        said += ", one at a time"
    if parts and plain(level.get("engine_ports")) == "shared":
        said += ", engines too"
    return said


def _memory(drawing: _Drawing, document: Document, level: Document) -> None:
    name = str(level.get("name") or "?")
    managed = str(plain(level.get("managed")) or "scratchpad")
    width = drawing.inner_width
    drawing.box(drawing.left, width, _MEMORY, f"memory {managed}")
    x, y = drawing.left + 12, drawing.y
    drawing.text(x, y + 19, name, "name", "start")
    technology = plain(level.get("technology"))
    kind = f"{managed}, {technology}" if technology not in (None, managed) else managed
    drawing.text(x, y + 35, kind, "what", "start")
    size = capacity(number(level, "capacity_bytes"))
    drawing.text(drawing.left + width - 12, y + 19, size, "name", "end")
    movers = [
        f"{_MOVERS[str(engine.get('kind'))]} {engine.get('name')}"
        for engine in rows(document, "engines")
        if engine.get("memory") == name and engine.get("kind") in _MOVERS
    ]
    movers += [
        f"{link.get('name')} {number(link, 'bytes_per_cycle') or 0:,.4g} B/cycle"
        for link in rows(document, "links")
        if link.get("src") == name == link.get("dst")
    ]
    drawing.text(drawing.left + width - 12, y + 35, ", ".join(movers), "what", "end")
    drawing.y += _MEMORY


def _engines(drawing: _Drawing, document: Document, level: Document) -> None:
    """Those that compute out of a memory, side by side."""
    found = [
        engine
        for engine in rows(document, "engines")
        if engine.get("memory") == level.get("name") and engine.get("kind") not in _MOVERS
    ]
    for first in range(0, len(found), _MOST_BESIDE):
        beside = found[first : first + _MOST_BESIDE]
        drawing.y += _GAP
        width = (drawing.inner_width - _GAP * (len(beside) - 1)) / len(beside)
        for k, engine in enumerate(beside):
            x = drawing.left + k * (width + _GAP)
            drawing.box(x, width, _ENGINE, f"engine {engine.get('kind')}")
            middle = x + width / 2
            array = engine.get("array")
            shape = (
                " " + " × ".join(f"{plain(side)}" for side in array)
                if isinstance(array, list)
                else ""
            )
            drawing.text(middle, drawing.y + 19, str(engine.get("name")), "name")
            drawing.text(middle, drawing.y + 35, f"{engine.get('kind')}{shape}", "what")
            drawing.text(middle, drawing.y + 51, _macs(engine), "what")
        drawing.y += _ENGINE


def _macs(engine: Document) -> str:
    """Its fastest formats, and multiply-accumulates per cycle in them."""
    rates = engine.get("macs_per_cycle")
    known = [
        (float(rate), str(dtype))
        for dtype, value in (rates.items() if isinstance(rates, Mapping) else ())
        if isinstance(rate := plain(value), int | float)
    ]
    known.sort(key=lambda row: (-row[0], row[1]))
    told = ", ".join(f"{dtype} {rate:,.4g}" for rate, dtype in known[:_MOST_FORMATS])
    return f"{told} MAC/cycle" if told else ""

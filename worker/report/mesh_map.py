"""What the links of a mesh carry, and a drawing of it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Annotated, Literal

import msgspec

STYLE = """
svg.mesh{max-width:640px}.mesh rect{fill:var(--line)}.mesh .home{fill:#2f6fb3}
.heat-0{stroke:#d9c9a8;stroke-width:1.5}.heat-1{stroke:#e0a030;stroke-width:2.5}
.heat-2{stroke:#d2741f;stroke-width:3.5}.heat-3{stroke:#c0392b;stroke-width:4.5}
.heat-4{stroke:#a83279;stroke-width:5.5}
"""
"""Width says what colour does."""
SHADES = 5
"""Of the load of the busiest link, a fifth each."""
MOST_NODES = 4096
"""That are drawn: more are too small to be seen."""
_STEP, _MARGIN, _APART, _GAP, _SIZE = 36.0, 20.0, 3.5, 7.0, 9.0

_Number = Annotated[int, msgspec.Meta(ge=0, le=65535)]
"""As a spec bounds it: pages read reports that a job's own process wrote."""
Place = tuple[_Number, _Number]
"""(row, column) of a router."""


class Loaded(msgspec.Struct, frozen=True, rename={"begin": "from", "end": "to"}):
    """A link of a mesh that carries something."""

    begin: Place
    end: Place
    hangs: str
    """`from memory`, `to memory`, `from home` or `to home`: what it joins to the one router that
    both ends are; empty between routers."""
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    busy_cycles: Annotated[int, msgspec.Meta(ge=0)]
    busy_pct: float
    """Of the latency."""


class MeshLoad(msgspec.Struct, frozen=True):
    """A mesh, and what its links carry."""

    link: str
    rows: _Number
    columns: _Number
    ports: tuple[Place, ...]
    """Routers that home is attached to."""
    links: tuple[Loaded, ...]
    numbering: Literal["rows", "home"] = "rows"
    """As the spec says it; of reports that do not say it, `rows`."""


def mesh_map(load: MeshLoad) -> str:
    """The routers of a mesh, and the links between them as thick as they are busy.

    Each direction is a line of its own, on the right of who goes along.  What joins memories and
    home to their routers is in the report only.
    """
    shown = [link for link in load.links if not link.hangs]
    drawn = _drawn(load, shown) if load.rows * load.columns <= MOST_NODES else ""
    return f"{drawn}<p>{escape(_sentence(shown))}</p>"


def _drawn(load: MeshLoad, shown: Sequence[Loaded]) -> str:
    most = max((link.busy_cycles for link in shown), default=0)
    body = [_line(link, most) for link in shown]
    for row in range(load.rows):
        for column in range(load.columns):
            x, y = _at((row, column))
            is_home = (row, column) in load.ports
            said = f"node {row},{column}" + (", a port of home" if is_home else "")
            kind = ' class="home"' if is_home else ""
            body.append(
                f'<rect{kind} x="{x - _SIZE / 2:g}" y="{y - _SIZE / 2:g}" width="{_SIZE:g}"'
                f' height="{_SIZE:g}"><title>{said}</title></rect>'
            )
    width, height = (2 * _MARGIN + _STEP * (n - 1) for n in (load.columns, load.rows))
    label = f"Load of the links of {load.link}"
    return (
        f'<svg class="mesh" viewBox="0 0 {width:g} {height:g}" role="img"'
        f' aria-label="{escape(label, quote=True)}">{"".join(body)}</svg>'
    )


def _sentence(shown: Sequence[Loaded]) -> str:
    if not shown:
        return "Nothing passes from router to router."
    worst = max(shown, key=lambda link: link.busy_cycles)
    return (
        f"The busiest link, {_ends(worst)}, is held {worst.busy_pct:.1f} % of all cycles; the"
        f" thicker a link, the nearer to it. {len(shown)} links carry something."
    )


def _ends(link: Loaded) -> str:
    (a, b), (c, d) = link.begin, link.end
    return f"{a},{b} to {c},{d}"


def _at(router: Place) -> tuple[float, float]:
    return _MARGIN + _STEP * router[1], _MARGIN + _STEP * router[0]


def _line(link: Loaded, most: int) -> str:
    (x1, y1), (x2, y2) = _at(link.begin), _at(link.end)
    across, down = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
    x1, x2 = (x - down * _APART for x in (x1 + across * _GAP, x2 - across * _GAP))
    y1, y2 = (y + across * _APART for y in (y1 + down * _GAP, y2 - down * _GAP))
    shade = min(SHADES - 1, SHADES * link.busy_cycles // max(most, 1))
    title = f"{_ends(link)}: {link.bytes:,} bytes, {link.busy_pct:.1f} % of all cycles"
    return (
        f'<line class="heat-{shade}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}">'
        f"<title>{escape(title)}</title></line>"
    )

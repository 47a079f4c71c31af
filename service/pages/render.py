"""Templates to HTML: everything is escaped, and a name that is not there is an error."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from service.pages import units
from worker.report.cause_bars import class_of

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none';"
    " object-src 'none'"
)
"""Nothing from elsewhere, no script or style but from files of ours."""
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # not `no-referrer`: forms would have no Origin
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every page and fragment."""


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "quantity": units.quantity, "whole": units.whole, "capacity": units.capacity,
        "percent": units.percent, "ratio": units.ratio, "energy": units.energy,
        "span": units.span, "cause_class": class_of,
    }  # fmt: skip
    return made


def render(template: str, **values: Any) -> str:
    """The text of a template."""
    return _environment().get_template(template).render(values)

"""Which strategies a job wants of its worker, and which ones a worker offers.

A set is stored as text, one `name version` a line, in the order of names, so that the database can
compare it.  What no release named (an empty set) any worker may take.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from worker.compiler.descriptors import StrategyDescriptor, strategies, taking_part
from worker.compiler.errors import OptionError
from worker.compiler.options import CompileOptions


def offered() -> str:
    """Every strategy installed here."""
    return _text(strategies().values())


def wanted(options: CompileOptions) -> str:
    """What a worker must have to give the result that this installation would give."""
    return _text(taking_part(options.strategy))


def wanted_by_stored(options: Mapping[str, object]) -> str | None:
    """The same of stored options; None where this release refuses them."""
    try:
        return wanted(CompileOptions.from_json(dict(options)))
    except OptionError:
        return None


def is_served(want: str, offer: str) -> bool:
    """Whether a worker that offers `offer` takes what wants `want`.

    One of a release that named no strategies takes whatever there is.
    """
    return not offer or set(want.splitlines()) <= set(offer.splitlines())


def why_waiting(want: str, offers: Iterable[str]) -> str | None:
    """Why nobody takes what wants `want`, among live workers; None: one of them can."""
    alive = list(offers)
    if not alive:
        return "no worker is alive"
    if any(is_served(want, offer) for offer in alive):
        return None
    lacking = min((_lacking(want, offer) for offer in alive), key=lambda lines: (len(lines), lines))
    number = f"none of {len(alive)} live workers has" if len(alive) > 1 else "the live worker lacks"
    strategy = "strategy" if len(lacking) == 1 else "strategies"
    return f"{number} {strategy} {', '.join(lacking)}"


def _lacking(want: str, offer: str) -> list[str]:
    return [line for line in want.splitlines() if line not in offer.splitlines()]


def _text(rows: Iterable[StrategyDescriptor]) -> str:
    return "\n".join(f"{row.name} {row.version}" for row in rows)

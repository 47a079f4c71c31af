"""What is known of a strategy before it is loaded: name, version, options, and what it registers.

Strategies register under the entry points `tilewright.strategies` (packaging's own mechanism; the
built-in ones do, too).  An entry point names a `StrategyDescriptor` in a module that imports
neither the strategy nor numpy, so that the API can list strategies and check options without a
compiler.  The entry point's own name is not used: the descriptor's is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from worker.compiler.errors import InternalError
from worker.compiler.plugins import Broken, brought, named, require_described

__all__ = [
    "AUTO", "NoOptions", "StrategyDescriptor", "Strategies", "an_option", "estimating", "installed",
    "last_resort", "named", "strategies", "taking_part",
]  # fmt: skip

GROUP = "tilewright.strategies"
AUTO = "auto"
"""Stands for every strategy there is: the judge takes the best of them."""
_LIST = "a list of "


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a strategy that has none."""


@dataclass(frozen=True, slots=True)
class StrategyDescriptor:
    """One strategy users can name."""

    name: str
    version: str
    """Changes whenever the same input may give another schedule (part of cache keys)."""
    help: str
    """One line for users: what it does."""
    implementation: str
    """`module:attribute` of the `Strategy`, imported when something is compiled."""
    options: type[msgspec.Struct] = NoOptions
    """Frozen and closed (`forbid_unknown_fields`); every field has a default."""
    summary: str = ""
    """`module:attribute` of the `Summary` (strategies/sections.py) that report.json has of it."""
    page: str = ""
    """`module:attribute` of what shows a summary on report.html, as blocks."""
    text: str = ""
    """`module:attribute` of what shows a summary in a terminal, as blocks."""
    columns: str = ""
    """`module:attribute` of what a summary adds to the layer table: to every unit's position its
    cells by column; columns are called `NAME_COLUMN` there."""
    check: str = ""
    """`module:attribute` of what checks a certificate in a schedule's notes: `(schedule, machine)`
    to `strategies.base.Checked`, or None where there is none."""
    estimate: str = ""
    """`module:attribute` of what predicts a unit without scheduling it: `(unit, machine, options)`
    to `strategies.base.Estimated` or a Shortfall."""
    is_last_resort: bool = False
    """It can schedule whatever operator a machine can run at all, each alone."""
    distribution: str = ""
    """Name and version of the package that brings it; filled in when it is found."""

    @property
    def option_words(self) -> dict[str, str]:
        """What every option may be, in words, its default first."""
        kinds = msgspec.json.schema(self.options)["$defs"]
        found: dict[str, str] = {}
        for name, field in kinds[self.options.__name__]["properties"].items():
            is_list = field.get("type") == "array"
            kind = field.get("items", {}) if is_list else field
            kind = kinds.get(kind.get("$ref", "").rpartition("/")[2], kind)
            values = kind.get("enum", [kind.get("type", "any")])
            if is_list:
                found[name] = f"{_LIST}{', '.join(map(str, values))}"
                continue
            default = msgspec.to_builtins(getattr(self.options(), name))
            others = [str(value) for value in values if value != default]
            found[name] = ", ".join((f"{default} (default)", *others))
        return found

    def load(self) -> Any:
        """The strategy itself, a `worker.compiler.strategies.base.Strategy`.

        Raises: as `named`.
        """
        return named(self.implementation)


Strategies: TypeAlias = "MappingProxyType[str, StrategyDescriptor]"


@cache
def installed() -> tuple[Strategies, tuple[Broken, ...]]:
    """Every strategy by name, in the order of names, and what could not be loaded."""
    return brought(entry_points(group=GROUP), "strategy", _checked)


def strategies() -> Strategies:
    """Every strategy by name, in the order of names.

    Raises:
        InternalError: TW-INT-006, not even Tilewright's own are registered: its installation, or
            metadata that an older one left beside the code, knows no strategies yet.
    """
    found, broken = installed()
    if not any(one.is_last_resort for one in found.values()):
        reasons = "; ".join(f"{row.entry_point}: {row.reason}" for row in broken)
        raise InternalError(
            "TW-INT-006",
            f"no strategy is registered that schedules every operator ({reasons or 'none at all'});"
            " install Tilewright again, and remove an old tilewright.egg-info beside its code",
        )
    return found


def taking_part(chosen: str) -> tuple[StrategyDescriptor, ...]:
    """What decides a result when `chosen` is asked for, in the order of names.

    That strategy (`auto`: all of them), and those that schedule what others leave over.

    Raises:
        InternalError: as `strategies`.
    """
    return tuple(
        row for row in strategies().values() if chosen in (AUTO, row.name) or row.is_last_resort
    )


def an_option(named_so: str = "") -> tuple[str, str, str]:
    """A strategy, an option of its own and a value that is not its default, as an example."""
    for one in strategies().values():
        for option, words in one.option_words.items():
            if named_so in ("", option):
                value = words.removeprefix(_LIST).rpartition(", ")[2]
                return one.name, option, f'["{value}"]' if words.startswith(_LIST) else value
    return "NAME", named_so or "OPTION", "VALUE"


def last_resort() -> StrategyDescriptor:
    """The strategy that schedules what no other can: the first that says so."""
    return next(found for found in strategies().values() if found.is_last_resort)


def estimating() -> StrategyDescriptor:
    """The strategy whose programs are estimated on other chips: the last resort, which has a kernel
    for every operator, where it can, else the first that can."""
    able = [found for found in strategies().values() if found.estimate]
    return next((found for found in able if found.is_last_resort), able[0])


def _checked(found: object, distribution: str) -> StrategyDescriptor:
    """What an entry point of a distribution gave.

    Raises:
        TypeError, ValueError: it is no descriptor, or one that nobody could use.
    """
    if not isinstance(found, StrategyDescriptor):
        raise TypeError(f"a {type(found).__name__} is no StrategyDescriptor")
    if found.name == AUTO:
        raise ValueError(f"{AUTO!r} is no name: it stands for all strategies")
    shown = (found.summary, found.page, found.text, found.columns)
    require_described(found, (found.implementation, *shown, found.check, found.estimate))
    if any(shown) and not found.summary:
        raise ValueError("what shows its summary is given, and no summary")
    config = found.options.__struct_config__
    if not (config.frozen and config.forbid_unknown_fields):
        raise ValueError("its options must be frozen and forbid unknown fields")
    found.options()  # every field has a default
    return replace(found, distribution=distribution)

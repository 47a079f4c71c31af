"""Summaries of strategies in a report, read back and shown by what their strategies registered.

The report may be another release's, or of a machine with other strategies installed: what cannot be
read says so and costs the rest nothing.  Imports no compiler: the command line reads reports, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from worker.compiler.descriptors import Strategies, StrategyDescriptor, named, strategies
from worker.compiler.errors import Detail
from worker.compiler.faults import Fault, attempt
from worker.compiler.strategies.sections import Figures, Markup, PageBlock, Summary, Table

REPORT_VERSION = 3
"""Of report.json: raise it with its shape, and lift the shape before it below."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a report has of one strategy."""

    name: str
    descriptor: StrategyDescriptor | None
    """None: it is not installed here."""
    told: Mapping[str, Detail]


def stored_summaries(report: Mapping[str, Detail]) -> tuple[Stored, ...]:
    """Summaries in a report, in the order of names."""
    here = strategies()
    found = report.get("summaries")
    if report.get("schema_version") == 1:
        found = _of_first_version(report, here)
    rows = found.items() if isinstance(found, dict) else ()
    return tuple(
        Stored(name, here.get(name), told) for name, told in sorted(rows) if isinstance(told, dict)
    )


def page_blocks(stored: Stored) -> tuple[PageBlock, ...] | str | None:
    """What the page shows of a summary, or why it cannot; None: its strategy shows nothing."""
    return _blocks(stored, "page", (Figures, Table, Markup))


def text_blocks(stored: Stored) -> tuple[PageBlock, ...] | str | None:
    """What a terminal shows of a summary, or why it cannot; None: its strategy shows nothing."""
    return _blocks(stored, "text", (Figures, Table))


def null_sentences(report: Mapping[str, Detail]) -> dict[str, Detail]:
    """Why each null of a summary is one, by `summaries.STRATEGY.FIELD...`, in the order met."""
    found: dict[str, Detail] = {}
    for stored in stored_summaries(report):
        why = {} if stored.descriptor is None else schema_of(stored.descriptor).nulls
        for place, field in _nulls(dict(stored.told), f"summaries.{stored.name}"):
            found[place] = why.get(field, "its strategy does not say why")
    return found


def cell_sentence(report: Mapping[str, Detail], column: str) -> str | None:
    """Why a cell that a strategy added to the layer table is null; None: no strategy added it."""
    for stored in stored_summaries(report):
        own = column.removeprefix(f"{stored.name}_")
        if own != column and stored.descriptor is not None:
            return schema_of(stored.descriptor).nulls.get(own, "its strategy does not say why")
    return None


def checked(schema: type[Summary], told: Mapping[str, Detail]) -> Summary:
    """A summary from a report.

    Raises:
        ValueError: another version of the strategy wrote it, or it has another shape.
    """
    own = next(f for f in msgspec.structs.fields(schema) if f.name == "schema_version").default
    version = told.get("schema_version", own)
    if version != own:
        raise ValueError(f"its summary has schema version {version}, this strategy reads {own}")
    return msgspec.convert(told, schema)


def schema_of(descriptor: StrategyDescriptor) -> type[Summary]:
    """What a strategy registered.

    Raises:
        TypeError: it is no summary; or whatever the plugin's module raises.
    """
    schema = named(descriptor.summary)
    if not (isinstance(schema, type) and issubclass(schema, Summary)):
        raise TypeError(f"{descriptor.summary} is no Summary")
    return schema


def _blocks(
    stored: Stored, where: str, kinds: tuple[type[PageBlock], ...]
) -> tuple[PageBlock, ...] | str | None:
    descriptor = stored.descriptor
    if descriptor is None:
        return f"strategy {stored.name} is not installed here, so its summary is in the JSON only"
    reference = getattr(descriptor, where)
    if not reference:
        return None

    def shown() -> tuple[PageBlock, ...]:
        blocks = tuple(named(reference)(checked(schema_of(descriptor), stored.told)))
        for block in blocks:
            if not isinstance(block, kinds):
                raise TypeError(f"a {type(block).__name__} cannot be shown here")
        return blocks

    found = attempt(descriptor.name, descriptor.version, where, shown)
    return found.sentence if isinstance(found, Fault) else found


def _nulls(told: Detail, place: str) -> Iterator[tuple[str, str]]:
    """Places of nulls and the names of their fields; rows of a list share a place."""
    if isinstance(told, dict):
        for name, value in told.items():
            if value is None:
                yield f"{place}.{name}", name
            else:
                yield from _nulls(value, f"{place}.{name}")
    elif isinstance(told, list):
        for value in told:
            yield from _nulls(value, place)


def _of_first_version(report: Mapping[str, Detail], here: Strategies) -> dict[str, Detail]:
    """Version 1 had a strategy's summary at the top, under the strategy's name."""
    return {name: report[name] for name in here if name in report}

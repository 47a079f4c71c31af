"""The `summaries` section of the report: what each strategy says of its kernels, in its type."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from worker.compiler.descriptors import StrategyDescriptor, named, strategies
from worker.compiler.errors import Detail
from worker.compiler.faults import Fault, attempt
from worker.compiler.judge.entrants import own_options
from worker.compiler.options import CompileOptions
from worker.compiler.strategies.sections import Columns, UnitNotes
from worker.report.sections import checked, schema_of
from worker.simulator.results import UnitSimulation

_COLUMN = re.compile(r"[a-z][a-z0-9_]{0,31}")


def summaries_section(
    units: Sequence[UnitNotes], sims: Sequence[UnitSimulation], options: CompileOptions
) -> tuple[dict[str, Detail], tuple[Fault, ...]]:
    """Summaries by strategy, of those that registered one and have kernels; and what broke."""
    by_strategy: dict[str, list[UnitNotes]] = {}
    for unit in units:
        by_strategy.setdefault(unit.strategy, []).append(_simulated(unit, sims))
    found: dict[str, Detail] = {}
    faults: list[Fault] = []
    for name, descriptor in strategies().items():
        own = by_strategy.get(name, [])
        if not own or not descriptor.summary:
            continue
        told = _told(descriptor, own, options)
        if isinstance(told, Fault):
            faults.append(told)
        elif told is not None:
            found[name] = told
    return found, tuple(faults)


def strategy_columns(
    summaries: Mapping[str, Detail],
) -> tuple[dict[int, dict[str, Detail]], tuple[Fault, ...]]:
    """What strategies add to the layer table, of units by position, from the summaries of a
    program; and what broke."""
    found: dict[int, dict[str, Detail]] = {}
    faults: list[Fault] = []
    for name, told in summaries.items():
        descriptor = strategies()[name]
        if not descriptor.columns or not isinstance(told, dict):
            continue
        cells = _cells(descriptor, told)
        if isinstance(cells, Fault):
            faults.append(cells)
            continue
        for unit, row in cells.items():
            own = {f"{name}_{column}": value for column, value in row.items()}
            found.setdefault(unit, {}).update(own)
    return found, tuple(faults)


def _cells(descriptor: StrategyDescriptor, told: Mapping[str, Detail]) -> Columns | Fault:
    def work() -> Columns:
        cells: Columns = named(descriptor.columns)(checked(schema_of(descriptor), told))
        for row in cells.values():
            for column, value in row.items():
                if not _COLUMN.fullmatch(column):
                    raise ValueError(f"{column!r} is no name of a column")
                if value is not None and not isinstance(value, str | int | float):
                    raise TypeError(f"a {type(value).__name__} is no cell of a table")
        return cells

    return attempt(descriptor.name, descriptor.version, "summary", work)


def _told(
    descriptor: StrategyDescriptor, units: Sequence[UnitNotes], options: CompileOptions
) -> dict[str, Detail] | Fault | None:
    """A strategy's summary as JSON, of the type that it registered."""

    def work() -> dict[str, Detail] | None:
        schema = schema_of(descriptor)
        summary = schema.of(units, own_options(descriptor.name, options))
        if summary is None:
            return None
        told: dict[str, Detail] = msgspec.json.decode(msgspec.json.encode(summary))
        checked(schema, told)
        return told

    return attempt(descriptor.name, descriptor.version, "summary", work)


def _simulated(unit: UnitNotes, sims: Sequence[UnitSimulation]) -> UnitNotes:
    """The notes with the cycles of their kernel, where they do not have them yet."""
    if unit.simulated_cycles is not None or unit.unit >= len(sims):
        return unit
    return replace(unit, simulated_cycles=sims[unit.unit].cycles)

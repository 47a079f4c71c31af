"""Entrants: strategies as one compile has them, with options and a budget."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from worker.compiler.descriptors import (
    AUTO,
    StrategyDescriptor,
    installed,
    last_resort,
    strategies,
    taking_part,
)
from worker.compiler.errors import InternalError, OptionError, Shortfall
from worker.compiler.faults import Fault, attempt
from worker.compiler.ir.graph import Graph
from worker.compiler.judge.figures import Caps, mixtures_by
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions, Effort
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.stages import Grouping, check_grouping
from worker.compiler.strategies.base import Budget, Strategy

_LOG = logging.getLogger(__name__)
_CANDIDATES = {Effort.FAST: 1, Effort.NORMAL: 3, Effort.THOROUGH: 12}
"""By unit and strategy.  Three are what a strategy's own model cannot tell apart; twelve are more
than any built-in one has."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A strategy that may win units."""

    strategy: Strategy[Any]
    descriptor: StrategyDescriptor
    options: Any
    """Of the strategy's own type."""
    budget: Budget

    @property
    def name(self) -> str:
        """The strategy's."""
        return self.descriptor.name

    @property
    def version(self) -> str:
        """The strategy's."""
        return self.descriptor.version

    @property
    def key_fields(self) -> tuple[tuple[str, str], ...]:
        """Fields of cache keys: everything that decides this strategy's candidates."""
        return (
            ("strategy", self.name),
            ("strategy_version", self.version),
            ("distribution", self.descriptor.distribution),
            ("strategy_options", msgspec.json.encode(self.options, order="sorted").decode()),
            ("budget", str(self.budget.candidates)),
            ("measures", " ".join(self.budget.measures)),
        )

    def group(
        self, graph: Graph, machine: Machine, together: Sequence[tuple[str, ...]]
    ) -> Grouping:
        """The strategy's groups, checked.

        Raises:
            VerifyError: they are no partition of the graph in a legal order.
        """
        found = self.strategy.group(graph, machine, self.options, together)
        check_grouping(found, graph)
        return found

    def candidates(self, unit: Graph, machine: Machine) -> Iterator[Schedule | Shortfall]:
        """The strategy's candidates for one canonical graph."""
        return self.strategy.candidates(unit, machine, self.options, self.budget)


def own_options(name: str, options: CompileOptions) -> msgspec.Struct:
    """What an installed strategy is told; its defaults where nothing was given."""
    return dict(options.strategy_options).get(name) or strategies()[name].options()


def entrant(name: str, options: CompileOptions) -> Entrant:
    """A strategy as one compile has it.

    Raises:
        OptionError: TW-OPT-001, no strategy of that name is installed here.
        InternalError: TW-INT-006, what its package brings cannot be loaded.
    """
    descriptor = strategies().get(name)
    if descriptor is None:
        raise OptionError(
            "TW-OPT-001",
            f"no strategy {name} is installed here",
            pointer="/options/strategy",
            limit=[AUTO, *strategies()],
            actual=name,
        )
    loaded = _loaded(descriptor)
    if isinstance(loaded, Fault):
        message = f"{descriptor.distribution}, strategy {name}: {loaded.reason}"
        raise InternalError("TW-INT-006", message[:500])
    measures = mixtures_by(options.objective, Caps.of(options), is_contest=False)
    budget = Budget(_CANDIDATES[options.effort], measures)
    return Entrant(loaded, descriptor, own_options(name, options), budget)


def entrants(options: CompileOptions) -> tuple[tuple[Entrant, ...], Entrant]:
    """The strategies that may win units, the preferred one first, and the last resort.

    With AUTO, a strategy that cannot be loaded costs the others nothing.  Of equal programs the
    first strategy's is taken, and the last resort stands last.
    """
    last = entrant(last_resort().name, options)
    if options.strategy != AUTO:
        chosen = last if options.strategy == last.name else entrant(options.strategy, options)
        return (chosen,), last
    found: list[Entrant] = []
    for name in strategies():
        if name == last.name:
            continue
        try:
            found.append(entrant(name, options))
        except InternalError as error:  # the report says so, too: `absent`
            _LOG.warning("strategy %s takes no part: %s", name, error.message)
    return (*found, last), last


@cache
def _loaded(descriptor: StrategyDescriptor) -> Any:
    """The strategy, or the Fault that its package ends in; tried once."""
    return attempt(descriptor.name, descriptor.version, "load", descriptor.load)


def took_part(options: CompileOptions) -> tuple[StrategyDescriptor, ...]:
    """What decides a result of this installation: what can be loaded, in the order of names."""
    return tuple(
        row for row in taking_part(options.strategy) if not isinstance(_loaded(row), Fault)
    )


def absent(options: CompileOptions) -> tuple[str, ...]:
    """What is installed and takes no part because it cannot be loaded, and why; with AUTO only.

    Cost: the imports, where nothing was compiled yet.
    """
    if options.strategy != AUTO:
        return ()
    found, broken = installed()
    loaded = [(one, _loaded(one)) for one in found.values()]
    return (
        *(f"{row.entry_point}: {row.reason}" for row in broken),
        *(
            f"strategy {one.name} of {one.distribution}: {fault.reason}"
            for one, fault in loaded
            if isinstance(fault, Fault)
        ),
    )

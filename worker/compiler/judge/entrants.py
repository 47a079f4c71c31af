"""Entrants: strategies as one compile has them, with options and a budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from worker.compiler.errors import Shortfall
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions, Effort, StrategyName
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.stages import Grouping, check_grouping
from worker.compiler.strategies.base import Budget, Strategy
from worker.compiler.strategies.registry import LAST_RESORT, STRATEGIES, options_of, strategy

_CANDIDATES = {Effort.FAST: 1, Effort.NORMAL: 3, Effort.THOROUGH: 12}
"""By unit and strategy.  Three are what GraphTurbo's own model cannot tell apart (its hand-overs);
twelve are more than any built-in strategy has."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A strategy that may win units."""

    strategy: Strategy[Any]
    options: Any
    """Of the strategy's own type."""
    budget: Budget

    @property
    def name(self) -> str:
        """The strategy's."""
        return self.strategy.name

    @property
    def version(self) -> str:
        """The strategy's."""
        return self.strategy.version

    @property
    def key_fields(self) -> tuple[tuple[str, str], ...]:
        """Fields of cache keys: everything that decides this strategy's candidates."""
        options = orjson.dumps(asdict(self.options), option=orjson.OPT_SORT_KEYS).decode()
        return (
            ("strategy", self.name),
            ("strategy_version", self.version),
            ("strategy_options", options),
            ("budget", str(self.budget.candidates)),
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


def entrant(name: str, options: CompileOptions) -> Entrant:
    """A strategy as one compile has it.

    Raises:
        OptionError: there is none of that name.
    """
    budget = Budget(_CANDIDATES[options.effort])
    return Entrant(strategy(name), options_of(name, options), budget)


def entrants(options: CompileOptions) -> tuple[tuple[Entrant, ...], Entrant]:
    """The strategies that may win units, the preferred one first, and the last resort."""
    is_auto = options.strategy is StrategyName.AUTO
    names = tuple(STRATEGIES) if is_auto else (str(options.strategy),)
    found = {name: entrant(name, options) for name in dict.fromkeys((*names, LAST_RESORT))}
    return tuple(found[name] for name in names), found[LAST_RESORT]

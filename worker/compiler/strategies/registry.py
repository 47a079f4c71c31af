"""The strategies users can name."""

from __future__ import annotations

from typing import Any

from worker.compiler.errors import OptionError
from worker.compiler.options import CompileOptions, StrategyName
from worker.compiler.strategies.base import NoOptions, Strategy
from worker.compiler.strategies.graphturbo.strategy import GraphTurboOptions, GraphTurboStrategy
from worker.compiler.strategies.naive.strategy import NaiveStrategy

STRATEGIES: dict[str, Strategy[Any]] = {
    "graphturbo": GraphTurboStrategy(),
    "naive": NaiveStrategy(),
}
"""By name, the preferred one first: of equal programs its own is taken."""
LAST_RESORT = "naive"
"""Schedules whatever operator a machine can run at all, each alone."""


def strategy(name: str) -> Strategy[Any]:
    """The strategy called `name`.

    Raises:
        OptionError: there is none.
    """
    if name not in STRATEGIES:
        raise OptionError(
            "TW-OPT-001",
            f"strategy must be one of auto, {', '.join(STRATEGIES)}",
            pointer="/options/strategy",
            limit=["auto", *STRATEGIES],
            actual=name,
        )
    return STRATEGIES[name]


def options_of(name: str, options: CompileOptions) -> Any:
    """What a strategy is told of a job's options, as a value of its own type."""
    if name == StrategyName.GRAPHTURBO:
        return GraphTurboOptions(options.variant)
    return NoOptions()

"""The strategies users can name."""

from __future__ import annotations

from worker.compiler.errors import OptionError
from worker.compiler.options import StrategyName, Variant
from worker.compiler.strategies.base import Strategy
from worker.compiler.strategies.graphturbo.strategy import GraphTurboStrategy
from worker.compiler.strategies.naive.strategy import NaiveStrategy

STRATEGIES: dict[str, Strategy] = {
    "naive": NaiveStrategy(),
    "graphturbo": GraphTurboStrategy(),
}


def strategy(name: str) -> Strategy:
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


def strategy_for(option: StrategyName | str, variant: Variant = Variant.FULL) -> Strategy:
    """The strategy an option stands for; `auto` is the best one there is."""
    name = str(option)
    if name == StrategyName.GRAPHTURBO:
        return GraphTurboStrategy(variant)
    return strategy("naive" if name == StrategyName.AUTO else name)

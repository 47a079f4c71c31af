"""Strategies by name."""

from __future__ import annotations

from worker.compiler.options import StrategyName
from worker.compiler.strategies.base import Strategy
from worker.compiler.strategies.naive.naive import NaiveStrategy


def strategy_for(name: StrategyName) -> Strategy:
    """The strategy that `name` runs.  `auto` is `naive` while it is the only one there is."""
    match name:
        case StrategyName.AUTO | StrategyName.NAIVE:
            return NaiveStrategy()

"""The values a strategy hands from step to step, each with its own type.

group: Graph -> Grouping; schedule: Grouping -> Arrangement; tile: Arrangement -> Schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

from worker.compiler.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Group:
    """Operators (by name, in graph order) that live together in one unit."""

    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grouping:
    """A partition of the graph's operators; groups are in a legal execution order."""

    graph: Graph
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """One group as a canonical graph of its own, with the engine and cores for each operator."""

    graph: Graph
    engine_of_op: tuple[tuple[str, str], ...]
    num_cores: int

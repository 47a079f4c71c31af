"""What the naive strategy makes of a graph of one operator, or of one composite."""

from __future__ import annotations

from worker.compiler.errors import Shortfall
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.signature import canonicalize
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.strategies.naive.strategy import NaiveStrategy


def naive_answer(graph: Graph, machine: Machine) -> Schedule | Shortfall:
    """The strategy's best guess for the graph as a unit."""
    return next(NaiveStrategy().candidates(canonicalize(graph).graph, machine))


def naive_schedule(graph: Graph, machine: Machine) -> Schedule:
    """The same where it must fit."""
    found = naive_answer(graph, machine)
    assert isinstance(found, Schedule), found
    return found

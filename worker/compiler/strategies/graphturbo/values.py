"""The values GraphTurbo's steps hand to each other.

Words: a *layer* is a straight line of operators around one anchor (paper section 1.1); a *group* is
what the paper calls a sub-graph, a convex set of layers; an *instance* is one of the `factor` equal
pieces of a group; a *scope* is the memory its output is declared in.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that are cut into instances together; positions in the unit's list of layers."""

    layers: tuple[int, ...]
    factor: int | None
    """Number of instances; None: none makes it fit (an infinite factor, never merged)."""


@dataclass(frozen=True, slots=True)
class Instance:
    """Piece `number` of group `group`."""

    group: int
    number: int


@dataclass(frozen=True, slots=True)
class InstanceGraph:
    """Instances with their fine-grained dependences.

    `instances` is in breadth-first order: all pieces of the first group, then of the next one.
    """

    instances: tuple[Instance, ...]
    producers: tuple[tuple[int, ...], ...]
    """Per instance, positions of the instances whose output it reads, ascending."""
    output_bytes: tuple[int, ...]
    """Per instance, bytes of its output that other instances read."""

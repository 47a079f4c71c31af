"""The values GraphTurbo's steps hand to each other.

Words: a *layer* is a straight line of operators around one anchor (paper section 1.1); a *group* is
what the paper calls a sub-graph, a convex set of layers; an *instance* is one of the `factor` equal
pieces of a group; a *scope* is the memory its output is declared in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BufferScope(StrEnum):
    """Where a tensor lives between the layers or instances that use it."""

    LB = "lb"
    """Local buffers of the cores, one slice each."""
    GB = "gb"
    """Global buffer of the cluster."""
    HOME = "home"
    """Off-chip memory (DDR)."""


@dataclass(frozen=True, slots=True)
class SplitTuple:
    """One element of SplitInfo (Algorithm 1): (split_d, n_d, f_d, d)."""

    num_ops: int
    """n_d: operators that are cut together with the output."""
    factor: int
    """f_d: number of instances."""
    dim: int
    """d, counted from 1, outermost first."""

    @property
    def key(self) -> tuple[int, int, int]:
        """BestSplit is the maximum of this (equation 1): most ops, then least factor, then d."""
        return (self.num_ops, -self.factor, -self.dim)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that are cut into instances together; positions in the unit's list of layers."""

    layers: tuple[int, ...]
    split: SplitTuple | None
    """None: no factor makes it fit (an infinite factor, never merged)."""


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

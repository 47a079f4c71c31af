"""One instruction as loops: what its array runs side by side, and in which order it steps.

Tilewright's time of a tile is passes of the array: sums spread over its rows, columns over its
columns, rows of the left factor streamed (`cost.compute`).  Peers want factors per dimension
instead.  They are chosen so that the number of passes is the same; where no whole factors do that,
the array would be padded, and the nest is refused.  The order inside an instruction is that of a
weight-stationary array; it moves no byte between memories, only what a peer counts at the array.
An engine without an array runs any points side by side: later axes are spread first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import TypeAlias

from worker.compiler.export.nest import LoopNest, NoForm, Reason
from worker.compiler.machine.dataflow import Stationary
from worker.compiler.machine.machine import Engine, EngineKind
from worker.compiler.tiling.factors import divisors

Factors: TypeAlias = "tuple[tuple[int, int], ...]"
"""(dimension, factor above 1)."""


@dataclass(frozen=True, slots=True)
class Unrolled:
    """The box of one instruction, written as loops."""

    sizes: tuple[int, ...]
    """The array's dimensions; one number of lanes where the engine has no array."""
    spatial: tuple[Factors, ...]
    """What runs along each of them."""
    steps: Factors
    """What is stepped through, outer to inner: passes."""

    @property
    def num_passes(self) -> int:
        """Cycles of one instruction without its start-up."""
        return prod(factor for _, factor in self.steps)


def unroll(nest: LoopNest) -> Unrolled | NoForm:
    """Factors of the nest's instruction, with the passes that Tilewright's clock counts."""
    if keeps_rows(nest.engine):
        return NoForm(
            Reason.ARRAY, f"cells of {nest.engine.name} keep rows: how they are filled changes with"
            " a layer's windows, and no factors of loops over rows and columns say it",
        )  # fmt: skip
    groups, sizes = _spread(nest)
    if prod(sizes) != nest.rate:
        return NoForm(
            Reason.ARRAY,
            f"{nest.engine.name} does {nest.rate:g} operations a cycle in"
            f" {nest.operands[0].dtype}, its {'x'.join(map(str, sizes))} array"
            f" {prod(sizes)}",
        )
    left = list(nest.tile)
    spatial: list[Factors] = []
    for group, size in zip(groups, sizes, strict=True):
        factors = _factors([left[d] for d in group], size)
        if factors is None:
            box = "x".join(str(left[d]) for d in group)
            return NoForm(
                Reason.ARRAY,
                f"a box of {box} over {size} units of {nest.engine.name} leaves units idle in the"
                " last pass; factors must divide",
            )
        for d, factor in zip(group, factors, strict=True):
            left[d] //= factor
        spatial.append(tuple((d, f) for d, f in zip(group, factors, strict=True) if f > 1))
    order = _order(nest)
    return Unrolled(sizes, tuple(spatial), tuple((d, left[d]) for d in order if left[d] > 1))


def keeps_rows(engine: Engine) -> bool:
    """Whether an array is row stationary."""
    return engine.dataflow is not None and engine.dataflow.stationary is Stationary.ROW


def _spread(nest: LoopNest) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Dimensions along each side of the array, and its sides."""
    roles, array = nest.roles, nest.engine.array
    if nest.engine.kind is EngineKind.MATRIX and roles is not None:
        flow = nest.engine.dataflow
        kept = Stationary.WEIGHT if flow is None else flow.stationary
        match array:
            case (rows, columns):
                return {
                    Stationary.WEIGHT: (roles.depth, roles.columns),
                    Stationary.INPUT: (roles.depth, roles.rows),
                    Stationary.OUTPUT: (roles.rows, roles.columns),
                }[kept], (rows, columns)
            case (m, n, k):
                return (roles.rows, roles.columns, roles.depth), (m, n, k)
            case (columns,):
                side = roles.rows if kept is Stationary.INPUT else roles.columns
                return (side,), (columns,)
            case _:
                pass
    return (tuple(reversed(range(len(nest.dims)))),), (int(nest.rate),)


def _order(nest: LoopNest) -> tuple[int, ...]:
    if nest.roles is None:
        return tuple(range(len(nest.dims)))
    roles = nest.roles
    return (*roles.batch, *roles.depth, *roles.columns, *roles.rows)


def _factors(extents: Sequence[int], size: int) -> tuple[int, ...] | None:
    """A divisor of each extent such that the rest takes as few steps as a padded array would."""
    whole = prod(extents)
    passes = ceil(whole / size)
    if whole % passes:
        return None
    return _divided(extents, whole // passes)


def _divided(extents: Sequence[int], product: int) -> tuple[int, ...] | None:
    if not extents:
        return () if product == 1 else None
    for factor in reversed(divisors(extents[0])):
        if product % factor == 0:
            rest = _divided(extents[1:], product // factor)
            if rest is not None:
                return (factor, *rest)
    return None

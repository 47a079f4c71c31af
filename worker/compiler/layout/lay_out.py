"""Lay a region out: assign layouts, rewrite, cancel what became pointless."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from worker.compiler.frontend.express import Expressed
from worker.compiler.layout.assign import assign
from worker.compiler.layout.cancel import Cancelled, cancel_transforms, is_whole_copy
from worker.compiler.layout.change import ChangeKind, LayoutChange
from worker.compiler.layout.rewrite import TRANSFORM, Rewritten, rewrite
from worker.compiler.machine.layout_policy import LayoutPolicy

__all__ = ["ChangeKind", "LaidOut", "LayoutChange", "lay_out"]

_CONVERSIONS = (ChangeKind.BOUNDARY_IN, ChangeKind.BOUNDARY_OUT, ChangeKind.INTERIOR)
"""Changes for which an operator is inserted."""


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A region in the accelerator's layouts; inputs and outputs have ONNX's names and layouts."""

    expressed: Expressed
    changes: tuple[LayoutChange, ...]
    """Conversions and packed constants in graph order, then refusals."""
    transforms_inserted: int
    """Operators that convert, BOUNDARY_IN + BOUNDARY_OUT + INTERIOR."""
    transforms_cancelled: int
    """Copies of the given region that are gone: conversions met by their inverse, and transposes
    that the chosen layouts made empty."""
    together: tuple[tuple[str, ...], ...] = ()
    """The given composites without operators that are gone."""


def lay_out(
    expressed: Expressed, policy: LayoutPolicy, composites: Sequence[tuple[str, ...]] = ()
) -> LaidOut:
    """Give the tensors of a region the layouts of `policy`.

    `composites` are names of operators that run as one kernel, beside the region's own: they get
    no conversion between them, and want the policy's layouts as soon as one of them does.  A region
    that already holds conversions (regions laid out apart and joined) only loses those that meet
    their inverse.

    The result computes the same values, sums in the same order.

    Raises:
        ValueError: a layout of the policy is not in the notation, or of the wrong kind.

    Cost: linear in the region; constants are packed when they are asked for.
    Source: BYOC paper section 3.2, figure 4b.
    """
    before = expressed.graph
    if any(op.origin.op_type == TRANSFORM for op in before.ops):
        return _finished(expressed, cancel_transforms(before, ()), (), 0, composites)
    assignment = assign(before, policy, (*expressed.together, *composites))
    rewritten = rewrite(before, expressed.constants, assignment)
    was_copy = {op.name for op in before.ops if is_whole_copy(op, before.tensors)}
    now_copy = [
        op.name
        for op in rewritten.graph.ops
        if op.name not in was_copy and is_whole_copy(op, rewritten.graph.tensors)
    ]
    moved = replace(
        expressed,
        graph=rewritten.graph,
        constants=MappingProxyType(dict(rewritten.constants)),
    )
    cancelled = cancel_transforms(rewritten.graph, now_copy)
    gone = frozenset(cancelled.removed)
    # A conversion may undo one that the model had: both leave, and nothing was converted there.
    undone = {
        change
        for change, transform in zip(_conversions(rewritten), rewritten.transforms, strict=True)
        if transform in gone
    }
    changes = tuple(change for change in rewritten.changes if change not in undone)
    met = len(gone.intersection(rewritten.transforms))
    found = _finished(moved, cancelled, changes, len(rewritten.transforms) - met, composites)
    return replace(found, transforms_cancelled=found.transforms_cancelled - met)


def _conversions(rewritten: Rewritten) -> list[LayoutChange]:
    """The changes for which an operator was inserted, in the order of `transforms`."""
    return [change for change in rewritten.changes if change.kind in _CONVERSIONS]


def _finished(
    expressed: Expressed,
    cancelled: Cancelled,
    changes: tuple[LayoutChange, ...],
    inserted: int,
    composites: Sequence[tuple[str, ...]],
) -> LaidOut:
    graph = cancelled.graph
    constants = {n: t for n, t in expressed.constants.items() if n in graph.constants}
    result = replace(
        expressed,
        graph=graph,
        constants=MappingProxyType(constants),
        together=_without(expressed.together, cancelled.removed),
    )
    together = _without(composites, cancelled.removed)
    return LaidOut(result, changes, inserted, len(cancelled.removed), together)


def _without(
    composites: Sequence[tuple[str, ...]], removed: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """Composites without operators that are gone; one alone is none."""
    gone = frozenset(removed)
    left = (tuple(n for n in members if n not in gone) for members in composites)
    return tuple(members for members in left if len(members) > 1)

"""Whether a nest touches more of a tensor around it than its instance holds.

The slices of `propagate` are found operator by operator; a nest runs its epilogue on all that its
anchor computes.  A convolution in groups of 24 channels computes whole groups, of which the
epilogue's slice may need a part: its tiles then hang over the slice of the result.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from worker.compiler.ir.affine import Affine
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.schedule.grid import Ints
from worker.compiler.schedule.nodes import Box, Span
from worker.compiler.tiling.nest.facts import Facts


def hangs_over(
    facts: Facts, domain: Box, held: Mapping[str, Box], instances: Mapping[str, Ints]
) -> bool:
    """Whether the epilogue of a nest over `domain` of its anchor leaves what is `held`.

    `held`: boxes by tensor, of those that are not at home; `instances`: the number of every
    instance, per variable of the boxes.  What the anchor reads follows its domain already.
    Cost: linear in the operands, times the instances where slopes differ.
    """
    if not facts.epilogue or facts.stored is None:
        return False
    axes = [axis.name for axis in facts.op.domain]
    starts: dict[str, Affine] = {n: s.start for n, s in zip(axes, domain, strict=True)}
    sizes = {n: min(s.extent, facts.extents[n]) for n, s in zip(axes, domain, strict=True)}
    for operand in (*facts.late, facts.stored):
        if operand.tensor not in held:
            continue
        touched = operand.box(starts, sizes, facts.extents)
        for inner, outer, size in zip(touched, held[operand.tensor], operand.shape, strict=True):
            if not _lies_in(inner, outer, size, instances):
                return True
    return False


def _lies_in(inner: Span, outer: Span, size: int, instances: Mapping[str, Ints]) -> bool:
    """Whether the part of a span that is in the tensor lies in another, for every instance."""
    first, start = (affine_values(span.start, dict(instances)) for span in (inner, outer))
    low, high = np.maximum(first, 0), np.minimum(first + inner.extent, size)
    fits = (start <= low) & (high <= start + outer.extent)
    return bool(np.all(fits | (low >= high)))

"""What transfers bring through the ports of home and of caches, in whole bursts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TypeAlias

import numpy as np

from worker.compiler.ir.affine import Affine
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.lower.grid import Ints, per_shape
from worker.compiler.lower.rows.hazards import EVERYTHING, access_box
from worker.compiler.machine.bursts import burst_bytes, burst_units, pitch_of
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Box, Compute

Passed: TypeAlias = "tuple[Ints, Ints]"
"""Through ports of home, and of caches; 0 where they pass the payload."""


class Bursts:
    """Of one machine, for the tensors of one kernel."""

    def __init__(self, machine: Machine, tensors: Mapping[str, Tensor]) -> None:
        self.units = burst_units(machine)
        self._align = machine.home.align_bytes
        self._tensors = tensors

    def packed(self, num_bytes: Ints) -> Passed:
        """Of transfers that begin and end away from home: their payload."""
        home, cache = (num_bytes if unit > 1 else _NONE for unit in self.units)
        return home, cache

    def of_box(self, tensor: str, box: Box, extents: Sequence[Ints]) -> Passed:
        """Of transfers of a box of a tensor at home, cut to `extents`."""
        if self.units == (1, 1):
            return _NONE, _NONE
        starts = [span.start for span in box]
        home, cache = per_shape(extents, lambda shape: self._taken(tensor, starts, shape), 2)
        return home, cache

    def of_access(
        self,
        op: TensorOp,
        access: Access,
        compute: Compute,
        extents: Sequence[Ints],
        points: Ints,
    ) -> Passed:
        """Of what one instruction touches of an operand at home.

        `extents`: of all between its first and its last element; `points` of the instruction.  An
        index that depends on data is another for each point, wherever that takes it.
        """
        if self.units == (1, 1):
            return _NONE, _NONE
        starts = [
            _ANYWHERE if span.extent == EVERYTHING else span.start
            for span in access_box(op, access, compute)
        ]
        lookups = max((d + 1 for d, e in enumerate(access.index) if e.has_lookup), default=0)
        if lookups:
            starts = [_ANYWHERE] * len(starts)
        item = self._tensors[access.tensor].dtype.size_bytes

        def price(shape: tuple[int, ...]) -> tuple[int, ...]:
            *touched, points = shape
            once = [1] * lookups + touched[lookups:]
            # Whole rows behind the dimension that is looked up, as many as there are points of.
            rows = -(-points // max(1, prod(once))) if lookups else 1
            home, cache = self._taken(access.tensor, starts, once)
            apart = [-(-item // unit) * unit * points for unit in self.units]
            return min(rows * home, apart[0]), min(rows * cache, apart[1])

        home, cache = per_shape([*extents, points], price, 2)
        return home, cache

    def _taken(
        self, tensor: str, starts: Sequence[Affine], extents: Sequence[int]
    ) -> tuple[int, int]:
        known = self._tensors[tensor]
        item = known.dtype.size_bytes
        pitches = [pitch_of(start) for start in starts]
        home, cache = (
            0 if unit == 1 else burst_bytes(extents, known.shape, item, pitches, self._align, unit)
            for unit in self.units
        )
        return home, cache


_ANYWHERE = Affine.of("anywhere")
_NONE: Ints = np.array(0, dtype=np.int64)

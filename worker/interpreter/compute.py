"""What a compute does in one iteration: every point of its box, in the order of its sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from worker.compiler.errors import MemoryFault
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.scalar import Fn
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.isa.sums import OrderKind
from worker.compiler.package.stream.records import FUNCTIONS, REDUCTIONS, Fill, Op
from worker.interpreter.expressions import Expressions, Point, Range, constant
from worker.interpreter.leaves import Access, Leaf
from worker.interpreter.memory import Storage
from worker.interpreter.sums import Order, of_products, reduced
from worker.interpreter.values import Array, convert, held, load, store

PARALLEL, REDUCED, SCAN = 0, 1, 2
MOST_POINTS = 1 << 20
"""Points that are computed at once."""
_PRODUCT = int(Op.APPLY) + FUNCTIONS.index(Fn.MUL)


@dataclass(frozen=True, slots=True)
class Box:
    """Coordinates along every axis: first, how many."""

    ranges: tuple[tuple[int, int], ...]

    @property
    def num_points(self) -> int:
        return prod(count for _, count in self.ranges)


def box_of(leaf: Leaf, expressions: Expressions, counters: Sequence[int]) -> Box:
    """The box of an iteration, cut to its domain."""
    found = []
    for span in leaf.box:
        start = expressions.integer(span.start, counters)
        low = max(start, 0)
        found.append((low, max(min(start + span.extent, span.limit) - low, 0)))
    return Box(tuple(found))


def touched(access: Access, box: Box, expressions: Expressions) -> list[Range] | None:
    """Per dimension of the tensor, the first and the last element that a box touches; None: an
    index depends on what is read."""
    ranges = [(low, low + max(count, 1) - 1) for low, count in box.ranges]
    found: list[Range] = []
    for number, extent in zip(access.index, access.shape, strict=True):
        bounds = expressions.bounds(number, ranges)
        if bounds is None:
            return None
        found.append((max(bounds[0], 0), min(bounds[1], extent - 1)))
    return found


class Computation:
    """One lane of one iteration."""

    def __init__(
        self,
        leaf: Leaf,
        expressions: Expressions,
        counters: Sequence[int],
        storages: Mapping[int, Storage],
        is_fused: bool,
    ) -> None:
        """`storages`: of each access by its number."""
        self.leaf = leaf
        self.expressions = expressions
        self.counters = counters
        self.storages = storages
        self.is_fused = is_fused
        reduced_axes = [axis for group in leaf.groups for axis in group]
        others = [k for k, span in enumerate(leaf.box) if span.axis == REDUCED]
        self.inner = [k for k in others if k not in reduced_axes] + reduced_axes
        """Reduced axes; those that are not in the order have one coordinate."""
        self.outer = [k for k in range(len(leaf.box)) if k not in self.inner]
        self.type = expressions.lines(leaf.body)[-1].type

    def run(self, box: Box) -> None:
        """Compute all of a box.

        Raises:
            MemoryFault: an access leaves its storage.
        """
        if box.num_points == 0:
            return
        for part in self._parts(box):
            self._part(part)

    def _parts(self, box: Box) -> list[Box]:
        """Scanned coordinates one by one in order, then what is not too much at once."""
        for k, span in enumerate(self.leaf.box):
            low, count = box.ranges[k]
            if span.axis == SCAN and count > 1:
                return [
                    part
                    for at in range(low, low + count)
                    for part in self._parts(self._with(box, k, (at, 1)))
                ]
        if box.num_points <= MOST_POINTS:
            return [box]
        wide = max(self.outer, key=lambda k: box.ranges[k][1], default=None)
        if wide is None or box.ranges[wide][1] == 1:
            return [box]
        low, count = box.ranges[wide]
        half = count // 2
        ranges = (low, half), (low + half, count - half)
        return [p for each in ranges for p in self._parts(self._with(box, wide, each))]

    @staticmethod
    def _with(box: Box, axis: int, values: tuple[int, int]) -> Box:
        ranges = list(box.ranges)
        ranges[axis] = values
        return Box(tuple(ranges))

    def _part(self, box: Box) -> None:
        leaf, axes = self.leaf, [*self.outer, *self.inner]
        coordinates: list[Array] = [np.zeros(())] * len(axes)
        for place, axis in enumerate(axes):
            shape = [1] * len(axes)
            low, shape[place] = box.ranges[axis]
            coordinates[axis] = np.arange(low, low + shape[place], dtype=np.int64).reshape(shape)
        point = Point(self.counters, coordinates, [])
        for number, access in enumerate(leaf.reads):
            point.reads.append(self._read(access, self.storages[number], point))
        lines = self.expressions.lines(leaf.body)
        kept = tuple(box.ranges[axis][1] for axis in self.outer)
        gone = tuple(box.ranges[axis][1] for axis in self.inner)
        target = self.storages[len(leaf.reads)]
        index = [np.asarray(self.expressions.value(e, point)) for e in leaf.write.index]
        if not np.all(target.holds(index)):
            raise MemoryFault(f"leaf {leaf.number} writes outside of its storage")
        places = np.broadcast_to(target.offsets(index), (*kept, *(1 for _ in gone)))
        places = places.reshape(kept)
        if not leaf.reduce:
            value = np.broadcast_to(self.expressions.value(leaf.body, point), (*kept, *gone))
            target.elements[places] = store(value.reshape(kept), self.type, target.dtype)
            return
        reduce, total = REDUCTIONS[leaf.reduce - 1], leaf.write.type.accumulator
        old = convert(load(target.elements[places], target.dtype), target.dtype, total)
        values = self.expressions.values(leaf.body, point)
        if leaf.order is OrderKind.PRODUCT:
            last = lines[-1]
            if last.op != _PRODUCT:
                raise MemoryFault(f"leaf {leaf.number} sums up no products")
            left, right = (
                self._flat(convert(values[k], lines[k].type, total), len(kept), gone)
                for k in (last.a, last.b)
            )
            made = of_products(total, old, left, right, leaf.width, self.is_fused)
        else:
            whole = np.broadcast_to(convert(values[-1], self.type, total), (*kept, *gone))
            sizes = tuple(prod(box.ranges[axis][1] for axis in group) for group in leaf.groups)
            order = Order(leaf.order, sizes, leaf.width, leaf.run, leaf.around)
            made = reduced(reduce, total, old, whole.reshape(*kept, -1), order)
        target.elements[places] = store(np.broadcast_to(made, kept), total, target.dtype)

    @staticmethod
    def _flat(values: Array, kept: int, gone: tuple[int, ...]) -> Array:
        """A factor with its reduced axes as one; the others stay as narrow as they are."""
        full = np.asarray(values)
        full = full.reshape(*[1] * (kept + len(gone) - full.ndim), *full.shape)
        outer = full.shape[:kept]
        return np.broadcast_to(full, (*outer, *gone)).reshape(*outer, -1)

    def _read(self, access: Access, storage: Storage, point: Point) -> Array:
        index = [np.asarray(self.expressions.value(e, point)) for e in access.index]
        wide = promoted(access.type)
        outside: Array = np.zeros((), dtype=np.bool_)
        for at, extent in zip(index, access.shape, strict=True):
            outside = outside | (at < 0) | (at >= extent)
        selects = access.outside is Fill.VALUE
        if access.outside is Fill.NONE and np.any(outside):
            raise MemoryFault(f"leaf {self.leaf.number} reads outside of a tensor")
        there = storage.holds(index)
        if not np.all(there | outside if selects else there):
            raise MemoryFault(f"leaf {self.leaf.number} reads outside of its storage")
        places = storage.offsets(index)
        if selects:
            places = np.where(outside, 0, places)
        elements = (
            storage.elements[places]
            if len(storage.elements)
            else np.zeros(places.shape, dtype=storage.elements.dtype)
        )
        values = convert(load(elements, storage.dtype), storage.dtype, access.type)
        values = values.astype(held(wide), copy=False)
        if selects:
            values = np.where(outside, constant(access.fill, wide), values)
        return np.asarray(values)


def converted(elements: Array, source: DType, target: DType) -> Array:
    """What a move writes."""
    values = load(elements, source)
    if source.is_float and target.is_float:
        return store(values, source, target)
    return store(convert(values, source, target), target, target)

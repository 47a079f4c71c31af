"""What an instruction touches is in its buffer, and something put it there before.

For every leaf and operand: the needed box is inside the tile of the storage it uses, and inside
what earlier leaves wrote to that storage.  A writer inside loops that the reader is outside of
counts with everything those loops wrote (their spans must join up); inside shared loops only the
same iteration counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from worker.compiler.ir.evaluate import affine_values
from worker.compiler.ir.op import Access, TensorOp
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.boxes import accessed, moved_by, stays_inside, within
from worker.compiler.schedule.grid import (
    Ints,
    Range,
    access_range,
    coordinates,
    expr_range,
    span_range,
)
from worker.compiler.schedule.hulls import covered, has_holes, spread
from worker.compiler.schedule.nodes import Box, Compute, Init, LoopKind, Move, Schedule, Span
from worker.compiler.schedule.verify_structure import refuse
from worker.compiler.schedule.walk import (
    Ends,
    Leaf,
    Scope,
    Walk,
    compute_ends,
    move_ends,
)


@dataclass(frozen=True)
class _Need:
    """One operand of a leaf."""

    tensor: str
    scope: Scope | None
    box: Box | None
    """What is touched, or a box around it, unclipped; None: only `ranges` say it."""
    find: Callable[[], tuple[Range, ...]]
    clip: bool
    """Only the part inside the tensor is touched."""
    fill: float | int | None = None

    @cached_property
    def ranges(self) -> tuple[Range, ...]:
        """Inclusive bounds per dimension, broadcastable over the leaf's loops; unclipped."""
        return self.find()


class _Points:
    """The points that a Compute visits, iteration by iteration."""

    def __init__(self, op: TensorOp, compute: Compute, coords: Mapping[str, Ints]) -> None:
        self.op = op
        self.compute = compute
        self.coords = coords

    @cached_property
    def box(self) -> dict[str, Range]:
        """Of each axis, inside its extent."""
        found: dict[str, Range] = {}
        for axis, span in zip(self.op.domain, self.compute.box, strict=True):
            low, high = span_range(span, self.coords)
            found[axis.name] = np.maximum(low, 0), np.minimum(high, axis.extent - 1)
        return found

    @cached_property
    def empty(self) -> Ints:
        """Iterations that visit none."""
        empty: Ints = np.zeros((), dtype=bool)
        for low, high in self.box.values():
            empty = empty | (high < low)
        return empty


class _Residency:
    def __init__(self, schedule: Schedule, flat: Walk, machine: Machine) -> None:
        self.graph = schedule.graph
        self.flat = flat
        self.machine = machine
        self.ends = [self._ends(leaf) for leaf in flat.leaves]
        self.writers: dict[tuple[str, str], list[Leaf]] = {}
        for leaf, ends in zip(flat.leaves, self.ends, strict=True):
            self.writers.setdefault(_key(self._written(leaf), ends.write), []).append(leaf)

    def _ends(self, leaf: Leaf) -> Ends:
        if isinstance(leaf.node, Move):
            ends = move_ends(leaf, leaf.node, self.machine.home.name)
            if isinstance(ends, str):
                raise refuse(leaf.path, "resident", ends)
            return ends
        return compute_ends(leaf, leaf.node, self.graph, self.machine)

    def _written(self, leaf: Leaf) -> str:
        if isinstance(leaf.node, Move):
            return leaf.node.tensor
        return self.graph.op(leaf.node.op).write.tensor

    def check(self) -> None:
        for leaf, ends in zip(self.flat.leaves, self.ends, strict=True):
            coords = coordinates(leaf.frames)
            if isinstance(leaf.node, Move):
                self._check_move(leaf, leaf.node, ends, coords)
            else:
                self._check_compute(leaf, leaf.node, ends, coords)
        self._check_outputs()

    def _check_move(self, leaf: Leaf, move: Move, ends: Ends, coords: dict[str, Ints]) -> None:
        def find() -> tuple[Range, ...]:
            return tuple(span_range(span, coords) for span in move.box)

        clip = move.fill is None
        # What lies outside the tensor is written by the fill, or not at all: it is never read.
        source = _Need(move.tensor, ends.reads[0], move.box, find, clip=True)
        target = _Need(move.tensor, ends.write, move.box, find, clip=clip)
        self._check_inside(leaf, source, coords, None)
        self._check_inside(leaf, target, coords, None)
        self._check_filled(leaf, source, coords, is_drain=_is_drain(ends))
        self._check_drain(leaf, move, ends)

    def _check_compute(
        self, leaf: Leaf, compute: Compute, ends: Ends, coords: dict[str, Ints]
    ) -> None:
        op = self.graph.op(compute.op)
        points = _Points(op, compute, coords)
        spans = {axis.name: span for axis, span in zip(op.domain, compute.box, strict=True)}

        def need(access: Access, scope: Scope | None, *, clip: bool) -> _Need:
            shape = self.graph.tensors[access.tensor].shape
            return _Need(
                access.tensor, scope, accessed(access, spans),
                lambda: access_range(access, points.box, shape), clip, access.fill,
            )  # fmt: skip

        for access, scope in zip(op.reads, ends.reads, strict=True):
            if access.tensor == op.write.tensor:
                # A recurrence reads what its own earlier steps wrote; order is the axis's business.
                continue
            read = need(access, scope, clip=access.fill is None)
            self._check_inside(leaf, read, coords, points)
            self._check_filled(leaf, read, coords, points)
            self._check_padding(leaf, read)
            self._check_complete(leaf, read)
        self._check_inside(leaf, need(op.write, ends.write, clip=True), coords, points)
        if op.reduce is not None:
            self._check_accumulation(leaf, op, compute, ends.write)

    def _check_inside(
        self, leaf: Leaf, need: _Need, coords: dict[str, Ints], points: _Points | None
    ) -> None:
        """The needed box lies in the storage's tile."""
        if need.scope is None or (need.box is not None and within(need.box, need.scope.tile)):
            return
        sizes = self.graph.tensors[need.tensor].shape
        for dim, ((low, high), span, size) in enumerate(
            zip(need.ranges, need.scope.tile, sizes, strict=True)
        ):
            first, last = span_range(span, coords)
            if need.clip:
                low, high = np.maximum(low, 0), np.minimum(high, size - 1)
            outside = ((low < first) | (high > last)) & (low <= high)
            if outside.any() and (points is None or (outside & ~points.empty).any()):
                raise refuse(
                    leaf.path, "resident",
                    f"dimension {dim} of {need.tensor} leaves the tile of {need.scope.path}",
                )  # fmt: skip

    def _check_filled(
        self,
        leaf: Leaf,
        need: _Need,
        coords: dict[str, Ints],
        points: _Points | None = None,
        *,
        is_drain: bool = False,
    ) -> None:
        """Earlier leaves wrote all of the needed box.

        A drain carries its whole box outward: what nobody computed, the identity too, would be
        stored over what others computed.
        """
        is_given = need.tensor in (*self.graph.inputs, *self.graph.constants)
        if need.scope is None and is_given:
            return
        is_begun = need.scope is not None and need.scope.init is Init.IDENTITY
        if is_begun and points is None and not is_drain:
            return  # sums that are only beginning move inward; a Compute must find them added
        writers = [
            writer for writer in self.writers.get(_key(need.tensor, need.scope), ())
            if writer.number < leaf.number
        ]  # fmt: skip
        if any(self._fills(writer, leaf, need) for writer in writers):
            return
        sizes = self.graph.tensors[need.tensor].shape
        wanted = [
            (np.maximum(low, 0), np.minimum(high, size - 1)) if need.clip or need.fill is not None
            else (low, high)
            for (low, high), size in zip(need.ranges, sizes, strict=True)
        ]  # fmt: skip
        hulls = []
        for writer in writers:
            hull = self._hull(writer, leaf, coords, is_exact=is_drain)
            if hull is not None:
                hulls.append(hull)
        if not covered(wanted, hulls, None if points is None else points.empty):
            where = "home" if need.scope is None else need.scope.path
            raise refuse(
                leaf.path, "resident", f"{need.tensor} in {where} is not written before its use"
            )

    def _fills(self, writer: Leaf, reader: Leaf, need: _Need) -> bool:
        """Whether one writer alone wrote all of the needed box, as the starts say."""
        if need.box is None:
            return False
        shared = _common_frames(writer, reader)
        free = {f.var: f for f in writer.frames if f.var not in shared}
        if isinstance(writer.node, Move):
            spans = spread(writer.node.box, free)
            return spans is not None and within(need.box, spans)
        op = self.graph.op(writer.node.op)
        sizes = self.graph.tensors[need.tensor].shape
        trips = {f.var: f.trip for f in writer.frames}
        axes = {a.name: (a.extent, s) for a, s in zip(op.domain, writer.node.box, strict=True)}
        box: list[Span] = []
        for expr, size in zip(op.write.index, sizes, strict=True):
            if (found := moved_by(expr)) is None:
                return False
            name, begin = found
            extent, span = axes[name]
            # Nothing is written outside of the axis; nothing outside of the tensor is needed.
            is_low, is_high = stays_inside(span, extent, trips)
            cut = need.clip or need.fill is not None
            if not (is_low or (cut and begin <= 0)):
                return False
            if not (is_high or (cut and begin + extent >= size)):
                return False
            box.append(Span(span.start + begin, span.extent))
        whole = spread(tuple(box), free)
        return whole is not None and within(need.box, whole)

    def _hull(
        self,
        writer: Leaf,
        reader: Leaf | None,
        coords: dict[str, Ints],
        *,
        is_exact: bool = False,
    ) -> list[Range] | None:
        """Everything `writer` wrote by the time `reader` runs, in the reader's coordinates.

        Without a reader, in the iterations that `coords` gives.
        `is_exact`: None when what it wrote is a box with holes.
        """
        shared = set(coords) if reader is None else _common_frames(writer, reader)
        free = {f.var: f for f in writer.frames if f.var not in shared}
        if isinstance(writer.node, Move):
            spans = spread(writer.node.box, free)
            if spans is None:
                return None
            ranges = [span_range(span, coords) for span in spans]
            if writer.node.fill is None:
                return ranges
            # A fill makes everything outside the tensor valid as well.
            return ranges
        op = self.graph.op(writer.node.op)
        needed = {v for e in op.write.index for v in e.variables()}
        named = [
            (axis, span)
            for axis, span in zip(op.domain, writer.node.box, strict=True)
            if axis.name in needed
        ]
        whole = spread(tuple(span for _, span in named), free)
        if whole is None:
            return None
        box: dict[str, Range] = {}
        for (axis, _), span in zip(named, whole, strict=True):
            low, high = span_range(span, coords)
            box[axis.name] = (np.maximum(low, 0), np.minimum(high, axis.extent - 1))
        if is_exact and any(has_holes(expr, box) for expr in op.write.index):
            return None
        return [expr_range(expr, box) for expr in op.write.index]

    def _check_padding(self, leaf: Leaf, need: _Need) -> None:
        """A read with a fill from a buffer finds the fill where it leaves the tensor."""
        if need.fill is None or need.scope is None:
            return
        sizes = self.graph.tensors[need.tensor].shape
        leaves_it = any(
            np.any(low < 0) or np.any(high >= size)
            for (low, high), size in zip(need.ranges, sizes, strict=True)
        )
        if not leaves_it:
            return
        for writer in self.writers.get(_key(need.tensor, need.scope), ()):
            if writer.number < leaf.number and (
                not isinstance(writer.node, Move) or writer.node.fill != need.fill
            ):
                raise refuse(
                    leaf.path, "fill",
                    f"{need.tensor} is padded with {need.fill}, {writer.path} does not write it",
                )  # fmt: skip

    def _check_accumulation(
        self, leaf: Leaf, op: TensorOp, compute: Compute, scope: Scope | None
    ) -> None:
        if scope is None:
            raise refuse(leaf.path, "init", f"{op.name} accumulates at home, uninitialised")
        reduce_names = {a.name for a in op.reduce_axes}
        by_axis = list(zip(op.domain, compute.box, strict=True))
        is_partial = any(
            axis.name in reduce_names and span.extent < axis.extent for axis, span in by_axis
        )
        wide = self.graph.tensors[op.write.tensor].dtype.accumulator
        owner = self._initialised(leaf, scope, wide, is_partial)
        steps = {v for a, s in by_axis if a.name in reduce_names for v in s.start.variables()}
        outside = {f.var for f in owner.frames}
        for frame in leaf.frames:
            if frame.trip == 1 or frame.var not in steps:
                continue
            if frame.var in outside:
                raise refuse(leaf.path, "init", f"{frame.var} restarts the sum in {owner.path}")
            if frame.kind is LoopKind.CORES:
                raise refuse(leaf.path, "init", f"{frame.var} sums over cores into one buffer")
        if compute.recompute:
            self._check_summed_once(leaf, op, compute, owner)

    def _check_summed_once(self, leaf: Leaf, op: TensorOp, compute: Compute, owner: Scope) -> None:
        """Recomputed boxes that overlap go to different entries of the buffer of the sum."""
        outside = {f.var for f in owner.frames}
        inner = {f.var: f for f in leaf.frames if f.var not in outside and f.trip > 1}
        moved: set[str] = set()
        for span in compute.box:
            names = [v for v in span.start.variables() if v in inner]
            moved.update(names)
            coords = {f.var: np.zeros(1, np.int64) for f in leaf.frames}
            coords.update(coordinates([inner[v] for v in names]))
            starts = np.sort(np.ravel(affine_values(span.start, coords)))
            if np.any(np.diff(starts) < span.extent):
                raise refuse(
                    leaf.path, "init", f"{op.name} recomputes points twice into one sum of"
                    f" {owner.path}",
                )  # fmt: skip
        if moved != set(inner):
            raise refuse(
                leaf.path, "init",
                f"{op.name} is computed once per {min(set(inner) - moved)}, hence twice into"
                f" one sum of {owner.path}",
            )  # fmt: skip

    def _initialised(self, leaf: Leaf, scope: Scope, wide: object, is_partial: bool) -> Scope:
        """The scope whose initialisation the accumulation in `scope` goes back to."""
        while True:
            if is_partial and scope.dtype is not wide:
                raise refuse(
                    scope.path, "partial", f"partial sums need {wide}, the place has {scope.dtype}"
                )
            if scope.init is Init.IDENTITY:
                return scope
            loader = next(
                (
                    w for w in self.writers.get(_key(scope.tensor, scope), ())
                    if isinstance(w.node, Move) and w.number < leaf.number
                ),
                None,
            )  # fmt: skip
            source = self.ends[loader.number].reads[0] if loader is not None else None
            if source is None:
                raise refuse(leaf.path, "init", f"{scope.tensor} in {scope.path} starts undefined")
            scope = source

    def _check_drain(self, leaf: Leaf, move: Move, ends: Ends) -> None:
        """A result leaves for home only when its sum is complete."""
        if ends.write is not None:
            return
        for writer in self.writers.get(_key(move.tensor, ends.reads[0]), ()):
            if not isinstance(writer.node, Compute):
                self._check_drained_chain(leaf, writer)
                continue
            self._refuse_partial(leaf, writer, "drained")

    def _check_complete(self, leaf: Leaf, need: _Need) -> None:
        """A Compute reads an accumulator only when its sum is complete."""
        if need.scope is None:
            return
        for writer in self.writers.get(_key(need.tensor, need.scope), ()):
            if not isinstance(writer.node, Compute):
                continue
            op = self.graph.op(writer.node.op)
            if op.reduce is not None and writer.number > leaf.number:
                raise refuse(
                    leaf.path, "partial", f"{need.tensor} is read before {op.name} has added all"
                )
            self._refuse_partial(leaf, writer, "read")

    def _check_drained_chain(self, leaf: Leaf, writer: Leaf) -> None:
        source = self.ends[writer.number].reads[0]
        assert isinstance(writer.node, Move)
        if source is None:
            return
        for inner in self.writers.get(_key(writer.node.tensor, source), ()):
            if isinstance(inner.node, Compute):
                self._refuse_partial(leaf, inner, "drained")

    def _refuse_partial(self, leaf: Leaf, writer: Leaf, verb: str) -> None:
        assert isinstance(writer.node, Compute)
        op = self.graph.op(writer.node.op)
        reduce_names = {a.name for a in op.reduce_axes}
        shared = _common_frames(writer, leaf)
        for axis, span in zip(op.domain, writer.node.box, strict=True):
            if axis.name not in reduce_names:
                continue
            names = [v for v in span.start.variables() if v in shared]
            trips = {f.var: f.trip for f in writer.frames}
            if any(trips[v] > 1 for v in names):
                raise refuse(
                    leaf.path, "partial", f"{writer.node.op} is {verb} inside loop {names[0]}"
                    " before its sum is complete",
                )  # fmt: skip

    def _check_outputs(self) -> None:
        for name in self.graph.outputs:
            for op in self.graph.ops:
                if op.write.tensor != name:
                    continue
                whole = {a.name: (np.asarray(0), np.asarray(a.extent - 1)) for a in op.domain}
                wanted = [expr_range(expr, whole) for expr in op.write.index]
                hulls = [
                    hull
                    for writer in self.writers.get(_key(name, None), ())
                    for hull in self._pieces(writer)
                ]
                if not covered(wanted, hulls, None) and not self._computed_home(op.name):
                    raise refuse("0", "resident", f"output {name} is not all written to home")

    def _pieces(self, writer: Leaf) -> Iterator[list[Range]]:
        """Boxes that `writer` wrote in all: one, or one per iteration of its outermost loop where
        other leaves write what is between them."""
        whole = self._hull(writer, None, {})
        if whole is not None:
            yield whole
        elif writer.frames:
            for turn in np.arange(writer.frames[0].trip):
                piece = self._hull(writer, None, {writer.frames[0].var: np.asarray(turn)})
                if piece is not None:
                    yield piece

    def _computed_home(self, op: str) -> bool:
        """Every Compute of `op` writes at home (then coverage proves that all of it is there)."""
        return all(
            self.ends[leaf.number].write is None
            for leaf in self.flat.leaves
            if isinstance(leaf.node, Compute) and leaf.node.op == op
        )


def check_residency(schedule: Schedule, flat: Walk, machine: Machine) -> None:
    """Raise VerifyError for resident, init, partial and fill.

    Cost: leaves x writers of a storage x iterations of the loops that the compared boxes use.
    """
    _Residency(schedule, flat, machine).check()


def _is_drain(ends: Ends) -> bool:
    """Whether a Move goes outward, from a storage to one that was there before it."""
    (source,) = ends.reads
    if source is None:
        return False
    return ends.write is None or not ends.write.path.startswith(f"{source.path}.")


def _key(tensor: str, scope: Scope | None) -> tuple[str, str]:
    return tensor, "" if scope is None else scope.path


def _common_frames(writer: Leaf, reader: Leaf) -> set[str]:
    shared: set[str] = set()
    for a, b in zip(writer.frames, reader.frames, strict=False):
        if a.path != b.path:
            break
        shared.add(a.var)
    return shared

"""A schedule tree read as loop nests: one per part that runs one operator, a refusal per other.

Parts of a kernel are what its outermost sequences run one after the other; they exchange data by
the home memory alone, since no buffer encloses two of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from worker.compiler.cost.compute import compute_dtype, contraction, rate
from worker.compiler.export.nest import (
    Dim,
    Hold,
    LoopNest,
    NestLoop,
    NoForm,
    Operand,
    Reason,
    Refusal,
    Roles,
    Terms,
)
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Compute, LoopKind, Move, Node, Schedule, Seq
from worker.compiler.schedule.walk import Frame, Leaf, Scope, move_ends, reached, walk


def loop_nests(
    kernel: str, nodes: tuple[str, ...], schedule: Schedule, machine: Machine
) -> tuple[LoopNest | Refusal, ...]:
    """Nests and refusals of one kernel, in the order in which its parts run.

    `machine` is the one its target sees.
    Cost: linear in the tree and the loops around each leaf.
    """
    leaves = walk(schedule).leaves
    found: list[LoopNest | Refusal] = []
    for part, path in enumerate(_parts(schedule.root, "0")):
        inside = [x for x in leaves if x.path == path or x.path.startswith(f"{path}.")]
        ops = tuple(dict.fromkeys(x.node.op for x in inside if isinstance(x.node, Compute)))
        nest = _Part(kernel, part, nodes, schedule, machine, tuple(inside)).nest(ops)
        if isinstance(nest, NoForm):
            found.append(Refusal(kernel, part, ops, nodes, nest.reason, nest.message))
        else:
            found.append(nest)
    return tuple(found)


def _parts(node: Node, path: str) -> Iterator[str]:
    if not isinstance(node, Seq):
        yield path
        return
    for k, part in enumerate(node.parts):
        yield from _parts(part, f"{path}.{k}")


class _Part:
    """One part of a kernel while it is read."""

    def __init__(
        self, kernel: str, part: int, nodes: tuple[str, ...], schedule: Schedule,
        machine: Machine, leaves: tuple[Leaf, ...],
    ) -> None:  # fmt: skip
        self.kernel, self.part, self.nodes = kernel, part, nodes
        self.graph, self.machine, self.leaves = schedule.graph, machine, leaves

    def nest(self, ops: tuple[str, ...]) -> LoopNest | NoForm:
        computes = [leaf for leaf in self.leaves if isinstance(leaf.node, Compute)]
        if any(leaf.stages for leaf in self.leaves):
            return NoForm(Reason.PIPE, f"a pipe runs {', '.join(ops)} side by side")
        if not computes:
            return NoForm(Reason.NO_OPERATOR, "it moves tensors and computes nothing")
        if len(ops) > 1:
            return NoForm(
                Reason.FUSED, f"{len(ops)} operators share loops and buffers: {', '.join(ops)}"
            )
        if len(computes) > 1:
            return NoForm(Reason.TILING, f"{len(computes)} instructions share {ops[0]}")
        (leaf,) = computes
        op = next(o for o in self.graph.ops if o.name == ops[0])
        return self._of_one(leaf, op)

    def _of_one(self, leaf: Leaf, op: TensorOp) -> LoopNest | NoForm:
        compute = leaf.node
        assert isinstance(compute, Compute)
        if compute.recompute:
            return NoForm(Reason.TILING, f"{op.name} computes points of other tiles again (halo)")
        kept = [k for k, axis in enumerate(op.domain) if axis.extent > 1]
        dims = dims_of(op)
        operands: list[Operand] = []
        for access in (*op.reads, op.write):
            operand = operand_of(access, dims, self.graph.tensors[access.tensor])
            if isinstance(operand, NoForm):
                return operand
            operands.append(operand)
        names = [operand.tensor for operand in operands]
        if len(set(names)) < len(names):
            return NoForm(Reason.INDEX, f"{op.name} reads or writes a tensor twice")
        starts = [compute.box[k].start for k in kept]
        tile = tuple(compute.box[k].extent for k in kept)
        loops = _loops(leaf.frames, starts, tile, dims)
        if isinstance(loops, NoForm):
            return loops
        holds = self._holds(leaf, compute, operands)
        if isinstance(holds, NoForm):
            return holds
        engine = self.machine.engine(compute.engine)
        speed = rate(engine, compute_dtype(op, self.graph.tensors))
        nest = LoopNest(
            self.kernel, self.part, op.name, self.nodes, dims, tuple(operands), loops, holds,
            engine, speed, tile, _roles(op, kept),
        )  # fmt: skip
        return _shaped(nest) or nest

    def _holds(
        self, leaf: Leaf, compute: Compute, operands: Sequence[Operand]
    ) -> tuple[Hold, ...] | NoForm:
        home, levels = self.machine.home.name, reached(compute.engine, self.machine)
        names = [operand.tensor for operand in operands]
        moves = self._moves(home)
        if isinstance(moves, NoForm):
            return moves
        holds: list[Hold] = []
        for scope in leaf.scopes:
            operand, ends = names.index(scope.tensor), moves.pop(scope.number, [])
            is_result = operand == len(names) - 1
            into = [(far, frames) for far, frames, is_in in ends if is_in]
            out = [(far, frames) for far, frames, is_in in ends if not is_in]
            expected = out if is_result else into
            if len(expected) != 1 or len(into) > 1 or (out and not is_result):
                return NoForm(
                    Reason.BUFFERS, f"{scope.tensor} in {scope.memory} is not moved once a tile"
                )
            if any(frames != len(scope.frames) for _, frames in (*into, *out)):
                return NoForm(
                    Reason.BUFFERS, f"{scope.tensor} in {scope.memory} is moved piece by piece"
                )
            holds.append(
                Hold(
                    operand,
                    scope.memory,
                    expected[0][0],
                    len(scope.frames),
                    tuple(s.extent for s in scope.tile),
                    scope.copies,
                    scope.dtype,
                    is_result and bool(into),
                )
            )
        at_home = [n for k, n in enumerate(names)
                   if all(h.operand != k or h.memory not in levels for h in holds)]  # fmt: skip
        if at_home:
            return NoForm(
                Reason.BUFFERS, f"{', '.join(at_home)} has no buffer in {levels[0]}, which feeds"
                f" {compute.engine}",
            )  # fmt: skip
        return tuple(holds)

    def _moves(self, home: str) -> dict[int, list[tuple[str, int, bool]]] | NoForm:
        """By number of a scope: memory at the other end, loops around the move, whether it fills
        the scope."""
        found: dict[int, list[tuple[str, int, bool]]] = {}
        for leaf in self.leaves:
            if not isinstance(leaf.node, Move):
                continue
            ends = move_ends(leaf, leaf.node, home)
            if isinstance(ends, str):
                return NoForm(Reason.BUFFERS, ends)
            src, dst = ends.reads[0], ends.write
            # The end inside the other is the one whose tile is moved.
            is_in = _rank(dst) > _rank(src)
            near, far = (dst, src) if is_in else (src, dst)
            if near is None:
                return NoForm(Reason.BUFFERS, f"{leaf.node.tensor} is copied within {home}")
            entry = (home if far is None else far.memory, len(leaf.frames), is_in)
            found.setdefault(near.number, []).append(entry)
        return found


def _rank(scope: Scope | None) -> int:
    return -1 if scope is None else scope.number


def dims_of(op: TensorOp) -> tuple[Dim, ...]:
    """Axes of more than one step."""
    return tuple(
        Dim(axis.name, axis.extent, axis.kind is AxisKind.REDUCE)
        for axis in op.domain
        if axis.extent > 1
    )


def operand_of(access: Access, dims: Sequence[Dim], tensor: Tensor) -> Operand | NoForm:
    """How a tensor is indexed by dimensions of more than one step."""
    positions = {dim.name: k for k, dim in enumerate(dims)}
    index: list[Terms] = []
    offsets: list[int] = []
    for expr in access.index:
        if not expr.is_linear:
            return NoForm(Reason.INDEX, f"{access.tensor} is indexed by {expr}, which is no sum")
        fixed = {name: 0 for name in expr.variables() if name not in positions}
        moving = expr.substitute(fixed)
        terms = sorted((positions[name], moving.coeff(name)) for name in moving.variables())
        if any(coeff < 1 for _, coeff in terms):
            return NoForm(Reason.INDEX, f"{access.tensor} is read backwards, by {expr}")
        index.append(tuple(terms))
        offsets.append(moving.const)
    return Operand(access.tensor, tuple(index), tuple(offsets), tensor.shape, tensor.dtype)


def _loops(
    frames: Sequence[Frame], starts: Sequence[Affine], tile: Sequence[int], dims: Sequence[Dim]
) -> tuple[NestLoop, ...] | NoForm:
    """The loops around an instruction, each over one dimension, each in steps of what runs inside
    of it."""
    loops: list[NestLoop] = []
    reached = list(tile)
    for frame in reversed(frames):
        moved = [k for k, start in enumerate(starts) if start.coeff(frame.var)]
        if frame.kind is LoopKind.LANES or len(moved) != 1:
            return NoForm(Reason.TILING, f"loop {frame.var} does not step one dimension")
        (k,) = moved
        if starts[k].coeff(frame.var) != reached[k]:
            return NoForm(
                Reason.TILING, f"loop {frame.var} steps {dims[k].name} by"
                f" {starts[k].coeff(frame.var)}, where {reached[k]} run inside of it",
            )  # fmt: skip
        reached[k] *= frame.trip
        loops.append(NestLoop(k, frame.trip, frame.kind is LoopKind.CORES, frame.stride))
    for dim, start, reach in zip(dims, starts, reached, strict=True):
        if not start.is_linear or start.const or reach < dim.extent:
            return NoForm(
                Reason.TILING, f"tiles of {dim.name} do not start at 0 and run to its end"
            )
    return tuple(reversed(loops))


def _roles(op: TensorOp, kept: Sequence[int]) -> Roles | None:
    found = contraction(op)
    if found is None:
        return None
    position = {axis: k for k, axis in enumerate(kept)}

    def here(axes: Sequence[int]) -> tuple[int, ...]:
        return tuple(position[a] for a in axes if a in position)

    return Roles(
        here(found.rows), here(found.columns), here(found.depth), here(found.batch), *found.slots
    )


def _shaped(nest: LoopNest) -> NoForm | None:
    """Whether every buffer holds what the loops inside of it touch, no less and no more."""
    extents = [dim.extent for dim in nest.dims]
    for hold in nest.holds:
        operand = nest.operands[hold.operand]
        whole = operand.widths(extents)
        touched = operand.widths(nest.tile_inside(hold.depth))
        expected = tuple(min(a, b) for a, b in zip(touched, whole, strict=True))
        if hold.extents != expected:
            return NoForm(
                Reason.BUFFERS, f"{operand.tensor} in {hold.memory} holds"
                f" {'x'.join(map(str, hold.extents))}, its loops touch"
                f" {'x'.join(map(str, expected))}",
            )  # fmt: skip
    return None

"""Fewer operators for the same region, before a strategy groups it.

Three kinds of steps, until none applies:
 - a move (reshape, transpose, slice, expand, piece of a concatenation) folds into every reader or
   into the operators that wrote its source (`compose_moves`);
 - a pointwise operator that one operator alone reads, at one place per point, becomes part of it;
 - a pointwise operator on a concatenation becomes part of what writes the pieces, so that the
   whole is never stored between them.

Every step keeps values bit by bit (`compose.pull` keeps the rounding of what it removes) and must
leave an operator that is planned at least as well as the one it replaces: `_Region.accepts`.

Where a move goes: a reduction's result is written where the move would put it, so that pointwise
readers still stand right behind the reduction; a pointwise operator's result is read where the
move would read it, so that the operator still stands right behind its own reduction.  The other
way is the second choice.

Source: 2-architecture.md "The operator algebra"; GraphTurbo section 1.1 takes such a graph of
layers as given (its front end fuses them), so this step has no counterpart there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import TypeAlias

from worker.compiler.cost.compute import Contraction, contraction, elementary_ops, pick_engine
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.compose import absorb, elementwise_axes, pull
from worker.compiler.ir.compose_moves import is_move, num_divisions, redirect, split_axes
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Origin, Tensor, TensorOp
from worker.compiler.ir.scalar import Index, Read, Scalar, Select, children
from worker.compiler.machine.machine import Machine
from worker.compiler.rewrite.split_off import split_off
from worker.compiler.tiling.nest.facts import Facts, facts_of

MAX_BODY_NODES = 32
"""Scalar nodes of an operator made of several pointwise ones."""
MAX_TENSORS = 6
"""Distinct tensors that such an operator reads; each needs room on the chip at once."""
TINY_ELEMS = 16
"""Results up to this size are not worth a longer body or a harder index."""


def compose_region(graph: Graph, machine: Machine) -> Graph:
    """`graph` with moves and chains of pointwise operators folded; the same function.

    Inputs, outputs and constants keep names, shapes and types; operators keep their names and
    unite the origins of what was folded into them, in graph order.  Applying it again changes
    nothing.  Left alone: lookups, scans, constant-only and tiny operators.
    Cost: linear in operators and reads for graphs of bounded fan-out.
    """
    region = _Region(graph, machine)
    while any(_sweep(region, fold) for fold in _FOLDS):
        pass  # from the first kind of step again: the order of the kinds is their priority
    return region.graph()


def _sweep(region: _Region, fold: _Fold) -> bool:
    """Try `fold`, readers first, where an operator or a neighbour changed since it was tried."""
    has_changed = False
    for name in reversed(region.names()):
        op = region.ops.get(name)
        if op is not None and _is_elementwise(op) and region.is_news(op, fold):
            has_changed |= fold(region, op)
    return has_changed


class _Region:
    """The graph under change: operators by name in execution order, and who touches a tensor."""

    def __init__(self, graph: Graph, machine: Machine) -> None:
        self.source = graph
        self.machine = machine
        self.tensors = dict(graph.tensors)
        self.outside = frozenset((*graph.inputs, *graph.constants, *graph.outputs))
        self.constants = frozenset(graph.constants)
        self.ops: dict[str, TensorOp] = {op.name: op for op in graph.ops}
        self._position: dict[str, tuple[int, ...]] = {
            op.name: (k,) for k, op in enumerate(graph.ops)
        }
        self._nodes: dict[str, int] = {}
        for op in graph.ops:
            for node in op.origin.nodes:
                self._nodes.setdefault(node, len(self._nodes))
        self._readers: dict[str, dict[str, None]] = {}
        self._writers: dict[str, dict[str, None]] = {}
        self._clock = 0
        self._changed: dict[str, int] = {}
        """When a reader or writer of the tensor last changed."""
        self._facts: dict[str, Facts] = {}
        self._tried: dict[tuple[str, str], int] = {}
        for op in graph.ops:
            self._link(op)

    def graph(self) -> Graph:
        """The graph as it stands, with the tensors that are still used."""
        ops = tuple(self.ops[name] for name in self.names())
        used = {*self.outside, *(n for op in ops for n in (*op.input_names(), op.write.tensor))}
        return Graph.build(
            ops,
            tuple(t for name, t in self.tensors.items() if name in used),
            self.source.inputs,
            self.source.outputs,
            self.source.constants,
        )

    def names(self) -> list[str]:
        """Names of the operators, in execution order."""
        return sorted(self.ops, key=self._position.__getitem__)

    def readers(self, tensor: str) -> list[TensorOp]:
        """Operators that read `tensor`, in execution order."""
        names = sorted(self._readers.get(tensor, {}), key=self._position.__getitem__)
        return [self.ops[name] for name in names]

    def writers(self, tensor: str) -> list[TensorOp]:
        """Operators that write `tensor`, in execution order; [] for inputs and constants."""
        names = sorted(self._writers.get(tensor, {}), key=self._position.__getitem__)
        return [self.ops[name] for name in names]

    def remove(self, op: TensorOp) -> None:
        """Take an operator out."""
        del self.ops[op.name]
        self._unlink(op)

    def add(self, op: TensorOp, after: TensorOp, made: Tensor) -> None:
        """A new operator right behind another, and the tensor that goes from one to the other."""
        self.tensors[made.name] = made
        self.ops[op.name] = op
        self._position[op.name] = (*self._position[after.name], 0)
        self._link(op)

    def put(self, op: TensorOp, *folded: TensorOp) -> None:
        """Replace the operator of the same name; it takes over the origins of `folded`."""
        nodes = {*op.origin.nodes, *(n for other in folded for n in other.origin.nodes)}
        ordered = tuple(sorted(nodes, key=self._nodes.__getitem__))
        new = replace(op, origin=Origin(ordered, op.origin.op_type))
        self._facts[op.name] = replace(self.facts(op), op=new)
        self._unlink(self.ops[op.name])
        self.ops[op.name] = new
        self._link(new)

    def replace_last(self, last: TensorOp, news: Sequence[TensorOp]) -> None:
        """Let `news`, of names that are there already, do the work of `last` where that stood."""
        at = self._position[last.name]
        self.remove(last)
        for k, new in enumerate(news):
            self.put(new, last)
            self._position[new.name] = (*at, k)

    def is_worth_it(self, op: TensorOp) -> bool:
        """Whether `op` is neither tiny nor made of constants only."""
        is_tiny = self.tensors[op.write.tensor].num_elems <= TINY_ELEMS
        return not is_tiny and any(a.tensor not in self.constants for a in op.reads)

    def is_news(self, op: TensorOp, fold: _Fold) -> bool:
        """Whether `op` or a neighbour has changed since the last such question."""
        key = (fold.__name__, op.name)
        since = self._tried.get(key, -1)
        self._tried[key] = self._clock
        return any(
            self._changed.get(name, 0) > since for name in (op.write.tensor, *op.input_names())
        )

    def facts(self, op: TensorOp) -> Facts:
        """`facts_of` an operator, remembered for the last one of its name."""
        found = self._facts.get(op.name)
        if found is None or found.op is not op:
            found = self._facts[op.name] = facts_of(op, self.tensors)
        return found

    def is_epilogue(self, op: TensorOp) -> bool:
        """Whether `op` may stand right behind a matrix-like operator whose result it reads."""
        return any(
            contraction(writer) is not None and len(self.readers(access.tensor)) == 1
            for access in op.reads
            for writer in self.writers(access.tensor)
        )

    def accepts(self, new: TensorOp, old: TensorOp, folded: TensorOp) -> bool:
        """Whether `new` is planned at least as well as `old` with `folded` beside it.

        No further // or %, the same matrix roles, an engine, no further test of the index in the
        body, a placed result if there was one, no further tensor read at home,
        no further long axis in single steps.
        """
        if num_divisions(new) > num_divisions(old) or not _same_roles(new, old):
            return False
        if _num_tests(new.body) > _num_tests(old.body) + _num_tests(folded.body):
            return False
        if pick_engine(new, self.machine, self.tensors) is None:
            return False
        now = self.facts(new)
        if now.out is not None and not now.at_home and not _num_single(now):
            return True
        before, beside = self.facts(old), self.facts(folded)
        if now.out is None and before.out is not None:
            return False
        at_home = {*_at_home(before), *_at_home(beside)}
        return at_home.issuperset(_at_home(now)) and _num_single(now) <= _num_single(before)

    def _link(self, op: TensorOp) -> None:
        for name in op.input_names():
            self._readers.setdefault(name, {})[op.name] = None
        name = op.write.tensor
        self._writers.setdefault(name, {})[op.name] = None

        self._touch(op)

    def _touch(self, op: TensorOp) -> None:
        for name in (*op.input_names(), op.write.tensor):
            self._changed[name] = self._clock

    def _unlink(self, op: TensorOp) -> None:
        self._clock += 1
        self._touch(op)
        for name in op.input_names():
            del self._readers[name][op.name]
        name = op.write.tensor
        del self._writers[name][op.name]


def _fold_move(region: _Region, move: TensorOp) -> bool:
    """Remove a move, one way or the other; whether it is gone."""
    if not is_move(move, region.tensors) or not region.is_worth_it(move):
        return False
    writers = region.writers(move.reads[0].tensor)
    if any(op.reduce is not None for op in writers):
        return _into_writers(region, move) or _into_readers(region, move)
    return _into_readers(region, move) or _into_writers(region, move)


def _into_readers(region: _Region, move: TensorOp) -> bool:
    """Let every reader of a move read its source instead."""
    target = move.write.tensor
    readers = region.readers(target)
    if not readers or target in region.outside or len(region.writers(target)) != 1:
        return False
    made: list[TensorOp] = []
    for reader in readers:
        new = pull(reader, move, region.tensors)
        if new is None or not region.accepts(new, reader, move):
            return False
        made.append(new)
    region.remove(move)
    for new in made:
        region.put(new, move)
    return True


def _into_writers(region: _Region, move: TensorOp) -> bool:
    """Let every writer of a move's source write the move's result instead."""
    source = move.reads[0].tensor
    writers = region.writers(source)
    if not writers or source in region.outside or len(region.readers(source)) != 1:
        return False
    made: list[TensorOp] = []
    for writer in writers:
        new = _redirected(region, writer, move)
        if new is None:
            return False
        made.append(new)
    region.remove(move)
    for new in made:
        region.put(new, move)
    return True


def _redirected(region: _Region, writer: TensorOp, move: TensorOp) -> TensorOp | None:
    """`writer` with a linear write where `move` would put its result; None if there is none."""
    for way in (move, split_axes(move)):
        new = redirect(writer, way, region.tensors)
        if new is not None and all(e.is_linear for e in new.write.index):
            return new if region.accepts(new, writer, move) else None
    return None


def _fold_in_place(region: _Region, op: TensorOp) -> bool:
    """`_fold_pointwise` into a reader that takes the operator's place."""
    readers = region.readers(op.write.tensor)
    if len(readers) != 1 or not _takes_place(region, readers[0], op.write.tensor):
        return False
    return _fold_pointwise(region, op)


def _fold_pointwise(region: _Region, op: TensorOp) -> bool:
    """Make a pointwise operator part of its only reader; whether it is gone."""
    target = op.write.tensor
    readers = region.readers(target)
    if len(readers) != 1 or len(region.writers(target)) != 1:
        return False
    if target in region.outside or not region.is_worth_it(op) or is_move(op, region.tensors):
        return False
    reader = readers[0]
    if not _may_compute(region, reader, op):
        return False
    new = pull(reader, op, region.tensors)
    if new is None or not _is_small(new) or not region.accepts(new, reader, op):
        return False
    region.remove(op)
    region.put(new, op)
    return True


def _fold_into_pieces(region: _Region, op: TensorOp) -> bool:
    """Make a pointwise operator part of all the operators that write what it reads.

    Where that spares copies, a piece that a reduction writes gets a tensor of its own, and the
    pointwise operator stands behind it.
    """
    for name in op.input_names():
        writers = region.writers(name)
        if len(writers) < 2 or name in region.outside or region.readers(name) != [op]:
            continue
        if _is_epilogue_of_another(region, op, name):
            continue
        summing = [w for w in writers if not _is_elementwise(w)]
        moved = [w for w in writers if is_move(w, region.tensors)]
        if summing and _elems(region, moved) < _elems(region, summing):
            continue
        apart = [split_off(writer, op, region.tensors) for writer in summing]
        taken = {*region.ops, *region.tensors}
        if any(found is None or found.made.name in taken for found in apart):
            continue
        split = {found.copy.name: found for found in apart if found is not None}
        sources: list[TensorOp] = [w for w in writers if w not in summing]
        sources += [found.copy for found in split.values()]
        for found in split.values():
            region.tensors[found.made.name] = found.made
        made = [_piece(region, writer, op) for writer in sources]
        if any(new is None for new in made):
            for found in split.values():
                del region.tensors[found.made.name]
            continue
        for found in split.values():
            region.put(found.writer)
            region.add(found.copy, found.writer, found.made)
        region.replace_last(op, [new for new in made if new is not None])
        return True
    return False


def _is_epilogue_of_another(region: _Region, op: TensorOp, name: str) -> bool:
    """Whether `op` may stand right behind the operator that writes what else it reads."""
    others = tuple(access for access in op.reads if access.tensor != name)
    return bool(others) and region.is_epilogue(replace(op, reads=others))


def _elems(region: _Region, ops: Sequence[TensorOp]) -> int:
    """Elements that the operators write."""
    return sum(prod(a.extent for a in op.parallel_axes) for op in ops)


def _piece(region: _Region, writer: TensorOp, op: TensorOp) -> TensorOp | None:
    """`writer`, of one piece, with the work of `op` on it; None if it is not for it to do."""
    if not _is_elementwise(writer):
        return None
    new = absorb(writer, op, region.tensors)
    if new is None or not _is_small(new) or not region.accepts(new, writer, op):
        return None
    return new if all(e.is_linear for e in new.write.index) else None


def _is_elementwise(op: TensorOp) -> bool:
    return op.reduce is None and op.domain == op.parallel_axes and not op.has_lookup


def _is_small(op: TensorOp) -> bool:
    return _num_nodes(op.body) <= MAX_BODY_NODES and len(op.input_names()) <= MAX_TENSORS


def _may_compute(region: _Region, reader: TensorOp, op: TensorOp) -> bool:
    """Whether `reader` may do the work of pointwise `op` without repeating any of it.

    Plain arithmetic used twice at one point is repeated there (the body is a tree), special
    functions never are.  An operator right behind a matrix-like one stays there unless its reader
    takes the place.
    """
    target = op.write.tensor
    if contraction(reader) is not None or reader.has_lookup:
        return False
    if any(a.kind is AxisKind.SCAN for a in reader.domain):
        return False
    slots = [k for k, access in enumerate(reader.reads) if access.tensor == target]
    places = dict.fromkeys(reader.reads[k].index for k in slots)
    if any(reader.reads[k].fill is not None for k in slots):
        return False
    if len(places) * reader.num_points > op.num_points:
        return False
    uses = sum(_num_uses(reader.body, k) for k in slots)
    if uses > 1 and elementary_ops(op)[1] > 0:
        return False
    return not region.is_epilogue(op) or _takes_place(region, reader, target)


def _takes_place(region: _Region, reader: TensorOp, target: str) -> bool:
    """Whether `reader` writes each element where it reads that of `target`, in equal shapes."""
    tensor = region.tensors[target]
    if reader.reduce is not None or region.tensors[reader.write.tensor].shape != tensor.shape:
        return False
    if elementwise_axes(reader.write.index, tensor.shape, reader) is None:
        return False
    return all(a.index == reader.write.index for a in reader.reads if a.tensor == target)


def _same_roles(new: TensorOp, old: TensorOp) -> bool:
    """Both are no matrix-like operators, or both are with equal axes, roles and arithmetic."""
    now, before = contraction(new), contraction(old)
    if now is None or before is None:
        return now is before
    return (
        new.domain == old.domain
        and _factor_axes(new, now) == _factor_axes(old, before)
        and _num_nodes(new.body) == _num_nodes(old.body)
        and now.rows == before.rows
        and now.columns == before.columns
        and now.depth == before.depth
        and now.batch == before.batch
    )


def _factor_axes(op: TensorOp, roles: Contraction) -> tuple[frozenset[str], ...]:
    return tuple(
        frozenset(name for expr in op.reads[slot].index for name in expr.variables())
        for slot in roles.slots
    )


def _at_home(facts: Facts) -> tuple[str, ...]:
    return tuple(facts.op.reads[k].tensor for k in facts.at_home)


def _num_single(facts: Facts) -> int:
    """Long axes that are cut into single steps."""
    return sum(1 for name in facts.single if facts.extents[name] > 1)


def _num_nodes(body: Scalar) -> int:
    return 1 + sum(_num_nodes(c) for c in children(body))


def _num_tests(body: Scalar) -> int:
    """Nodes that look at the index or choose."""
    own = isinstance(body, (Index, Select))
    return own + sum(_num_tests(c) for c in children(body))


def _num_uses(body: Scalar, slot: int) -> int:
    return (body == Read(slot)) + sum(_num_uses(c, slot) for c in children(body))


_Fold: TypeAlias = Callable[[_Region, TensorOp], bool]
_FOLDS: tuple[_Fold, ...] = (_fold_move, _fold_in_place, _fold_pointwise, _fold_into_pieces)
"""By priority: an operator joins the one in its place before a sum or a reader elsewhere."""

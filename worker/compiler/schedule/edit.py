"""Checked edits of schedule trees: each proves its own precondition or refuses.

An edit takes a schedule and a node's path and returns a new schedule with the same meaning.  A
refusal is an EditRefused that names the edit and the reason; the old schedule is untouched.

split(loop, factor)    for v in n          ->  for v in ceil(n / f): for v_in in f
reorder(loop)          for a: for b: body  ->  for b: for a: body
place(path, ...)       body                ->  place tensor in memory: [move in]; body; [move out]
fuse(seq, first)       seq(for a: x, for b: y)  ->  for a: seq(x, y[b := a])
Source: the shape (an edit that first proves its precondition) follows Exo; see 3-conventions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import assert_never

from worker.compiler.errors import VerifyError
from worker.compiler.ir.affine import Affine, var
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import (
    Box,
    Compute,
    Loop,
    LoopKind,
    Move,
    Node,
    Pipe,
    Place,
    Queue,
    Schedule,
    Seq,
    Span,
    Stage,
)
from worker.compiler.schedule.verify import verify


class EditRefused(VerifyError):
    """An edit's precondition does not hold; `rule` is the edit's name."""

    def __init__(self, edit: str, path: str, reason: str) -> None:
        super().__init__("edit", path, edit, reason)


def node_at(root: Node, path: str) -> Node:
    """The node at `path` ("0" is the root).  Raises KeyError for a path that leads nowhere."""
    node = root
    for step in path.split(".")[1:]:
        below = _children(node)
        if not step.isdigit() or int(step) >= len(below):
            raise KeyError(path)
        node = below[int(step)]
    return node


def split(schedule: Schedule, path: str, factor: int, machine: Machine) -> Schedule:
    """Cut a loop into an outer loop and an inner one of `factor` iterations, kept in order.

    Raises:
        EditRefused: not a loop, or the factor does not divide its trip count (a remainder would
            run iterations that did not exist).
    """
    loop = _loop("split", schedule, path)
    if factor < 1 or loop.trip % factor:
        raise EditRefused("split", path, f"{factor} does not divide {loop.trip} iterations")
    names = _variables(schedule.root)
    inner = _fresh(f"{loop.var}_in", names)
    index = var(loop.var) * factor + var(inner)
    body = substitute(loop.body, {loop.var: index})
    new: Node = Loop(inner, factor, loop.kind, body, loop.core_stride)
    stride = loop.core_stride * factor
    outer = Loop(loop.var, loop.trip // factor, loop.kind, new, stride)
    return _checked("split", schedule, path, outer, machine)


def reorder(schedule: Schedule, path: str, machine: Machine) -> Schedule:
    """Exchange a loop with the loop right inside it.

    Raises:
        EditRefused: no loop right inside, or the result breaks a rule of `verify`.
    """
    outer = _loop("reorder", schedule, path)
    inner = outer.body
    if not isinstance(inner, Loop):
        raise EditRefused("reorder", path, "its body is not a loop")
    swapped = replace(inner, body=replace(outer, body=inner.body))
    return _checked("reorder", schedule, path, swapped, machine)


def place(
    schedule: Schedule,
    path: str,
    tensor: str,
    memory: str,
    tile: Box,
    machine: Machine,
    *,
    copies: int = 1,
    fill: float | int | None = None,
) -> Schedule:
    """Serve a subtree's reads of `tensor` from a new buffer, filled from home right before it.

    Raises:
        EditRefused: the tensor is written inside, already placed around or inside the node, or the
            buffer does not hold what the subtree reads (or does not fit).
    """
    node = _node("place", schedule, path)
    if tensor not in schedule.graph.tensors:
        raise EditRefused("place", path, f"unknown tensor {tensor!r}")
    writes = {schedule.graph.tensor_op(c.op).write.tensor for c in _computes(node)}
    if tensor in writes:
        raise EditRefused("place", path, f"{tensor} is written inside")
    if tensor in _placed_inside(node) or tensor in _placed_around(schedule.root, path):
        raise EditRefused("place", path, f"{tensor} is placed already")
    move = Move(tensor, machine.home.name, memory, tile, fill)
    return _checked(
        "place", schedule, path, Place(tensor, memory, tile, copies, Seq((move, node))), machine
    )


def fuse(schedule: Schedule, path: str, first: int, machine: Machine) -> Schedule:
    """Merge two neighbouring loops of a Seq, parts `first` and `first + 1`, into one.

    Raises:
        EditRefused: not two loops of one kind, trip and stride, or an iteration of the second
            needs what a later iteration of the first makes.
    """
    seq = _node("fuse", schedule, path)
    if not isinstance(seq, Seq) or not 0 <= first < len(seq.parts) - 1:
        raise EditRefused("fuse", path, "needs a seq with two parts from there on")
    one, two = seq.parts[first], seq.parts[first + 1]
    if not isinstance(one, Loop) or not isinstance(two, Loop):
        raise EditRefused("fuse", path, "both parts must be loops")
    if (one.trip, one.kind, one.core_stride) != (two.trip, two.kind, two.core_stride):
        raise EditRefused("fuse", path, "the loops differ in trip count, kind or stride")
    second = substitute(two.body, {two.var: var(one.var)})
    parts = (
        *(one.body.parts if isinstance(one.body, Seq) else (one.body,)),
        *(second.parts if isinstance(second, Seq) else (second,)),
    )
    merged = replace(one, body=Seq(parts))
    rest = (*seq.parts[:first], merged, *seq.parts[first + 2 :])
    new: Node = rest[0] if len(rest) == 1 else Seq(rest)
    return _checked("fuse", schedule, path, new, machine)


def substitute(node: Node, values: Mapping[str, Affine]) -> Node:
    """Replace loop variables in every box of a subtree."""

    def box(old: Box) -> Box:
        return tuple(Span(s.start.substitute(values), s.extent) for s in old)

    match node:
        case Loop():
            return replace(node, body=substitute(node.body, values))
        case Place():
            return replace(node, tile=box(node.tile), body=substitute(node.body, values))
        case Move() | Compute():
            return replace(node, box=box(node.box))
        case Seq(parts):
            return Seq(tuple(substitute(p, values) for p in parts))
        case Pipe():
            stages = tuple(Stage(substitute(s.body, values), s.core_offset) for s in node.stages)
            queues = tuple(_queue(q, box) for q in node.queues)
            return replace(node, stages=stages, queues=queues)
        case _:
            assert_never(node)


def _queue(queue: Queue, box: Callable[[Box], Box]) -> Queue:
    return replace(queue, tile=box(queue.tile))


def _children(node: Node) -> tuple[Node, ...]:
    match node:
        case Loop() | Place():
            return (node.body,)
        case Seq(parts):
            return parts
        case Pipe():
            return tuple(s.body for s in node.stages)
        case Move() | Compute():
            return ()
        case _:
            assert_never(node)


def _with_child(node: Node, k: int, child: Node) -> Node:
    match node:
        case Loop() | Place():
            return replace(node, body=child)
        case Seq(parts):
            return Seq((*parts[:k], child, *parts[k + 1 :]))
        case Pipe():
            stages = list(node.stages)
            stages[k] = replace(stages[k], body=child)
            return replace(node, stages=tuple(stages))
        case _:
            raise KeyError(str(k))


def _replaced(root: Node, path: str, new: Node) -> Node:
    steps = [int(step) for step in path.split(".")[1:]]
    nodes = [root]
    for step in steps:
        nodes.append(_children(nodes[-1])[step])
    for node, step in zip(reversed(nodes[:-1]), reversed(steps), strict=True):
        new = _with_child(node, step, new)
    return new


def _checked(edit: str, schedule: Schedule, path: str, new: Node, machine: Machine) -> Schedule:
    """The edited schedule, if it is legal."""
    result = replace(schedule, root=_replaced(schedule.root, path, new))
    try:
        verify(result, machine)
    except VerifyError as error:
        raise EditRefused(edit, path, f"{error.path}: {error.rule}: {error.message}") from error
    return result


def _node(edit: str, schedule: Schedule, path: str) -> Node:
    try:
        return node_at(schedule.root, path)
    except KeyError:
        raise EditRefused(edit, path, "there is no node at this path") from None


def _loop(edit: str, schedule: Schedule, path: str) -> Loop:
    node = _node(edit, schedule, path)
    if not isinstance(node, Loop):
        raise EditRefused(edit, path, "not a loop")
    if edit == "reorder" and node.kind is LoopKind.LANES:
        raise EditRefused(edit, path, "lanes stay innermost")
    return node


def _walk(node: Node) -> tuple[Node, ...]:
    found = [node]
    for child in _children(node):
        found.extend(_walk(child))
    return tuple(found)


def _computes(node: Node) -> tuple[Compute, ...]:
    return tuple(n for n in _walk(node) if isinstance(n, Compute))


def _variables(root: Node) -> frozenset[str]:
    return frozenset(n.var for n in _walk(root) if isinstance(n, (Loop, Pipe)))


def _fresh(name: str, taken: frozenset[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _placed_inside(node: Node) -> frozenset[str]:
    return frozenset(n.tensor for n in _walk(node) if isinstance(n, Place))


def _placed_around(root: Node, path: str) -> frozenset[str]:
    found: set[str] = set()
    node = root
    for step in path.split(".")[1:]:
        if isinstance(node, Place):
            found.add(node.tensor)
        node = _children(node)[int(step)]
    return frozenset(found)

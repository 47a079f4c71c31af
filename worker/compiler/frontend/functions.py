"""The model's own functions: counted before they are inlined, then replaced by their bodies."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

import onnx
import onnx.checker

from worker.compiler.errors import ModelError
from worker.compiler.frontend.call_marks import (
    align_opsets,
    give_defaults,
    mark_calls,
    nested_nodes,
    restore_names,
)
from worker.compiler.frontend.calls import forget_calls
from worker.compiler.frontend.limits import Limits

_Key: TypeAlias = "tuple[str, str, str]"
"""Domain, name, overload."""


def inline_functions(
    proto: onnx.ModelProto, limits: Limits, whole: AbstractSet[str] = frozenset()
) -> None:
    """Replace calls of the model's own functions by their bodies.

    `whole`: operators, as `domain::op type`, whose calls the nodes of the bodies remember
    (`calls.call_of`).

    Raises:
        ModelError: TW-MODEL-014 at the call that makes the model too large or too deep,
            TW-MODEL-008 for what cannot be inlined, functions that call themselves among it,
            TW-MODEL-022 for a body of another opset than the model's.

    Cost: linear in the model with its functions written out, which is bounded first.
    """
    forget_calls(proto)
    if not proto.functions:
        return
    _require_room(proto, limits)
    give_defaults(proto)
    align_opsets(proto)
    mark_calls(proto, whole)
    import onnx.inliner

    try:
        inlined = onnx.inliner.inline_local_functions(proto)
    except (RuntimeError, ValueError, TypeError, IndexError,
            onnx.checker.ValidationError) as error:  # fmt: skip
        raise ModelError(
            "TW-MODEL-008", f"the model's functions cannot be inlined: {str(error)[:300]}"
        ) from None
    proto.CopyFrom(inlined)
    del proto.functions[:]
    restore_names(proto)


def written_out(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A loaded model without functions: itself where it has none.  Edits calls in `proto`."""
    if not proto.functions:
        return proto
    import onnx.inliner

    give_defaults(proto)
    align_opsets(proto)
    return onnx.inliner.inline_local_functions(proto)


def _require_room(proto: onnx.ModelProto, limits: Limits) -> None:
    """Count nodes and depth of the model with all calls written out.

    Forty functions that call each other twice are a kilobyte, and a million million nodes.
    """
    bodies = {(f.domain, f.name, f.overload): f for f in proto.functions}
    sizes: dict[_Key, tuple[int, int]] = {}
    pending: list[_Key] = []

    def size_of(nodes: Any) -> tuple[int, int]:
        """(nodes, calls inside calls) of a list of nodes, its callees being known."""
        count, depth = 0, 0
        for node in nested_nodes(nodes):
            inner, below = sizes.get(_key(node), (1, 0)) if _key(node) in bodies else (1, -1)
            count += inner
            depth = max(depth, below + 1)
        return count, depth

    def called(nodes: Any) -> list[_Key]:
        return [_key(node) for node in nested_nodes(nodes) if _key(node) in bodies]

    for start in bodies:
        pending.append(start)
        open_calls: set[_Key] = set()
        while pending:
            key = pending[-1]
            missing = [k for k in called(bodies[key].node) if k not in sizes]
            if key in sizes or not missing:
                sizes.setdefault(key, size_of(bodies[key].node))
                open_calls.discard(key)
                pending.pop()
                continue
            open_calls.add(key)
            loop = next((k for k in missing if k in open_calls), None)
            if loop is not None:
                raise ModelError(
                    "TW-MODEL-008", f"function {loop[1]!r} of domain {loop[0]!r} calls itself",
                    node=_caller(proto, set(bodies)), remedy="Take the recursion out of the model.",
                )  # fmt: skip
            pending.append(missing[0])
    total = 0
    for node in nested_nodes(proto.graph.node):
        count, depth = sizes.get(_key(node), (1, 0))
        total += count
        if total > limits.max_nodes or depth > limits.max_calls:
            what = "nodes" if total > limits.max_nodes else "calls inside calls"
            most = limits.max_nodes if total > limits.max_nodes else limits.max_calls
            have = total if total > limits.max_nodes else depth
            raise ModelError(
                "TW-MODEL-014",
                f"with function {node.op_type!r} written out the model has {have} {what}",
                node=node.name or node.op_type, limit=most, actual=str(have),
            )  # fmt: skip


def _key(node: Any) -> _Key:
    return node.domain, node.op_type, node.overload


def _caller(proto: onnx.ModelProto, functions: set[_Key]) -> str | None:
    """The first call in the main graph: the user's way in."""
    found = (node for node in nested_nodes(proto.graph.node) if _key(node) in functions)
    return next((node.name or node.op_type for node in found), None)

"""Check nodes against the rules, as soon as enough is known of them, and refuse by their names."""

from __future__ import annotations

from collections.abc import Iterator

import onnx.shape_inference
import onnx_ir

from worker.compiler.errors import Finding
from worker.compiler.frontend.checks import refuse
from worker.compiler.frontend.edit import constant_of
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.origin import origin_of
from worker.compiler.frontend.rules.site import Problem, Site
from worker.compiler.frontend.rules.table import RULES
from worker.compiler.frontend.shapes import inferred, is_static


class Checker:
    """Looks at each node again whenever more of its inputs is known than the last time."""

    def __init__(self, limits: Limits, *, is_certain: bool = True) -> None:
        self._limits = limits
        self._is_certain = is_certain
        """False for a graph that may never run: only attributes are judged then."""
        self._known: dict[onnx_ir.Node, tuple[int, ...]] = {}

    def check_model(self, model: onnx_ir.Model, opset: int) -> None:
        """Check all nodes, those of bodies too.

        Raises:
            ModelError: TW-MODEL-021 with one finding per problem, at the user's nodes.

        Cost: linear in nodes and in the index constants they read.
        """
        findings = list(self._in_graph(model.graph, opset, is_certain=self._is_certain))
        refuse(findings[: self._limits.max_findings], self._limits)

    def check_node(self, node: onnx_ir.Node, opset: int) -> None:
        """Check one node, if more is known of its inputs than the last time.

        Raises:
            ModelError: as `check_model`.
        """
        known = tuple(map(_knowledge, node.inputs))
        if self._known.get(node) == known:
            return
        self._known[node] = known
        refuse(list(_findings(node, opset, is_certain=self._is_certain)), self._limits)

    def _in_graph(self, graph: onnx_ir.Graph, opset: int, *, is_certain: bool) -> Iterator[Finding]:
        for node in graph:
            self._known[node] = tuple(map(_knowledge, node.inputs))
            yield from _findings(node, opset, is_certain=is_certain)
            for attribute in node.attributes.values():
                # A body may never run, or run with other shapes than its values say: exporters
                # write a branch for each shape, and a loop's carried values may grow.
                for body in _graphs(attribute):
                    yield from self._in_graph(body, opset, is_certain=False)


def _knowledge(value: onnx_ir.Value | None) -> int:
    if value is None:
        return 0
    return 1 + is_static(value) + 2 * (constant_of(value) is not None)


def _graphs(attribute: onnx_ir.Attr) -> tuple[onnx_ir.Graph, ...]:
    if attribute.type == onnx_ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    if attribute.type == onnx_ir.AttributeType.GRAPHS:
        return tuple(attribute.as_graphs())
    return ()


def _findings(node: onnx_ir.Node, opset: int, *, is_certain: bool) -> Iterator[Finding]:
    if node.domain != "":
        return
    site = Site(node, opset, is_certain=is_certain)
    problems = [problem for rule in RULES.get(node.op_type, ()) for problem in rule(site)]
    if not problems and is_certain:
        problems = _contradictions(node, opset)
    for problem in problems:
        yield Finding(
            "TW-MODEL-021", f"{node.op_type}: {problem.message}", None, origin_of(node),
            problem.allowed, problem.actual,
        )  # fmt: skip


def _contradictions(node: onnx_ir.Node, opset: int) -> list[Problem]:
    """What ONNX's own inference says against the node, its shapes being known."""
    try:
        inferred(node, opset)
    except onnx.shape_inference.InferenceError as error:
        text = str(error).split("]", 1)[-1]
        return [Problem(" ".join(text.split())[:400])]
    return []

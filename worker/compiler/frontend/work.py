"""Static shapes of values, and operations of nodes that run on the host."""

from __future__ import annotations

from math import prod

import onnx_ir

from worker.compiler.frontend.model_summary import node_macs


def static_shape(value: onnx_ir.Value | None) -> tuple[int, ...] | None:
    """Dimensions when all are known, else None."""
    if value is None or value.shape is None:
        return None
    dims = tuple(d for d in value.shape if isinstance(d, int))
    return dims if len(dims) == len(value.shape) else None


def node_steps(node: onnx_ir.Node) -> int:
    """Multiply-accumulates of one node, those of an Einsum too; 0 when unknown."""
    return _einsum_steps(node) if node.op_type == "Einsum" else node_macs(node)


def _einsum_steps(node: onnx_ir.Node) -> int:
    """Every combination of the letters' values, for each place of the dots."""
    equation = node.attributes.get("equation")
    shapes = [static_shape(value) for value in node.inputs]
    if equation is None:
        return 0
    terms = equation.as_string().replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    dots = 1
    for term, dims in zip(terms, shapes, strict=False):
        if dims is None:
            return 0
        head, _, tail = term.partition("...")
        last = len(dims) - len(tail)
        for letter, size in (*zip(head, dims, strict=False), *zip(tail, dims[last:], strict=False)):
            sizes[letter] = max(sizes.get(letter, 1), size)
        dots = max(dots, prod(dims[len(head) : last]))
    return prod(sizes.values()) * dots


def node_flops(node: onnx_ir.Node) -> int:
    """Operations: two per MAC, otherwise one per output element (0 when unknown)."""
    macs = node_macs(node)
    out = static_shape(node.outputs[0]) if node.outputs else None
    return 2 * macs if macs else prod(out) if out is not None else 0

"""Gradients of weights that several products share: one product over all their rows.

Of a recurrence the steps' gradients  dy_t' h_t  would be a sum of as many matrices as there are
steps, each as large as the weights.  One product of the steps' rows, one below the other, is that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir

from worker.compiler.train.emit import Emitter, dims


def joined_products(
    emit: Emitter, total: onnx_ir.Value, others: Mapping[onnx_ir.Value, onnx_ir.Value]
) -> onnx_ir.Value:
    """`total`, or where it is a sum with several products  a' b  of one shape: with one instead.

    Only where copying the rows moves fewer elements than adding the products would.  Other summands
    are added to it, in their order, and products that are gradients of `others`, too: those are
    needed as they are.  Cost: linear in summands, and in `others` where there are several products.
    """
    summands = list(_summands(total))[::-1]
    products = [value for value in summands if _is_product(value)]
    if len(products) > 1:
        needed = set(others.values())
        products = [value for value in products if value not in needed]
    if len(products) < 2:
        return total
    rows = sum(dims(factor)[0] for value in products for factor in _factors(value)[:1])
    wide = sum(dims(factor)[1] for factor in _factors(products[0]))
    added = dims(total)[0] * dims(total)[1] * (len(products) - 1)
    if _COPIED * rows * wide >= _ADDED * added:
        return total
    left, right = zip(*(_factors(value) for value in products), strict=True)
    made = emit.op(
        "Gemm", emit.op("Concat", *left, axis=0), emit.op("Concat", *right, axis=0), transA=1
    )
    for value in summands:
        if value not in products:
            made = emit.op("Add", made, value)
    return made


_COPIED, _ADDED = 2, 3
"""Elements moved for each: read and written; two read and one written."""


def _summands(total: onnx_ir.Value) -> Iterator[onnx_ir.Value]:
    """Leaves of a tree of additions that nothing else reads, the last first."""
    value = total
    while (node := value.producer()) is not None and node.op_type == "Add":
        first, last = node.inputs
        assert first is not None and last is not None
        if dims(first) != dims(total) or dims(last) != dims(total) or len(first.uses()) > 1:
            break
        yield last
        value = first
    yield value


def _is_product(value: onnx_ir.Value) -> bool:
    """Whether it is  a' b, and its one reader the sum."""
    node = value.producer()
    if node is None or node.op_type != "Gemm" or len(node.inputs) > 2 or len(value.uses()) != 1:
        return False
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    return bool(
        given.get("transA", 0) and not given.get("transB", 0) and given.get("alpha", 1.0) == 1.0
    )


def _factors(value: onnx_ir.Value) -> tuple[onnx_ir.Value, onnx_ir.Value]:
    node = value.producer()
    assert node is not None
    left, right = node.inputs[:2]
    assert left is not None and right is not None
    return left, right

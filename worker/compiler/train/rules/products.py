"""MatMul and Gemm: both gradients are products again, with as many multiply-accumulates each."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import onnx_ir

from worker.compiler.train.emit import dims
from worker.compiler.train.rules.site import Derivative, Site


def _gemm(site: Site) -> Mapping[int, onnx_ir.Value]:
    """Y = alpha A' B' + beta C; A' and B' are A and B, transposed where the attributes say so.

    No transposed operand is made: the products' own attributes do it.
    """
    dy, a, b = site.grad, site.x(0), site.x(1)
    alpha, beta = site.number("alpha", 1.0), site.number("beta", 1.0)
    over_a, over_b = site.integer("transA", 0), site.integer("transB", 0)

    def gemm(left: onnx_ir.Value, right: onnx_ir.Value, *flips: int) -> onnx_ir.Value:
        return site.emit.op(
            "Gemm", left, right, alpha=alpha, transA=int(flips[0]), transB=int(flips[1])
        )

    def of(index: int) -> onnx_ir.Value:
        if index == 0:
            return gemm(b, dy, over_b, 1) if over_a else gemm(dy, b, 0, not over_b)
        if index == 1:
            return gemm(dy, a, 1, over_a) if over_b else gemm(a, dy, not over_a, 0)
        scaled = dy if beta == 1 else site.emit.op("Mul", dy, site.emit.real(beta, dy))
        return site.emit.unbroadcast(scaled, site.shape(2))

    return site.like(of)


def _matmul(site: Site) -> Mapping[int, onnx_ir.Value]:
    """Vectors are matrices of one row or column; broadcast batches are summed.

    A matrix that all batches share gets one product over all rows, not one for each batch.
    """
    emit = site.emit
    shapes = site.shape(0), site.shape(1)
    a = emit.reshape(site.x(0), (1, *shapes[0]) if len(shapes[0]) == 1 else shapes[0])
    b = emit.reshape(site.x(1), (*shapes[1], 1) if len(shapes[1]) == 1 else shapes[1])
    rows, inner, columns = dims(a)[-2], dims(a)[-1], dims(b)[-1]
    batch = dims(site.y)[: len(dims(site.y)) - sum(len(s) > 1 for s in shapes)]
    dy = emit.reshape(site.grad, (*batch, rows, columns))
    is_shared = len(dims(b)) == 2 and len(dims(a)) > 2
    is_plain = len(dims(b)) == 2 == len(dims(a))

    def turned(value: onnx_ir.Value) -> onnx_ir.Value:
        order = list(range(len(dims(value))))
        return emit.transpose(value, [*order[:-2], order[-1], order[-2]])

    def of(index: int) -> onnx_ir.Value:
        if is_plain:
            sides = (dy, b) if index == 0 else (a, dy)
            made = emit.op("Gemm", *sides, transA=index, transB=1 - index)
        elif index == 0:
            made = emit.op("MatMul", dy, turned(b))
        elif is_shared:
            count = prod(batch) * rows
            made = emit.op(
                "Gemm", emit.reshape(a, (count, inner)), emit.reshape(dy, (count, columns)),
                transA=1,
            )  # fmt: skip
        else:
            made = emit.op("MatMul", turned(a), dy)
        matrix = dims(a if index == 0 else b)
        return emit.reshape(emit.unbroadcast(made, matrix), shapes[index])

    return site.like(of)


RULES = {"Gemm": Derivative(_gemm), "MatMul": Derivative(_matmul)}

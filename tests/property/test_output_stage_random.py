"""Random bodies: what counts as one pass of an output stage computes what such a stage can.

The stage's hardware is told apart from its description: a pass of one or two tensors is a plane (a
saddle for products) in its operands, limited below and above and rounded once.  Whether a body is
that is asked of its values by linear programming, not of its expression.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt
from hypothesis import assume, event, given
from hypothesis import strategies as st
from kernel_toys import elementwise_graph
from scipy.optimize import linprog

from worker.compiler.cost.output_stage import stage_passes
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.scalar import Apply, Cast, Const, Fn, Read, Scalar, Select, children
from worker.compiler.machine.machine import StageOperation

B, Q, A, ADD, SCALED, MUL, POOL, TABLE = StageOperation
Values = npt.NDArray[np.float64]
NUMBERS = (-40.0, -3.0, -1.0, -0.5, 0.0, 0.25, 0.6, 1.0, 2.0, 7.0, 100.0)
SLACK = 1.001
"""A rounding errs by less than one, in any direction; f32 by far less than the rest."""


def f32(value: float) -> Const:
    return Const(value, DType.F32)


@st.composite
def values(draw: st.DrawFn, depth: int) -> Scalar:
    """Any f32 expression of two bytes, most of whose steps a stage has."""
    if depth == 0:
        return Cast(DType.F32, Read(draw(st.sampled_from([0, 0, 0, 1]))))
    arg = draw(values(depth - 1))
    number = f32(draw(st.sampled_from(NUMBERS)))
    match draw(st.integers(0, 15)):
        case 0 | 1 | 2:
            return Apply(Fn.MUL, (arg, number))
        case 3:
            return Apply(Fn.DIV, (arg, number if number.value else f32(3.0)))
        case 4 | 5:
            return Apply(Fn.ADD, (number, arg))
        case 6:
            return Apply(Fn.SUB, (arg, number))
        case 7:
            return Apply(Fn.MAX, (arg, number))
        case 8:
            return Apply(Fn.MIN, (arg, number))
        case 9 | 10:
            fn = draw(st.sampled_from([Fn.ROUND, Fn.FLOOR, Fn.CEIL, Fn.TRUNC]))
            return Apply(fn, (arg,))
        case 11 | 12:
            fn = draw(st.sampled_from([Fn.ADD, Fn.SUB, Fn.MUL, Fn.MAX]))
            return Apply(fn, (arg, draw(values(draw(st.integers(0, depth - 1))))))
        case 13:
            limit = draw(st.sampled_from([f32(0.0), number]))
            other = draw(st.sampled_from([Apply(Fn.MUL, (arg, number)), number, arg]))
            return Select(Apply(draw(st.sampled_from([Fn.LT, Fn.GE])), (arg, limit)), other, arg)
        case _:
            return Apply(draw(st.sampled_from([Fn.ABS, Fn.NEG, Fn.SIGMOID])), (arg,))


def passes(graph: Graph) -> list[frozenset[StageOperation]]:
    (op,) = graph.ops
    types = tuple(graph.tensors[a.tensor].dtype for a in (*op.reads, op.write))
    return list(stage_passes(op, types)[1])


def selects(expr: Scalar) -> list[Select]:
    found = [expr] if isinstance(expr, Select) else []
    return found + [s for child in children(expr) for s in selects(child)]


def run(body: Scalar, out: DType, operands: list[npt.NDArray[np.int8]]) -> Values:
    shape = operands[0].shape
    graph = elementwise_graph(body, (DType.I8,) * len(operands), out, shape)
    inputs = {f"x{k}": x for k, x in enumerate(operands)}
    return evaluate(graph, inputs)["z"].astype(np.float64)


def misfit(features: Values, results: Values) -> float:
    """Largest error of the best plane through the results, beyond their extremes unbounded."""
    low, high = results.min(), results.max()
    if low == high:
        return 0.0
    ones = np.ones((len(results), 1))
    below, above = results < high, results > low  # a plane may go on where results stop
    rows = np.concatenate([
        np.hstack([features, ones, -ones])[below], np.hstack([-features, -ones, -ones])[above],
    ])  # fmt: skip
    rights = np.concatenate([results[below], -results[above]])
    costs = np.zeros(features.shape[1] + 2)
    costs[-1] = 1.0
    free = [(None, None)] * (len(costs) - 1)
    found = linprog(costs, rows, rights, bounds=[*free, (0, None)], method="highs")
    assert found.status == 0, found.message
    return float(found.fun)


@given(values(5), st.booleans())
def test_a_pass_is_a_limited_plane_rounded_once(value: Scalar, is_rounded: bool) -> None:
    body = Cast(DType.I8, Apply(Fn.ROUND, (value,)) if is_rounded else value)
    num = 1 + ("Read(slot=1)" in repr(body))
    assume("Read(slot=0)" in repr(body))
    found = [
        p for p in passes(elementwise_graph(body, (DType.I8,) * num, DType.I8)) if p != {TABLE}
    ]
    event("one pass" if found else "no pass")
    if not found:
        return
    assert len(found) == 1 or found[1] == found[0] - {ADD} | {SCALED}
    needs = found[0]
    bytes_ = np.arange(-128, 128, dtype=np.int8)
    sparse = np.array([-128, -77, -40, -9, -1, 0, 1, 2, 13, 50, 99, 127], np.int8)
    points = (
        [bytes_]
        if num == 1
        else [np.array(p, np.int8) for p in zip(*product(sparse, sparse), strict=True)]
    )
    results = run(body, DType.I8, points)
    axes = [p.astype(np.float64) for p in points]
    if MUL in needs:
        axes.append(axes[0] * axes[1])
    sides = [np.ones(len(results), bool)]
    for select in selects(body)[:1]:
        taken = run(Select(select.cond, f32(1.0), f32(0.0)), DType.F32, points) > 0
        sides = [side for side in (taken, ~taken) if side.any()]
    for side in sides:
        assert misfit(np.stack(axes, 1)[side], results[side]) <= SLACK


@given(
    st.integers(1, 2), st.lists(st.booleans(), min_size=8, max_size=8),
    st.sampled_from([Fn.ADD, Fn.SUB, Fn.MUL]),
)  # fmt: skip
def test_what_a_stage_does_in_its_order_is_one_pass(num: int, has: list[bool], joining: Fn) -> None:
    """Built as the hardware is: operands scaled, combined, limited, scaled again, rounded."""
    shifts, scales, differs, limits, caps, slopes, rescales, zero = has
    needs = {Q}
    operands: list[Scalar] = []
    for slot in range(num):
        whole: Scalar = Read(slot)
        if shifts:
            whole = Apply(Fn.SUB, (whole, Const(3, DType.I32)))
        operand: Scalar = Cast(DType.F32, whole)
        scale = f32(0.3 + slot * differs)
        operands.append(Apply(Fn.MUL, (operand, scale)) if scales or differs else operand)
    value = operands[0]
    if num == 2:
        value = Apply(joining, (operands[0], operands[1]))
        needs.add(MUL if joining is Fn.MUL else SCALED if differs else ADD)
    if slopes and not (limits or caps):
        negative = Apply(Fn.LT, (value, f32(0.0)))
        value = Select(negative, Apply(Fn.MUL, (value, f32(0.1))), value)
        needs.add(A)
    for used, fn, number in ((limits, Fn.MAX, -2.0), (caps, Fn.MIN, 6.0)):
        if used:
            value = Apply(fn, (value, f32(number)))
            needs.add(A)
    if rescales:
        value = Apply(Fn.DIV, (value, f32(0.05)))
    value = Apply(Fn.ROUND, (value,))
    if zero:
        value = Apply(Fn.ADD, (value, f32(-7.0)))
    graph = elementwise_graph(Cast(DType.I8, value), (DType.I16,) * num, DType.I8, (4, 5))
    assert passes(graph)[0] == frozenset(needs)

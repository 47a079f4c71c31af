"""Interpret If, Loop and Scan on the host, a nested program or ONNX Runtime for each iteration.

ONNX semantics, on arrays by name.  A body is a function of its formal inputs and of the values it
captures; its program (home arena, weights, kernels) is loaded once and run again and again.
Source: BYOC section 3.4: the host's executor walks the control flow and enters the accelerator's
engines from inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from worker.compiler.control.flow import Body, ControlFlow, ControlKind, Literal, Result
from worker.compiler.errors import InputError
from worker.compiler.package.executable import Array

RunBody: TypeAlias = "Callable[[int, Mapping[str, Array]], Mapping[str, Array]]"
"""Runs body number k on its inputs; gives what its model computes, by name."""


def interpret(flow: ControlFlow, feeds: Mapping[str, Array], run_body: RunBody) -> dict[str, Array]:
    """Run one control-flow node; outputs by name.

    `feeds` holds the operands and captured values that are not literals.

    Raises:
        InputError: TW-RUN-002 when scanned sequences differ in length.
    Cost: one run of a body per iteration.
    """
    values = {**{entry.name: array_of(entry) for entry in flow.literals}, **feeds}
    match flow.kind:
        case ControlKind.IF:
            found = _run_if(flow, values, run_body)
        case ControlKind.LOOP:
            found = _run_loop(flow, values, run_body)
        case ControlKind.SCAN:
            found = _run_scan(flow, values, run_body)
    return {name: value for name, value in zip(flow.outputs, found, strict=False) if name}


def array_of(entry: Literal) -> Array:
    """The constant's array, read-only."""
    return np.frombuffer(entry.content, np.dtype(entry.dtype)).reshape(entry.shape)


def _call(
    flow: ControlFlow, index: int, formal: Sequence[Array], values: Mapping[str, Array],
    run_body: RunBody,
) -> list[Array]:  # fmt: skip
    """Results of one body, in the order of its outputs."""
    body = flow.bodies[index]
    known = {name: values[name] for name in body.captured}
    known.update(zip(body.formal, formal, strict=True))
    made: Mapping[str, Array] = {}
    if body.computes:
        made = run_body(index, {name: known[name] for name in body.reads})
    constants = {entry.name: entry for entry in body.literals}
    return [
        made[name]
        if name in made
        else array_of(constants[name])
        if name in constants
        else known[name]
        for name in body.outputs
    ]


def _is_true(value: Array) -> bool:
    return bool(np.asarray(value).reshape(-1)[0])


def _run_if(flow: ControlFlow, values: Mapping[str, Array], run_body: RunBody) -> list[Array]:
    branch = 0 if _is_true(values[flow.operands[0]]) else 1
    return _call(flow, branch, (), values, run_body)


def _run_loop(flow: ControlFlow, values: Mapping[str, Array], run_body: RunBody) -> list[Array]:
    count, condition, *initial = flow.operands
    limit = int(np.asarray(values[count]).reshape(-1)[0]) if count else None
    goes_on = _is_true(values[condition]) if condition else True
    states = [values[name] for name in initial]
    body = flow.bodies[0]
    scalar = (1,) * body.iter_rank
    collected: list[list[Array]] = [[] for _ in body.outputs[1 + len(states) :]]
    trip = 0
    while goes_on and (limit is None or trip < limit):
        formal = (np.full(scalar, trip, np.int64), np.full(scalar, True), *states)
        results = _call(flow, 0, formal, values, run_body)
        goes_on = _is_true(results[0])
        states = results[1 : 1 + len(states)]
        for row, value in zip(collected, results[1 + len(states) :], strict=True):
            row.append(value)
        trip += 1
    kinds = body.results[1 + len(states) :]
    return states + [_stack(r, 0, k) for r, k in zip(collected, kinds, strict=True)]


def _run_scan(flow: ControlFlow, values: Mapping[str, Array], run_body: RunBody) -> list[Array]:
    num_states = flow.num_states
    states = [values[name] for name in flow.operands[:num_states]]
    sequences = [values[name] for name in flow.operands[num_states:]]
    lengths = [s.shape[a] for s, a in zip(sequences, flow.input_axes, strict=True)]
    if len(set(lengths)) != 1:
        raise InputError(
            "TW-RUN-002",
            f"the sequences of Scan {flow.node} have {lengths} elements: they must agree",
            node=flow.node,
            limit=lengths[0],
            actual=[*lengths],
        )
    body: Body = flow.bodies[0]
    collected: list[list[Array]] = [[] for _ in body.outputs[num_states:]]
    for step in range(lengths[0]):
        items = [
            np.take(s, lengths[0] - 1 - step if backwards else step, axis=axis)
            for s, axis, backwards in zip(
                sequences, flow.input_axes, flow.input_reversed, strict=True
            )
        ]
        results = _call(flow, 0, (*states, *items), values, run_body)
        states = results[:num_states]
        for row, value in zip(collected, results[num_states:], strict=True):
            row.append(value)
    stacked = [
        _stack(row[::-1] if backwards else row, axis, kind)
        for row, axis, backwards, kind in zip(
            collected, flow.output_axes, flow.output_reversed, body.results[num_states:],
            strict=True,
        )
    ]  # fmt: skip
    return states + stacked


def _stack(rows: Sequence[Array], axis: int, kind: Result) -> Array:
    """Rows as one array with a new dimension; without rows, unknown dimensions are empty too."""
    if rows:
        return np.stack(rows, axis)
    shape = [max(d, 0) for d in kind.shape]
    shape.insert(axis % (len(shape) + 1), 0)
    return np.zeros(shape, np.dtype(kind.dtype))

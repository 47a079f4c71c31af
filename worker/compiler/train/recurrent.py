"""LSTM, GRU and RNN written out: their steps one after the other, in operators with gradient rules.

The products with the input are one Gemm over all steps, so its gradients are, too; each step has a
Gemm with the state, whose third operand is the step's part of the former.
Source: ONNX, equations of RNN-22, GRU-22 and LSTM-22, as `frontend/ops/recurrent.py` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir

from worker.compiler.frontend.ops.recurrent import MAX_STEPS
from worker.compiler.train.emit import Emitter, dims
from worker.compiler.train.rules.site import NoRule, Site

_X, _W, _R, _B, _LENGTHS, _H, _C, _P = range(8)
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_FUNCTIONS = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu"}

_Value = onnx_ir.Value
_State = tuple[_Value | None, _Value | None]
"""Hidden state and cell, [batch, hidden] each; None for zeros."""


@dataclass(frozen=True, slots=True)
class _Direction:
    """What the steps of one direction share."""

    site: Site
    functions: Sequence[str]
    hidden: int
    recurrence: _Value
    """Weights of the state: [gates * hidden, hidden]."""
    peepholes: Sequence[_Value]
    """Of input, output and forget gate, [hidden] each; empty where there are none."""
    state_bias: _Value | None
    """Bias [hidden] that the reset gate of a GRU multiplies, too."""
    parts: dict[tuple[int, int], _Value] = field(default_factory=dict)

    @property
    def emit(self) -> Emitter:
        return self.site.emit

    def gates(self, value: _Value, sizes: Sequence[int]) -> Sequence[_Value]:
        """`value` [batch, gates * hidden], cut into so many gates each."""
        split = self.emit.ints(*(n * self.hidden for n in sizes))
        return self.emit.ops("Split", (value, split), len(sizes), {"axis": 1})

    def weights(self, first: int, count: int) -> _Value:
        """Rows of `count` gates of the state's weights."""
        key = first, count
        if key not in self.parts:
            n = self.hidden
            self.parts[key] = self.emit.slice(
                self.recurrence, [first * n, 0], [(first + count) * n, n]
            )
        return self.parts[key]

    def product(self, state: _Value, first: int, count: int, plus: _Value | None) -> _Value:
        """[batch, count * hidden]: the state times the weights of some gates, `plus` another."""
        operands = [state, self.weights(first, count), *([] if plus is None else [plus])]
        return self.emit.op("Gemm", *operands, transB=1)

    def looked(self, gate: int, value: _Value, cell: _Value | None) -> _Value:
        """A gate's sum, with what it sees of the cell."""
        if not self.peepholes or cell is None:
            return value
        return self.emit.op("Add", value, self.emit.op("Mul", self.peepholes[gate], cell))


def _rnn(d: _Direction, given: _Value, state: _State) -> _State:
    h, _ = state
    total = given if h is None else d.product(h, 0, 1, given)
    return d.emit.op(d.functions[0], total), None


def _gru(d: _Direction, given: _Value, state: _State) -> _State:
    h, _ = state
    op, (f, g) = d.emit.op, d.functions
    opened, inner = d.gates(given, [2, 1])
    update, reset = d.gates(op(f, opened if h is None else d.product(h, 0, 2, opened)), [1, 1])
    if d.site.integer("linear_before_reset", 0):
        linear = d.state_bias if h is None else d.product(h, 2, 1, d.state_bias)
        if linear is not None:
            inner = op("Add", inner, op("Mul", reset, linear))
    elif h is not None:
        inner = d.product(op("Mul", reset, h), 2, 1, inner)
    one = d.emit.real(1, given)
    new = op("Mul", op("Sub", one, update), op(g, inner))
    return (new if h is None else op("Add", new, op("Mul", update, h))), None


def _lstm(d: _Direction, given: _Value, state: _State) -> _State:
    h, c = state
    op, (f, g, last) = d.emit.op, d.functions
    let_in, let_out, forget, candidate = d.gates(
        given if h is None else d.product(h, 0, 4, given), [1, 1, 1, 1]
    )
    new = op("Mul", op(f, d.looked(0, let_in, c)), op(g, candidate))
    if c is not None:
        new = op("Add", op("Mul", op(f, d.looked(2, forget, c)), c), new)
    return op("Mul", op(f, d.looked(1, let_out, new)), op(last, new)), new


_Step = Callable[[_Direction, _Value, _State], _State]
_KINDS: dict[str, tuple[int, _Step, tuple[str, ...]]] = {
    "RNN": (1, _rnn, ("Tanh",)),
    "GRU": (3, _gru, ("Sigmoid", "Tanh")),
    "LSTM": (4, _lstm, ("Sigmoid", "Tanh", "Tanh")),
}
"""Operator -> (gates, one step, activations by default)."""


def recurrent(site: Site) -> Sequence[_Value | None]:
    """The outputs of a recurrence: states of all steps, the last state, an LSTM's last cell.

    Raises:
        NoRule: clipped or coupled gates, other activations, more than `MAX_STEPS` steps.
    """
    emit, op_type = site.emit, site.node.op_type
    gates, step_of, defaults = _KINDS[op_type]
    turns = _DIRECTIONS[site.text("direction", "forward")]
    functions = _functions(site, defaults, len(turns))
    is_batch_first = bool(site.integer("layout", 0))
    count = site.shape(_X)[1 if is_batch_first else 0] * len(turns)
    if count > MAX_STEPS:
        raise NoRule(f"it has {count} steps; the limit is {MAX_STEPS}")
    x = emit.transpose(site.x(_X), (1, 0, 2) if is_batch_first else (0, 1, 2))
    steps, batch, width = dims(x)
    flat = emit.reshape(x, (steps * batch, width))
    running = _running(site, steps, batch)
    rows: list[list[_Value]] = []
    ends: list[_State] = []
    for number, is_reverse in enumerate(turns):
        first = number * len(defaults)
        direction, bias = _direction(site, number, gates, functions[first : first + len(defaults)])
        operands = [flat, _part(site, _W, number), *([] if bias is None else [bias])]
        given = emit.op("Gemm", *operands, transB=1)
        projected = emit.ops("Split", (given, emit.ints(*[batch] * steps)), steps, {"axis": 0})
        state: _State = (
            _initial(site, _H, number, is_batch_first),
            _initial(site, _C, number, is_batch_first) if op_type == "LSTM" else None,
        )
        made: dict[int, _Value] = {}
        for step in reversed(range(steps)) if is_reverse else range(steps):
            made_h, made_c = step_of(direction, projected[step], state)
            h = _kept(emit, running, step, made_h, state[0])
            state = h, _kept(emit, running, step, made_c, state[1])
            assert h is not None
            made[step] = _kept(emit, running, step, h, None) or h
        rows.append([made[step] for step in range(steps)])
        ends.append(state)
    return _outputs(site, rows, ends, is_batch_first)


def _functions(site: Site, defaults: Sequence[str], directions: int) -> list[str]:
    if "clip" in site.node.attributes or site.integer("input_forget", 0):
        raise NoRule("clipped or coupled gates have no rule")
    found = site.node.attributes.get("activations")
    given = () if found is None else found.as_strings()
    names = list(given) or list(defaults) * directions
    other = next((name for name in names if name.lower() not in _FUNCTIONS), None)
    if other is not None:
        raise NoRule(f"activation {other!r} has no rule here; Sigmoid, Tanh and Relu have")
    return [_FUNCTIONS[name.lower()] for name in names]


def _part(site: Site, index: int, direction: int) -> _Value:
    """What input `index` holds for one direction, without that axis."""
    whole = site.shape(index)
    starts, ends = [direction, *[0] * (len(whole) - 1)], [direction + 1, *whole[1:]]
    return site.emit.reshape(site.emit.slice(site.x(index), starts, ends), whole[1:])


def _direction(
    site: Site, number: int, gates: int, functions: Sequence[str]
) -> tuple[_Direction, _Value | None]:
    """A direction, and the bias of its products with the input."""
    emit, hidden = site.emit, site.shape(_R)[2]
    bias = state_bias = None
    if site.has(_B):
        both, cut = _part(site, _B, number), gates * hidden
        bias, of_state = emit.slice(both, [0], [cut]), emit.slice(both, [cut], [2 * cut])
        if site.node.op_type == "GRU" and site.integer("linear_before_reset", 0):
            state_bias = emit.slice(of_state, [2 * hidden], [3 * hidden])
            opened = emit.op(
                "Add", emit.slice(bias, [0], [2 * hidden]), emit.slice(of_state, [0], [2 * hidden])
            )
            bias = emit.op("Concat", opened, emit.slice(bias, [2 * hidden], [3 * hidden]), axis=0)
        else:
            bias = emit.op("Add", bias, of_state)
    peepholes: list[_Value] = []
    if site.has(_P):
        held = _part(site, _P, number)
        peepholes = [emit.slice(held, [k * hidden], [(k + 1) * hidden]) for k in range(3)]
    recurrence = _part(site, _R, number)
    return _Direction(site, functions, hidden, recurrence, peepholes, state_bias), bias


def _initial(site: Site, index: int, direction: int, is_batch_first: bool) -> _Value | None:
    if not site.has(index):
        return None
    shape = site.shape(index)
    at = 1 if is_batch_first else 0
    starts, ends = [0] * 3, list(shape)
    starts[at], ends[at] = direction, direction + 1
    cut = site.emit.slice(site.x(index), starts, ends)
    return site.emit.reshape(cut, [n for k, n in enumerate(shape) if k != at])


def _running(site: Site, steps: int, batch: int) -> Sequence[_Value]:
    """Of each step, which sequences have it [batch, 1]; nothing where all have all."""
    if not site.has(_LENGTHS):
        return ()
    emit = site.emit
    lengths = emit.reshape(site.x(_LENGTHS), (batch, 1))
    kind = lengths.dtype
    assert kind is not None
    return [
        emit.op("Less", emit.constant(np.array(step, kind.numpy())), lengths)
        for step in range(steps)
    ]


def _kept(
    emit: Emitter, running: Sequence[_Value], step: int, new: _Value | None, old: _Value | None
) -> _Value | None:
    """`new` where a sequence has this step, else `old`, or zeros."""
    if new is None or not running:
        return new
    return emit.op("Where", running[step], new, emit.real(0, new) if old is None else old)


def _outputs(
    site: Site, rows: Sequence[Sequence[_Value]], ends: Sequence[_State], is_batch_first: bool
) -> Sequence[_Value | None]:
    emit = site.emit
    batch, hidden = dims(rows[0][0])

    def joined(values: Sequence[_Value], axis: int) -> _Value:
        return values[0] if len(values) == 1 else emit.op("Concat", *values, axis=axis)

    def all_steps() -> _Value:
        shape = (len(rows[0]), 1, batch, hidden)
        whole = joined([emit.reshape(joined(row, 0), shape) for row in rows], 1)
        return emit.transpose(whole, (2, 0, 1, 3) if is_batch_first else (0, 1, 2, 3))

    def last(k: int) -> _Value:
        held = [emit.reshape(value, (1, batch, hidden)) for end in ends if (value := end[k])]
        return emit.transpose(joined(held, 0), (1, 0, 2) if is_batch_first else (0, 1, 2))

    makers = (all_steps, lambda: last(0), lambda: last(1))
    return [
        makers[k]() if value.name and (value.uses() or value.is_graph_output()) else None
        for k, value in enumerate(site.node.outputs)
    ]

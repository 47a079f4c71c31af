"""RNN, GRU, LSTM: the steps of a recurrence one after the other.

The products with the input are one contraction over all steps; each step then has the product with
the state, and its gates.  Steps are unrolled, hence the limit.
Source: ONNX, equations of RNN-22, GRU-22 and LSTM-22.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worker.compiler.frontend.ops.body import add, less, lit, maximum, mul, select, sub
from worker.compiler.frontend.ops.body import call as apply
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.elementwise import require_float
from worker.compiler.frontend.ops.nest import Nest
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch, unsupported_attribute
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.ir.scalar import Fn, Scalar
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.rejection import ReasonCode

MAX_STEPS = 256
"""Of all directions: a longer recurrence stays on the host, which has a loop."""

_X, _W, _R, _B, _LENGTHS, _H, _C, _P = range(8)
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@dataclass(frozen=True, slots=True)
class _Shape:
    """Extents of a recurrence."""

    steps: int
    batch: int
    width: int
    hidden: int
    is_batch_first: bool


class _Cell:
    """What the steps of one direction share."""

    def __init__(self, call: Call, shape: _Shape, gates: int, direction: int) -> None:
        self.call, self.shape, self.gates, self.direction = call, shape, gates, direction
        self.kind = promoted(call.dtype(_X))
        self.functions: tuple[Callable[[Scalar], Scalar], ...] = ()

    def project(self) -> Tensor:
        """[step, batch, gate * hidden]: the input times its weights, all steps in one product."""
        s = self.shape
        x, w = self.call.tensor(_X), self.call.tensor(_W)
        out = self.call.temp("projected", (s.steps, s.batch, self.gates * s.hidden), self.kind)
        nest = self.call.nest()
        t, b, g = nest.axes("i", out.shape)
        i = nest.axis("k", s.width, AxisKind.REDUCE)
        at = (b, t, i) if s.is_batch_first else (t, b, i)
        body = mul(nest.read(x, at), nest.read(w, (self.direction, g, i)))
        nest.write(out, (t, b, g), body, Reduce.ADD)
        return out

    def recur(self, state: Tensor, first: int, count: int) -> Tensor:
        """[batch, gate * hidden]: the state times the weights of `count` gates from `first`."""
        s = self.shape
        r = self.call.tensor(_R)
        out = self.call.temp("recurred", (s.batch, count * s.hidden), self.kind)
        nest = self.call.nest()
        b, g = nest.axes("i", out.shape)
        j = nest.axis("k", s.hidden, AxisKind.REDUCE)
        weight = nest.read(r, (self.direction, g + first * s.hidden, j))
        nest.write(out, (b, g), mul(nest.read(state, (b, j)), weight), Reduce.ADD)
        return out

    def bias(self, nest: Nest, gate: int, j: Affine, *, of_state: bool) -> Scalar | None:
        """Bias of the input's or the state's product, or None where there is none."""
        if not self.call.has_input(_B):
            return None
        row = (gate + (self.gates if of_state else 0)) * self.shape.hidden
        return nest.read(self.call.tensor(_B), (self.direction, j + row))

    def peephole(self, nest: Nest, gate: int, j: Affine, cell: Scalar) -> Scalar | None:
        """Peephole weight times the cell, or None."""
        if not self.call.has_input(_P):
            return None
        at = (self.direction, j + gate * self.shape.hidden)
        return mul(nest.read(self.call.tensor(_P), at), cell)

    def initial(self, k: int) -> Tensor | None:
        """Initial state (input k) of this direction [batch, hidden]; None: zeros."""
        if not self.call.has_input(k):
            return None
        given, s = self.call.tensor(k), self.shape
        out = self.call.temp("initial", (s.batch, s.hidden), self.kind)
        nest = self.call.nest()
        b, j = nest.axes("i", out.shape)
        at = (b, self.direction, j) if s.is_batch_first else (self.direction, b, j)
        return nest.write(out, (b, j), nest.read(given, at))

    def state(self, suffix: str) -> Tensor:
        """A fresh [batch, hidden]."""
        return self.call.temp(suffix, (self.shape.batch, self.shape.hidden), self.kind)

    def kept(self, nest: Nest, b: Affine, step: int, new: Scalar, old: Scalar) -> Scalar:
        """`new` in batches whose sequence has this step, else `old`."""
        if not self.call.has_input(_LENGTHS):
            return new
        length = nest.read(self.call.tensor(_LENGTHS), (b,))
        return select(less(lit(step, DType.I32), length), new, old)

    def gate(
        self, nest: Nest, gate: int, at: tuple[int, Affine, Affine], parts: Sequence[Scalar | None]
    ) -> Scalar:
        """Sum of the projection at (step, batch, hidden) of a gate and of what else there is."""
        step, b, j = at
        total: Scalar = nest.read(self.projected, (step, b, j + gate * self.shape.hidden))
        for part in parts:
            total = total if part is None else add(total, part)
        return total

    projected: Tensor


def _read(nest: Nest, tensor: Tensor | None, at: tuple[Affine, Affine], kind: DType) -> Scalar:
    return lit(0, kind) if tensor is None else nest.read(tensor, at)


def _rnn_step(cell: _Cell, step: int, h: Tensor | None, _: Tensor | None) -> tuple[Tensor, None]:
    (f,) = cell.functions
    recurred = None if h is None else cell.recur(h, 0, 1)
    new = cell.state("h")
    nest = cell.call.nest()
    b, j = nest.axes("i", new.shape)
    parts = [
        None if recurred is None else nest.read(recurred, (b, j)),
        cell.bias(nest, 0, j, of_state=False), cell.bias(nest, 0, j, of_state=True),
    ]  # fmt: skip
    value = f(cell.gate(nest, 0, (step, b, j), parts))
    nest.write(new, (b, j), cell.kept(nest, b, step, value, _read(nest, h, (b, j), cell.kind)))
    return new, None


def _gru_step(cell: _Cell, step: int, h: Tensor | None, _: Tensor | None) -> tuple[Tensor, None]:
    f, g = cell.functions
    hidden = cell.shape.hidden
    is_linear_first = cell.call.attrs.integer("linear_before_reset", 0) != 0
    recurred = None if h is None else cell.recur(h, 0, 3 if is_linear_first else 2)

    def opened(nest: Nest, gate: int, b: Affine, j: Affine) -> Scalar:
        parts = [
            None if recurred is None else nest.read(recurred, (b, j + gate * hidden)),
            cell.bias(nest, gate, j, of_state=False), cell.bias(nest, gate, j, of_state=True),
        ]  # fmt: skip
        return f(cell.gate(nest, gate, (step, b, j), parts))

    product: Tensor | None = None
    if h is not None and not is_linear_first:
        reset = cell.state("reset")
        nest = cell.call.nest()
        b, j = nest.axes("i", reset.shape)
        nest.write(reset, (b, j), mul(opened(nest, 1, b, j), nest.read(h, (b, j))))
        product = cell.recur(reset, 2, 1)
    new = cell.state("h")
    nest = cell.call.nest()
    b, j = nest.axes("i", new.shape)
    inner = None if product is None else nest.read(product, (b, j))
    bias = cell.bias(nest, 2, j, of_state=True)
    if is_linear_first:
        linear = None if recurred is None else nest.read(recurred, (b, j + 2 * hidden))
        both = bias if linear is None else linear if bias is None else add(linear, bias)
        inner = None if both is None else mul(opened(nest, 1, b, j), both)
        bias = None
    parts = [inner, cell.bias(nest, 2, j, of_state=False), bias]
    candidate = g(cell.gate(nest, 2, (step, b, j), parts))
    update, old = opened(nest, 0, b, j), _read(nest, h, (b, j), cell.kind)
    value = add(mul(sub(lit(1, cell.kind), update), candidate), mul(update, old))
    nest.write(new, (b, j), cell.kept(nest, b, step, value, old))
    return new, None


def _lstm_step(cell: _Cell, step: int, h: Tensor | None, c: Tensor | None) -> tuple[Tensor, Tensor]:
    f, g, last = cell.functions
    hidden = cell.shape.hidden
    recurred = None if h is None else cell.recur(h, 0, 4)

    def summed(nest: Nest, gate: int, b: Affine, j: Affine, peephole: Scalar | None) -> Scalar:
        parts = [
            None if recurred is None else nest.read(recurred, (b, j + gate * hidden)),
            cell.bias(nest, gate, j, of_state=False), cell.bias(nest, gate, j, of_state=True),
            peephole,
        ]  # fmt: skip
        return cell.gate(nest, gate, (step, b, j), parts)

    new_c, new_h = cell.state("c"), cell.state("h")
    nest = cell.call.nest()
    b, j = nest.axes("i", new_c.shape)
    old = _read(nest, c, (b, j), cell.kind)
    seen = None if c is None else old
    look = [None if seen is None else cell.peephole(nest, k, j, seen) for k in (0, 2)]
    let_in = f(summed(nest, 0, b, j, look[0]))
    forget = f(summed(nest, 2, b, j, look[1]))
    candidate = g(summed(nest, 3, b, j, None))
    value = add(mul(forget, old), mul(let_in, candidate))
    nest.write(new_c, (b, j), cell.kept(nest, b, step, value, old))
    nest = cell.call.nest()
    b, j = nest.axes("i", new_h.shape)
    now = nest.read(new_c, (b, j))
    let_out = f(summed(nest, 1, b, j, cell.peephole(nest, 1, j, now)))
    previous = _read(nest, h, (b, j), cell.kind)
    nest.write(new_h, (b, j), cell.kept(nest, b, step, mul(let_out, last(now)), previous))
    return new_h, new_c


_Step = Callable[[_Cell, int, Tensor | None, Tensor | None], tuple[Tensor, Tensor | None]]
_STEPS: dict[str, tuple[int, _Step, tuple[str, ...]]] = {
    "RNN": (1, _rnn_step, ("Tanh",)),
    "GRU": (3, _gru_step, ("Sigmoid", "Tanh")),
    "LSTM": (4, _lstm_step, ("Sigmoid", "Tanh", "Tanh")),
}
"""Operator -> (gates, one step, activations by default)."""


def recurrent(call: Call) -> None:
    """RNN, GRU or LSTM of a known number of steps, any direction and layout."""
    op_type = call.node.op_type
    require_float(call)
    gates, step_of, defaults = _STEPS[op_type]
    turns = _DIRECTIONS[call.attrs.choice("direction", "forward", tuple(_DIRECTIONS))]
    shape = _shape(call, gates, len(turns))
    if call.attrs.has("clip") or call.attrs.integer("input_forget", 0):
        raise unsupported_attribute(f"{op_type} with clipped or coupled gates")
    functions = _functions(call, defaults, len(turns))
    out_shapes = _out_shapes(shape, len(turns))
    outputs = [
        call.output(k, out_shapes[min(k, 1)], call.dtype(_X)) if call.uses_output(k) else None
        for k in range(3 if op_type == "LSTM" else 2)
    ]
    for direction, is_reverse in enumerate(turns):
        cell = _Cell(call, shape, gates, direction)
        cell.functions = functions[direction]
        cell.projected = cell.project()
        h = cell.initial(_H)
        c = cell.initial(_C) if op_type == "LSTM" else None
        steps = range(shape.steps)
        for step in reversed(steps) if is_reverse else steps:
            h, c = step_of(cell, step, h, c)
            if outputs[0] is not None:
                _emit(cell, outputs[0], h, step)
        for out, state in zip(outputs[1:], (h, c), strict=False):
            if out is not None and state is not None:
                _emit(cell, out, state, None)


def _shape(call: Call, gates: int, directions: int) -> _Shape:
    x, w, r = call.shape(_X), call.shape(_W), call.shape(_R)
    is_batch_first = call.attrs.integer("layout", 0) != 0
    if len(x) != 3 or len(w) != 3 or len(r) != 3:
        raise shape_mismatch(f"{call.node.op_type} of {x} by weights of {w} and {r}")
    steps, batch = (x[1], x[0]) if is_batch_first else (x[0], x[1])
    hidden = r[2]
    if call.attrs.integer("hidden_size", hidden) != hidden:
        raise shape_mismatch(f"hidden_size is not {hidden}, which the weights {r} have")
    state = (batch, directions, hidden) if is_batch_first else (directions, batch, hidden)
    wanted = {
        _W: (directions, gates * hidden, x[2]), _R: (directions, gates * hidden, hidden),
        _B: (directions, 2 * gates * hidden), _LENGTHS: (batch,), _H: state, _C: state,
        _P: (directions, 3 * hidden),
    }  # fmt: skip
    for k, expected in wanted.items():
        if call.has_input(k) and call.shape(k) != expected:
            raise shape_mismatch(
                f"input {k} of {call.node.op_type} is {call.shape(k)}, not {expected}"
            )
    if call.has_input(_LENGTHS) and call.dtype(_LENGTHS) is not DType.I32:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"lengths of {call.dtype(_LENGTHS)}")
    if steps * directions > MAX_STEPS:
        raise Refusal(
            ReasonCode.SIZE_LIMIT,
            f"{call.node.op_type} has {steps * directions} steps; the limit is {MAX_STEPS}",
        )
    return _Shape(steps, batch, x[2], hidden, is_batch_first)


def _out_shapes(s: _Shape, directions: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if s.is_batch_first:
        return (s.batch, s.steps, directions, s.hidden), (s.batch, directions, s.hidden)
    return (s.steps, directions, s.batch, s.hidden), (directions, s.batch, s.hidden)


def _functions(
    call: Call, defaults: tuple[str, ...], directions: int
) -> list[tuple[Callable[[Scalar], Scalar], ...]]:
    """Activations of every direction."""
    found = call.node.attributes.get("activations")
    call.attrs.ignore("activations")
    names = [str(n) for n in found.as_strings()] if found is not None else []
    names = names or list(defaults) * directions
    kind = promoted(call.dtype(_X))
    known: dict[str, Callable[[Scalar], Scalar]] = {
        "sigmoid": lambda v: apply(Fn.SIGMOID, v),
        "tanh": lambda v: apply(Fn.TANH, v),
        "relu": lambda v: maximum(v, lit(0, kind)),
    }
    wrong = next((n for n in names if n.lower() not in known), None)
    if wrong is not None or len(names) != len(defaults) * directions:
        raise unsupported_attribute(f"activations {names} of {call.node.op_type}")
    found_functions = [known[n.lower()] for n in names]
    count = len(defaults)
    return [tuple(found_functions[d * count : (d + 1) * count]) for d in range(directions)]


def _emit(cell: _Cell, out: Tensor, state: Tensor, step: int | None) -> None:
    """Put a state into an output: at its step (zero where a sequence has ended), or as the last."""
    nest = cell.call.nest()
    b, j = nest.axes("i", state.shape)
    value: Scalar = nest.read(state, (b, j))
    d = Affine.of(cell.direction)
    lead: tuple[Affine, ...] = ()
    if step is not None:
        lead = (Affine.of(step),)
        value = cell.kept(nest, b, step, value, lit(0, cell.kind))
    order = (b, *lead, d) if cell.shape.is_batch_first else (*lead, d, b)
    nest.write(out, (*order, j), value)


EXPRESSIONS: dict[str, Expression] = dict.fromkeys(_STEPS, recurrent)

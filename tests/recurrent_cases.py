"""Recurrent layers: cases for their gradients, and ONNX's equations in numpy, vector by vector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gradient_cases import Array, Case, node, real
from onnx.reference.op_run import OpRun

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _function(name: str, x: Array) -> Array:
    match name:
        case "Sigmoid":
            return 1 / (1 + np.exp(-x))
        case "Relu":
            return np.maximum(x, 0)
        case _:
            return np.tanh(x)


class _Recurrence(OpRun):
    """Each sequence of a batch for itself, as long as it is; vectors, no batches."""

    op_domain = ""

    def _run(
        self, x: Array, w: Array, r: Array, b: Array | None = None, lens: Array | None = None,
        h0: Array | None = None, c0: Array | None = None, p: Array | None = None, *,
        direction: str = "forward", layout: int = 0, activations: list[str] | None = None,
        linear_before_reset: int = 0, hidden_size: int = 0, **_: Any,
    ) -> tuple[Array, ...]:  # fmt: skip
        kind = type(self).__name__
        turns = {"forward": (1,), "reverse": (-1,), "bidirectional": (1, -1)}[direction]
        if layout:
            x = x.swapaxes(0, 1)
            h0, c0 = (None if v is None else v.swapaxes(0, 1) for v in (h0, c0))
        steps, batch, hidden = x.shape[0], x.shape[1], r.shape[2]
        names = activations or {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"]}.get(
            kind, ["Sigmoid", "Tanh", "Tanh"]
        ) * len(turns)
        each = len(names) // len(turns)
        y = np.zeros((steps, len(turns), batch, hidden), x.dtype)
        y_h = np.zeros((len(turns), batch, hidden), x.dtype)
        y_c = np.zeros_like(y_h)
        for d, turn in enumerate(turns):
            f = names[d * each : (d + 1) * each]
            bias = np.zeros(2 * r.shape[1]) if b is None else b[d]
            both = bias[: r.shape[1]], bias[r.shape[1] :]
            see = np.zeros(3 * hidden) if p is None else p[d]
            for n in range(batch):
                h = np.zeros(hidden) if h0 is None else h0[d, n]
                c = np.zeros(hidden) if c0 is None else c0[d, n]
                length = steps if lens is None else int(lens[n])
                for t in range(length)[::turn]:
                    step = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}[kind]
                    h, c = step(f, x[t, n], h, c, w[d], r[d], both, see, bool(linear_before_reset))
                    y[t, d, n] = h
                y_h[d, n], y_c[d, n] = h, c
        if layout:
            y, y_h, y_c = y.transpose(2, 0, 1, 3), y_h.swapaxes(0, 1), y_c.swapaxes(0, 1)
        return (y, y_h, y_c)[: 3 if kind == "LSTM" else 2]


def _rnn(f, x, h, c, w, r, b, see, linear):  # type: ignore[no-untyped-def]
    return _function(f[0], w @ x + r @ h + b[0] + b[1]), c


def _gru(f, x, h, c, w, r, b, see, linear):  # type: ignore[no-untyped-def]
    (wz, wr, wh), (rz, rr, rh) = np.split(w, 3), np.split(r, 3)
    (bz, br, bh), (sz, sr, sh) = np.split(b[0], 3), np.split(b[1], 3)
    z = _function(f[0], wz @ x + rz @ h + bz + sz)
    reset = _function(f[0], wr @ x + rr @ h + br + sr)
    inner = reset * (rh @ h + sh) if linear else rh @ (reset * h) + sh
    return (1 - z) * _function(f[1], wh @ x + inner + bh) + z * h, c


def _lstm(f, x, h, c, w, r, b, see, linear):  # type: ignore[no-untyped-def]
    i, o, forget, new = np.split(w @ x + r @ h + b[0] + b[1], 4)
    see_i, see_o, see_f = np.split(see, 3)
    cell = _function(f[0], forget + see_f * c) * c
    cell = cell + _function(f[0], i + see_i * c) * _function(f[1], new)
    return _function(f[0], o + see_o * cell) * _function(f[2], cell), cell


class RNN(_Recurrence):
    pass


class GRU(_Recurrence):
    pass


class LSTM(_Recurrence):
    pass


def _case(seed: int, op: str, **attributes: Any) -> Case:
    """Directions, layouts, initial states, lengths, biases and peepholes as the seed says."""
    rng = np.random.default_rng(seed)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    steps, batch, width, hidden = (int(n) for n in rng.integers(2, 4, 4))
    gates, layout = GATES[op], int(attributes.get("layout", 0))
    lead = (batch, steps) if layout else (steps, batch)
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    parameters = {
        "x": real(seed, *lead, width), "w": real(seed + 1, directions, gates * hidden, width),
        "r": real(seed + 2, directions, gates * hidden, hidden),
    }  # fmt: skip
    names = ["x", "w", "r", "__", "__", "__", "__", "__"]
    optional: dict[int, Array] = {3: real(seed + 3, directions, 2 * gates * hidden)}
    optional[5] = real(seed + 4, *state)
    if op == "LSTM":
        optional |= {6: real(seed + 5, *state), 7: real(seed + 6, directions, 3 * hidden)}
    for place, value in optional.items():
        if rng.integers(2):
            names[place] = f"p{place}"
            parameters[names[place]] = value
    inputs = {}
    if rng.integers(2):
        names[4] = "lens"
        inputs["lens"] = rng.integers(1, steps + 1, batch).astype(np.int32)
    while names[-1] == "__":
        names.pop()
    outputs = ["y", "y_h", *(["y_c"] if op == "LSTM" else [])]
    used = int(rng.integers(len(outputs)))
    recurrence = node(op, " ".join(names), " ".join(outputs), hidden_size=hidden, **attributes)
    label = f"{op.lower()}-{seed}"
    if used:  # what follows reads the last state, too
        shape = node("Sum", f"{outputs[used]} {outputs[1]}", "sum")
        return Case(label, (recurrence, shape), parameters, inputs=inputs, seed=seed)
    return Case(label, (recurrence,), parameters, inputs=inputs, seed=seed, output="y")


def _cases() -> Iterator[Case]:
    seed = 0
    for op, functions in (("RNN", 1), ("GRU", 2), ("LSTM", 3)):
        for direction in ("forward", "reverse", "bidirectional"):
            for layout in (0, 1):
                count = functions * (2 if direction == "bidirectional" else 1)
                named = ["Sigmoid", "Tanh", "Sigmoid", "Tanh", "Tanh", "Sigmoid"][:count]
                attributes: dict[str, Any] = {"activations": named} if layout else {}
                if op == "GRU" and seed % 2:
                    attributes["linear_before_reset"] = 1
                yield _case(seed, op, direction=direction, layout=layout, **attributes)
                seed += 1
    yield _case(seed, "GRU", linear_before_reset=1)


RECURRENT = tuple(_cases())
EVALUATORS = (RNN, GRU, LSTM)

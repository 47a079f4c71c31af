"""Instances of operators over sequences and places that are data: sums, scatters, recurrences."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from worker.conformance.sample import Array, OpRecipe, Request, Sample, constants, i64

_REDUCED = {"add": "add", "max": "max", "later": "none", "computed": "none"}


def _running(request: Request) -> Sample:
    x = request.values(request.dims(3, 20))
    flags = {"reverse": int("reverse" in request.variant),
             "exclusive": int("exclusive" in request.variant)}  # fmt: skip
    axis = np.array(x.ndim - 1, np.int64)
    return Sample((x, axis), {**flags, **request.attributes}, constants(1))


def _running_product(request: Request) -> Sample:
    made = _running(request)
    return Sample(made.inputs, made.attributes, made.constants, opset=26)


def _reverse(request: Request) -> Sample:
    dims = request.dims(6, 3, 2)
    lengths = request.rng.integers(0, dims[0] + 1, dims[1]).astype(np.int64)
    return Sample((request.values(dims), lengths), dict(request.attributes))


def _scatter_elements(request: Request) -> Sample:
    dims = request.dims(5, 4)
    axis = request.attributes.get("axis", len(dims) - 1 if request.variant == "later" else 0)
    assert isinstance(axis, int)
    shape = tuple(3 if d == axis else n for d, n in enumerate(dims))
    rows = np.argsort(request.rng.random((*shape[:axis], dims[axis], *shape[axis + 1 :])), axis)
    indices = np.take(rows, np.arange(3) % dims[axis], axis).astype(np.int64)
    kind = {"reduction": _REDUCED.get(request.variant, "none")}
    given: tuple[Array, ...] = (request.values(dims), indices, request.values(shape))
    fixed = constants() if request.variant == "computed" else constants(1)
    return Sample(given, {**kind, "axis": axis, **request.attributes}, fixed)


def _scatter(request: Request) -> Sample:
    made = _scatter_elements(request)
    attributes = {k: v for k, v in made.attributes.items() if k != "reduction"}
    return Sample(made.inputs, attributes, made.constants, opset=10)


def _scatter_nd(request: Request) -> Sample:
    dims = request.dims(5, 4, 3)
    depth = 2 if request.variant == "later" and len(dims) > 1 else 1
    places = [[int(v) for v in request.rng.integers(0, dims[:depth])] for _ in range(6)]
    if request.variant not in ("add", "max"):  # of equal places the order is not ONNX's to say
        places = [list(p) for p in dict.fromkeys(map(tuple, places))]
    updates = request.values((len(places), *dims[depth:]))
    kind = {"reduction": _REDUCED.get(request.variant, "none")}
    fixed = constants() if request.variant == "computed" else constants(1)
    given = (request.values(dims), np.array(places, np.int64), updates)
    return Sample(given, {**kind, **request.attributes}, fixed)


def _tensor_scatter(request: Request) -> Sample:
    dims = request.dims(2, 3, 6, 4)
    updates = request.values((*dims[:-2], 2, dims[-1]))
    starts = i64(*(k % (dims[-2] - 1) for k in range(dims[0])))
    mode = "circular" if request.variant == "circular" else "linear"
    given = (request.values(dims), updates, starts)
    return Sample(given, {"mode": mode, **request.attributes}, opset=24)


def _top_k(request: Request) -> Sample:
    x = request.values(request.dims(3, 9))
    largest = int(request.variant != "smallest")
    k = i64(min(4, x.shape[-1]))
    own = {"axis": -1, "largest": largest, **request.attributes}
    return Sample((x, k), own, constants(1), outputs=2)


def _recurrent(gates: int, request: Request) -> Sample:
    steps, batch, width = request.dims(3, 2, 5)
    hidden, turns = 4, 2 if request.variant == "both ways" else 1
    rows = gates * hidden
    weights = [
        request.values(shape) * request.dtype.type(0.5)
        for shape in ((turns, rows, width), (turns, rows, hidden), (turns, 2 * rows))
    ]
    direction = "bidirectional" if turns == 2 else "forward"
    own = {"hidden_size": hidden, "direction": direction, **request.attributes}
    given = (request.values((steps, batch, width)), *weights)
    return Sample(given, own, constants(1, 2, 3), outputs=3 if gates == 4 else 2)


def _grid_sample(request: Request) -> Sample:
    x = request.values(request.dims(1, 2, 4, 5))
    grid = request.rng.uniform(-1.2, 1.2, (x.shape[0], 3, 4, 2)).astype(request.dtype)
    mode = request.variant if request.variant in ("nearest", "cubic") else "linear"
    padding = request.variant if request.variant in ("border", "reflection") else "zeros"
    return Sample((x, grid), {"mode": mode, "padding_mode": padding, **request.attributes})


def _affine_grid(request: Request) -> Sample:
    batch = request.dims(2, 2, 3)[0]
    places = (3, 4, 5) if request.variant == "volume" else (4, 5)
    theta = request.values((batch, len(places), len(places) + 1))
    own = {"align_corners": int(request.variant == "aligned"), **request.attributes}
    return Sample((theta, i64(batch, 1, *places)), own, constants(1))


def _col2im(request: Request) -> Sample:
    """Blocks of 2x2 over an image of 5x6."""
    batch, channels = request.dims(2, 4, 20)[:2]
    is_wide = request.variant == "strided"  # strides of 2 over an image padded to 6x6
    own = {"strides": [2, 2], "pads": [0, 0, 1, 0]} if is_wide else {}
    x = request.values((batch, -(-channels // 4) * 4, 9 if is_wide else 20))
    return Sample((x, i64(5, 6), i64(2, 2)), {**own, **request.attributes}, constants(1, 2))


def _dft(request: Request) -> Sample:
    half = int(request.variant == "half")
    x = request.values((2, 9, 1 if half else 2))
    axis = (x, None, np.array(1, np.int64))
    return Sample(axis, {"onesided": half, **request.attributes}, constants(2))


def _stft(request: Request) -> Sample:
    x, window = request.values((2, 20, 1)), request.values((6,))
    # said, because ONNX's shape inference takes another default than its definition
    own = {"onesided": 1, **request.attributes}
    return Sample((x, np.array(3, np.int64), window), own, constants(1, 2))


SCATTERED_RECIPES: Mapping[str, OpRecipe] = {
    "CumSum": OpRecipe(_running, ("reverse", "exclusive", "reverse exclusive")),
    "CumProd": OpRecipe(_running_product, ("reverse", "exclusive")),
    "ReverseSequence": OpRecipe(_reverse),
    "Scatter": OpRecipe(_scatter, ("later",)),
    "ScatterElements": OpRecipe(_scatter_elements, ("add", "max", "later", "computed")),
    "ScatterND": OpRecipe(_scatter_nd, ("add", "max", "later", "computed")),
    "TensorScatter": OpRecipe(_tensor_scatter, ("circular",)),
    "TopK": OpRecipe(_top_k, ("smallest",)),
    "RNN": OpRecipe(partial(_recurrent, 1), ("both ways",)),
    "GRU": OpRecipe(partial(_recurrent, 3), ("both ways",)),
    "LSTM": OpRecipe(partial(_recurrent, 4), ("both ways",)),
    "AffineGrid": OpRecipe(_affine_grid, ("aligned", "volume")),
    "Col2Im": OpRecipe(_col2im, ("strided",)),
    "GridSample": OpRecipe(_grid_sample, ("nearest", "cubic", "border", "reflection")),
    "DFT": OpRecipe(_dft, ("half",)),
    "STFT": OpRecipe(_stft),
}

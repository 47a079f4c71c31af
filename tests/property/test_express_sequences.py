"""Recurrences, GridSample and Fourier transforms against ONNX Runtime and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from express_oracle import agree, express, model_of, ours, reason
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY

from worker.compiler.rejection import ReasonCode

SEEDS = st.integers(0, 2**32 - 1)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrence(
    rng: np.random.Generator, op_type: str, steps: int, batch: int, hidden: int, turns: int,
    present: frozenset[str],
) -> list[Any]:  # fmt: skip
    """Inputs of a recurrence; of the optional ones those in `present`."""
    rows, width = GATES[op_type] * hidden, 3

    def numbers(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32) * np.float32(0.5)

    def optional(name: str, made: Any) -> Any:
        return made if name in present else None

    lengths = rng.integers(1, steps + 1, batch).astype(np.int32)
    inputs = [
        numbers(steps, batch, width), numbers(turns, rows, width), numbers(turns, rows, hidden),
        optional("bias", numbers(turns, 2 * rows)), optional("lengths", lengths),
        optional("state", numbers(turns, batch, hidden)),
    ]  # fmt: skip
    if op_type == "LSTM":
        inputs += [optional("state", numbers(turns, batch, hidden)),
                   optional("peepholes", numbers(turns, 3 * hidden))]  # fmt: skip
    return inputs


@COSTLY
@given(
    op_type=st.sampled_from(list(GATES)),
    direction=st.sampled_from(["forward", "reverse", "bidirectional"]),
    steps=st.integers(1, 4), batch=st.integers(1, 3), hidden=st.integers(1, 4),
    present=st.frozensets(st.sampled_from(["bias", "lengths", "state", "peepholes"])),
    linear=st.booleans(), seed=SEEDS,
)  # fmt: skip
def test_recurrences(
    op_type: str, direction: str, steps: int, batch: int, hidden: int, present: frozenset[str],
    linear: bool, seed: int,
) -> None:  # fmt: skip
    turns = 2 if direction == "bidirectional" else 1
    inputs = recurrence(np.random.default_rng(seed), op_type, steps, batch, hidden, turns, present)
    own: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op_type == "GRU":
        own["linear_before_reset"] = int(linear)
    agree(op_type, inputs, own, num_outputs=3 if op_type == "LSTM" else 2)


def test_batch_first_is_the_same_with_axes_exchanged() -> None:
    inputs = recurrence(np.random.default_rng(0), "GRU", 3, 2, 4, 1, frozenset({"bias", "state"}))
    plain = ours(model_of("GRU", inputs, {"hidden_size": 4}, num_outputs=2), inputs)
    turned = [np.swapaxes(a, 0, 1) if k in (0, 5) and a is not None else a
              for k, a in enumerate(inputs)]  # fmt: skip
    model = model_of("GRU", turned, {"hidden_size": 4, "layout": 1}, num_outputs=2)
    y, last = ours(model, turned)
    np.testing.assert_array_equal(y, plain[0].transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(last, plain[1].swapaxes(0, 1))


def test_what_the_steps_do_not_say_is_refused() -> None:
    inputs = recurrence(np.random.default_rng(0), "LSTM", 2, 1, 2, 1, frozenset())
    for own in ({"clip": 1.0}, {"input_forget": 1}, {"activations": ["Elu", "Tanh", "Tanh"]}):
        model = model_of("LSTM", inputs, {"hidden_size": 2, **own}, num_outputs=3)
        assert reason(model).code is ReasonCode.UNSUPPORTED_ATTRIBUTE
    long = recurrence(np.random.default_rng(0), "RNN", 300, 1, 1, 1, frozenset())
    why = reason(model_of("RNN", long, {"hidden_size": 1}, num_outputs=2))
    assert (why.code, "300 steps" in why.sentence) == (ReasonCode.SIZE_LIMIT, True)


def test_a_step_is_one_product_and_its_gates() -> None:
    inputs = recurrence(np.random.default_rng(0), "LSTM", 5, 2, 3, 1, frozenset({"bias"}))
    model = model_of("LSTM", inputs, {"hidden_size": 3}, num_outputs=3)
    ops = express(model).graph.ops
    assert sum(op.reduce is not None for op in ops) == 1 + 4  # the first state is zero


@COSTLY
@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=2),
    mode=st.sampled_from(["linear", "nearest", "cubic"]),
    padding=st.sampled_from(["zeros", "border", "reflection"]),
    aligned=st.booleans(), seed=SEEDS,
)  # fmt: skip
def test_grid_sample(shape: list[int], mode: str, padding: str, aligned: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 3, *shape)).astype(np.float32)
    grid = rng.uniform(-2.5, 2.5, (2, 3, 4, 2)).astype(np.float32)
    own = {"mode": mode, "padding_mode": padding, "align_corners": int(aligned)}
    if (mode, padding) == ("cubic", "border") or (
        padding == "reflection" and aligned and 1 in shape
    ):
        why = reason(model_of("GridSample", [x, grid], own))
        assert why.code is ReasonCode.UNSUPPORTED_ATTRIBUTE
        return
    agree("GridSample", [x, grid], own, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_sample_of_volumes(mode: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((1, 2, 3, 4, 5)).astype(np.float32)
    grid = rng.uniform(-1.3, 1.3, (1, 2, 2, 3, 3)).astype(np.float32)
    agree("GridSample", [x, grid], {"mode": mode}, rtol=1e-3, atol=1e-4)


@COSTLY
@given(
    extent=st.integers(2, 12), length=st.integers(1, 14), axis=st.integers(0, 1),
    half=st.booleans(), is_real=st.booleans(), seed=SEEDS,
)  # fmt: skip
def test_dft(extent: int, length: int, axis: int, half: bool, is_real: bool, seed: int) -> None:
    is_real = is_real or half
    shape = [3, 3]
    shape[axis] = extent
    x = np.random.default_rng(seed).standard_normal((*shape, 1 if is_real else 2))
    given = [x.astype(np.float32), np.asarray(length), np.asarray(axis)]
    model = model_of("DFT", given, {"onesided": int(half)}, constants=(1, 2))
    numbers = x[..., 0] if is_real else x[..., 0] + 1j * x[..., 1]
    want = (np.fft.rfft if half else np.fft.fft)(numbers, length, axis)
    (got,) = ours(model, given)
    np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], want, atol=1e-4)


@COSTLY
@given(extent=st.integers(2, 9), odd=st.booleans(), seed=SEEDS)
def test_back_from_half_a_spectrum(extent: int, odd: bool, seed: int) -> None:
    length = 2 * (extent - 1) + odd
    rng = np.random.default_rng(seed)
    spectrum = np.fft.rfft(rng.standard_normal((2, length)), axis=1)
    x = np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32)
    given = [x, np.asarray(length), np.asarray(1)]
    model = model_of("DFT", given, {"onesided": 1, "inverse": 1}, constants=(1, 2))
    want = np.fft.irfft(spectrum, length, 1)[..., None]
    np.testing.assert_allclose(ours(model, given)[0], want, atol=1e-5)


@pytest.mark.parametrize("half", [0, 1])
def test_stft(half: int) -> None:
    rng = np.random.default_rng(0)
    signal = rng.standard_normal((2, 40, 1)).astype(np.float32)
    window = rng.uniform(0, 1, 9).astype(np.float32)
    given = [signal, np.asarray(4), window]
    model = model_of("STFT", given, {"onesided": half}, constants=(1, 2))
    frames = np.stack([signal[:, s : s + 9, 0] * window for s in range(0, 32, 4)], 1)
    want = (np.fft.rfft if half else np.fft.fft)(frames, axis=2)
    (got,) = ours(model, given)
    np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], want, atol=1e-4)

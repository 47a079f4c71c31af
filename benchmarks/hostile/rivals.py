"""A model in ONNX Runtime and its bundle as `tilewright run` runs it, on the same fresh inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]
_KINDS = {
    "tensor(float)": "f4", "tensor(double)": "f8", "tensor(float16)": "f2", "tensor(bool)": "?",
    "tensor(int8)": "i1", "tensor(int16)": "i2", "tensor(int32)": "i4", "tensor(int64)": "i8",
    "tensor(uint8)": "u1", "tensor(uint16)": "u2", "tensor(uint32)": "u4", "tensor(uint64)": "u8",
}  # fmt: skip


class Refused(Exception):
    """`run` said no, with a code."""


def reference(path: Path, seed: int, feeds: Arrays | None = None) -> tuple[Arrays, Arrays]:
    """(inputs, outputs) of the model by ONNX Runtime, one thread, no optimisations.

    `feeds`: instead of inputs drawn by `seed`.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(seed)
    if feeds is None:
        feeds = {v.name: _values(rng, v.type, v.shape) for v in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    outputs = session.run(names, feeds)
    return feeds, {n: np.asarray(v) for n, v in zip(names, outputs, strict=True)}


def _values(rng: np.random.Generator, kind: str, shape: list[Any]) -> npt.NDArray[Any]:
    dtype = np.dtype(_KINDS[kind])
    if dtype.kind == "f":
        return (rng.standard_normal(shape) * 2).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)  # also good as an index, a flag or a length


def results(bundle: Path, feeds: Arrays) -> Arrays:
    """What `tilewright run` gives.

    Raises:
        Refused: the inputs or a host part are refused; a model may promise what they do not keep.
        RuntimeError: it failed otherwise; the message is what it printed.
    """
    from benchmarks.hostile.command_line import REFUSALS, invoke

    given, made = bundle.with_name("fresh.npz"), bundle.with_name("found.npz")
    np.savez(given, **feeds)
    ended = invoke(["run", str(bundle), "--input", str(given), "-o", str(made)])
    if ended.code in REFUSALS:
        raise Refused(ended.text[-300:])
    if ended.code != 0:
        raise RuntimeError(f"run ended with {ended.code}: {ended.text[-300:]}")
    with np.load(made) as archive:
        return {name: archive[name] for name in archive.files}

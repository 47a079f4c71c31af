"""Seeded inputs for the shipped example, in the form that `tilewright run` reads."""

from __future__ import annotations

from pathlib import Path

from worker.job.arrays import write_npz


def write_inputs(model: Path, target: Path, *, seed: int) -> None:
    """Write one array of standard-normal float32 values per input of the model.

    The shipped example has only float32 inputs with static shapes.
    """
    import numpy as np
    import onnx

    generator = np.random.default_rng(seed)
    arrays = {}
    for value in onnx.load(model).graph.input:
        shape = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        arrays[value.name] = generator.standard_normal(shape, dtype=np.float32)
    write_npz(target, arrays)

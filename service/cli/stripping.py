"""A copy of a model without what it has learnt: the graph can be shared, the weights stay home.

Every large floating-point initializer is replaced by seeded noise of the same shape, type and
spread, so that the copy still gives finite, uneven outputs.  Small and integer initializers stay:
they are shapes, axes, indices and scales, and the graph needs their values.
"""

from __future__ import annotations

from pathlib import Path


def strip_weights(source: Path, target: Path, *, seed: int, keep_elems: int) -> tuple[int, int]:
    """Write the copy; give how many initializers were replaced and how many kept.

    Raises:
        ModelError: the file is not an ONNX model, or its external data cannot be read.
    """
    import numpy as np
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs
    from onnx import numpy_helper

    from worker.compiler.errors import ModelError

    try:
        model = onnx.load(source)
    except DecodeError as error:
        raise ModelError("TW-MODEL-001", f"{source} is not an ONNX model: {error}") from error
    except (FileNotFoundError, onnx.checker.ValidationError) as error:
        raise ModelError("TW-MODEL-010", f"{source}: {error}") from error
    if not model.graph.node:
        raise ModelError("TW-MODEL-013", f"{source} has no nodes")
    generator = np.random.default_rng(seed)
    replaced = kept = 0
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.size <= keep_elems or values.dtype.kind != "f":
            kept += 1
            continue
        spread = float(values.astype(np.float64).std()) or 1.0
        noise = generator.standard_normal(values.shape, dtype=np.float32) * np.float32(spread)
        if values.min() >= 0:
            # Variances and other non-negative values must stay so, or square roots turn to NaN.
            noise = np.abs(noise)
        tensor.CopyFrom(numpy_helper.from_array(noise.astype(values.dtype), tensor.name))
        replaced += 1
    model.ClearField("doc_string")
    del model.metadata_props[:]
    target.write_bytes(model.SerializeToString(deterministic=True))
    return replaced, kept

"""Making a training step as a payload: the model is somebody else's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir

from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.train.options import TrainOptions
from worker.compiler.train.step import TrainingStep, training_step
from worker.job.arrays import write_npz
from worker.sandbox.answering import answer
from worker.verification.inputs import seeded_inputs

STEP, INPUTS = "step.onnx", "inputs.npz"


def trained(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave `step.onnx` and, where a seed is given, `inputs.npz`; say how the step is used.

    Raises:
        CompilerError: as `TrainOptions.from_json`, `load_model`, `bind` and `training_step`.
    """
    options = TrainOptions.from_json(request["train"])
    source = Path(request["model"])
    model = bind(load_model(source, Limits(), source.stem), request["symbols"])
    step = training_step(model, options)
    out = Path(request["out"])
    proto = onnx_ir.serde.serialize_model(step.model.ir)
    (out / STEP).write_bytes(proto.SerializeToString(deterministic=True))
    if request["seed"] is not None:
        write_npz(out / INPUTS, first_inputs(step, request["seed"]))
    return {
        "loss": step.loss,
        "target": step.target,
        "carried": [
            {"input": c.input, "output": c.output, "kind": c.kind,
             "shape": list(c.initial.shape), "dtype": str(c.initial.dtype)}
            for c in step.carried
        ],
        "gradients": [{"input": name, "output": output} for name, output in step.gradients],
        "masks": [{"input": mask.input, "ratio": mask.ratio} for mask in step.masks],
        "forward_macs": step.forward_macs,
        "step_macs": step.step_macs,
        "nodes": len(step.model.ir.graph),
    }  # fmt: skip


def first_inputs(step: TrainingStep, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """What the first step reads: the model's own parameters, the state's first values, and seeded
    data, labels among the classes and masks of the dropouts' ratios included."""
    arrays = seeded_inputs(step.model, seed)
    rng = np.random.default_rng(seed)
    if step.classes:
        arrays[step.target] = rng.integers(0, step.classes, arrays[step.target].shape)
    for mask in step.masks:
        keeps = rng.random(arrays[mask.input].shape) >= mask.ratio
        kept = keeps / (1 - mask.ratio)
        arrays[mask.input] = kept.astype(arrays[mask.input].dtype)
    arrays.update((c.input, np.asarray(c.initial)) for c in step.carried)
    arrays.update((name, np.asarray(value)) for name, value in step.parameters.items())
    return arrays


if __name__ == "__main__":
    sys.exit(answer(trained))

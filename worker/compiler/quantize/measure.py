"""How far a converted model's outputs are from the model's own, in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.quantize.session import Session
from worker.compiler.quantize.sqnr import Array, Sqnr, region_sqnr


def output_sqnr(
    model: OnnxModel, converted: OnnxModel, batches: Sequence[Mapping[str, Array]]
) -> tuple[tuple[str, Sqnr], ...]:
    """Signal to noise of every float output, over all batches together.

    Raises:
        ModelError: TW-CAL-005, ONNX Runtime cannot run one of the models.

    Cost: two sessions and one run of both models per batch; the outputs of all batches are kept.
    """
    exact, approximate = Session(model.ir), Session(converted.ir)
    found: list[dict[str, Array]] = []
    for session in (exact, approximate):
        runs = [session.run(batch, exact.outputs) for batch in batches]
        found.append({
            name: np.stack([run[k] for run in runs]) for k, name in enumerate(exact.outputs)
        })  # fmt: skip
    return region_sqnr(found[0], found[1])

"""References of converted models, and how much of the user's model the conversion keeps.

Kernels are judged against ONNX Runtime on the converted model: there both sides round in the same
places.  What the conversion itself costs is measured apart, as signal to quantisation-noise ratio
of the converted model against the user's original, at every region boundary and output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
import onnx_ir

from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.quantize.boundary import BoundaryKind
from worker.compiler.quantize.session import Session
from worker.compiler.quantize.sqnr import Powers
from worker.report.noise_row import NoiseRow
from worker.verification.float64 import FORCED, in_float64
from worker.verification.reference import Float64Values, reference_outputs

Array = npt.NDArray[Any]


def values_of(
    model: onnx_ir.Model, inputs: Mapping[str, Array], names: Sequence[str]
) -> dict[str, Array]:
    """Values of `names` (outputs of nodes, or of the graph) when ONNX Runtime runs `model`.

    Raises:
        ModelError: TW-CAL-005, ONNX Runtime cannot run it.
    """
    clone = model.clone()
    known = {v.name: v for node in clone.graph for v in node.outputs if v.name}
    given = {v.name for v in clone.graph.outputs}
    clone.graph.outputs.extend(known[n] for n in names if n in known and n not in given)
    session = Session(clone)
    wanted = [n for n in session.outputs if n in set(names)]
    fed = {v.name for v in clone.graph.inputs}
    feeds = {n: v for n, v in inputs.items() if n in fed}
    return dict(zip(wanted, session.run(feeds, wanted), strict=True))


def converted_reference(
    compiled: CompiledModel, inputs: Mapping[str, Array], extra: Sequence[str]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """(outputs, values of `extra`) of the converted model in ONNX Runtime."""
    outputs = [v.name for v in compiled.model.ir.graph.outputs if v.name]
    found = values_of(compiled.model.ir, inputs, [*outputs, *extra])
    return {n: found[n] for n in outputs}, {n: found[n] for n in extra if n in found}


def converted_float64(
    compiled: CompiledModel,
    inputs: Mapping[str, Array],
    names: Sequence[str],
    forced: Mapping[str, Array],
    forced_by: Mapping[str, Sequence[str]],
) -> Float64Values:
    """Like `reference.float64_outputs`, of the converted model."""
    kept = 0

    def raised(proto: onnx.ModelProto) -> onnx.ModelProto:
        nonlocal kept
        made = in_float64(proto, names, forced_by)
        kept = made.kept
        return made.model

    session = Session(compiled.model.ir, raised)
    given = {**inputs, **{FORCED + name: value for name, value in forced.items()}}
    feeds = {name: value for name, value in given.items() if name in session.inputs}
    return Float64Values(dict(zip(session.outputs, session.run(feeds), strict=True)), kept)


def conversion_noise(
    path: Path, compiled: CompiledModel, batches: Sequence[Mapping[str, Array]]
) -> tuple[NoiseRow, ...]:
    """SQNR of every float output and of every value that leaves a region, in that order.

    Signal and noise are summed over all `batches`.

    Cost: a run of the user's model and one of the converted one in ONNX Runtime per batch.
    """
    outputs = [v.name for v in compiled.model.ir.graph.outputs if v.name]
    leaving = [
        b.value
        for b in compiled.boundaries
        if b.kind is not BoundaryKind.QUANTIZE and b.value not in outputs
    ]
    names = list(dict.fromkeys((*outputs, *leaving)))
    powers = {name: Powers() for name in names}
    for batch in batches:
        exact, inner = reference_outputs(path, batch, names)
        exact.update(inner)
        rounded = values_of(compiled.model.ir, batch, names)
        for name in names:
            if name in exact and name in rounded and exact[name].dtype.kind == "f":
                powers[name].add(exact[name], rounded[name])
    least = max((c.min_sqnr_db for c in compiled.conversions.values()), default=0.0)
    rows: list[NoiseRow] = []
    for name in names:
        if not powers[name].is_measured:
            continue
        found = powers[name].sqnr()
        is_output = name in outputs and least > 0
        rows.append(
            NoiseRow(
                name,
                found.db,
                found.reason,
                least if is_output else None,
                (found.db is None or found.db >= least) if is_output else None,
            )
        )
    return tuple(rows)

"""What the kernels must compute, and how wrong it is itself.

It is the user's file, or the converted model where numbers change their format (whose noise against
the user's file is reported apart).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from worker.compiler.judge.compiled import CompiledModel
from worker.verification.carried import carried, sources
from worker.verification.measured import OwnErrors, Runs, measure, nudged, shrunken
from worker.verification.noise import converted_float64, converted_reference
from worker.verification.reference import (
    Float64Values,
    defined_outputs,
    float64_outputs,
    reference_outputs,
)
from worker.verification.selection import values_selected_by

Array = npt.NDArray[Any]


def reference_values(
    path: Path, compiled: CompiledModel, inputs: Mapping[str, Array], extra: Sequence[str]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """(outputs, values of those of `extra` that the reference's graph has), by name.

    Raises:
        CompilerError: TW-VERIFY-003, TW-CAL-005: ONNX Runtime cannot run the model.
    """
    if compiled.boundaries:
        return converted_reference(compiled, inputs, extra)
    return reference_outputs(path, inputs, extra)


def own_errors(
    path: Path,
    compiled: CompiledModel,
    inputs: Mapping[str, Array],
    values: Mapping[str, Array],
    seed: int,
    *,
    is_odd: bool,
) -> OwnErrors:
    """How wrong the reference's `values` are, and what they are picked from.

    Where the model selects, every run selects alike.  `is_odd`: some element is finite on one side
    only.
    """
    nodes = tuple(compiled.source.ir.graph)
    picked = sources(values, nodes)
    selected = values_selected_by(compiled.source)
    names = tuple(dict.fromkeys(n for found in selected.values() for n in found))
    further = tuple(dict.fromkeys((*names, *picked)))
    found: dict[str, Array] = {}
    if further:
        outputs, inner = reference_values(path, compiled, inputs, further)
        found = {**inner, **outputs}
    wanted = {**values, **{n: found[n] for n in picked if n in found}}

    def moved(number: int) -> Mapping[str, Array]:
        there = nudged(inputs, seed + number)
        outputs, inner = reference_values(path, compiled, there, tuple(wanted))
        return {**inner, **outputs}

    def shrunk() -> Mapping[str, Array]:
        outputs, inner = reference_values(path, compiled, shrunken(inputs), tuple(wanted))
        return {**inner, **outputs}

    def exact() -> Float64Values:
        forced = {n: found[n] for n in names if n in found}
        taken = {kind: [n for n in each if n in forced] for kind, each in selected.items()}
        if compiled.boundaries:
            return converted_float64(compiled, inputs, tuple(wanted), forced, taken)
        return float64_outputs(path, inputs, tuple(wanted), forced, taken)

    def defined() -> Mapping[str, Array] | None:
        return None if compiled.boundaries else defined_outputs(path, inputs, tuple(wanted))

    runs = Runs(exact, moved, defined, shrunk if is_odd else None)
    return carried(measure(wanted, runs, is_selecting=bool(names)), wanted, nodes)

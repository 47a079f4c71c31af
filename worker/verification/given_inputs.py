"""Inputs that the user gives for the verification, from an .npz file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.array_file import read_arrays
from worker.compiler.errors import Detail, Finding
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.work import static_shape
from worker.compiler.quantize.calibration import refuse_all
from worker.verification.inputs import seeded_inputs

Array = npt.NDArray[Any]
_CODE = "TW-VERIFY-004"


def given_inputs(path: Path, model: OnnxModel) -> dict[str, Array]:
    """One array per model input, in the model's order.

    Raises:
        ModelError: TW-VERIFY-004, with one finding (pointer `/NAME`) per unknown or missing name
            and per wrong type or shape.
    """
    arrays = read_arrays(path, _CODE, "the file of inputs")
    wanted = {value.name: value for value in model.ir.graph.inputs if value.name}
    findings = [
        Finding(_CODE, f"the model has no input {name!r}; it has {', '.join(wanted)}", f"/{name}",
                None, list[Detail](wanted), name)
        for name in arrays
        if name not in wanted
    ]  # fmt: skip
    for name, value in wanted.items():
        shape = static_shape(value)
        dtype = None if value.dtype is None else np.dtype(value.dtype.numpy())
        want = f"{dtype}{'' if shape is None else list(shape)}"
        if name not in arrays:
            findings.append(
                Finding(_CODE, f"no array for input {name!r}, {want}", f"/{name}", None, want)
            )
            continue
        array = arrays[name]
        if array.dtype != dtype or (shape is not None and array.shape != shape):
            have = f"{array.dtype}{list(array.shape)}"
            findings.append(
                Finding(_CODE, f"input {name!r} must be {want}, got {have}", f"/{name}", None,
                        want, have)
            )  # fmt: skip
    refuse_all(_CODE, findings)
    return {name: arrays[name] for name in wanted}


def other_inputs(model: OnnxModel, inputs: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Inputs unlike `inputs`, as far as that is safe: what is not a float may be a shape, an index
    or a count that the user has chosen, so that it changes only where there is no float."""
    drawn = seeded_inputs(model, seed)
    floats = [name for name, value in drawn.items() if value.dtype.kind in "fV"]
    return {**inputs, **{name: drawn[name] for name in floats}} if floats else drawn

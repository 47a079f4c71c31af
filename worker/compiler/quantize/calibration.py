"""Sample inputs from an .npz file, checked against a model's inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir

from worker.compiler.array_file import read_arrays
from worker.compiler.errors import Detail, Finding, ModelError
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.work import static_shape

Array = npt.NDArray[Any]

_NUMBERED = re.compile(r"(?P<name>.+):(?P<number>[0-9]{1,6})")


def load_calibration(path: Path, model: OnnxModel) -> tuple[Mapping[str, Array], ...]:
    """Batches of model inputs.

    Each input is given as one array of its shape (one batch), as one array with a leading axis of
    batches, or as arrays `name:0`, `name:1`, ... .  All inputs give the same number of batches,
    but an input given once is repeated.

    Raises:
        ModelError: TW-CAL-001 not an .npz of arrays, TW-CAL-002 unknown or missing names,
            TW-CAL-003 types, shapes or numbers of batches, TW-CAL-006 a NaN; all findings in one
            answer.

    Cost: the arrays are read once.
    """
    arrays = read_arrays(path, "TW-CAL-001", "the calibration file")
    inputs = {v.name: v for v in model.ir.graph.inputs if v.name}
    found = _by_input(arrays, inputs)
    findings: list[Finding] = []
    batches_of: dict[str, list[Array]] = {}
    for name, value in inputs.items():
        batches: list[Array] = []
        for key, array in found[name]:
            batches += _batches(key, array, value, findings)
        batches_of[name] = batches
    refuse_all("TW-CAL-003", findings)
    count = max((len(b) for b in batches_of.values()), default=0)
    for name, batches in batches_of.items():
        if len(batches) not in (1, count) or not batches:
            findings.append(
                _finding("TW-CAL-003", f"input {name!r} has {len(batches)} batches, others have"
                         f" {count}", name, count, len(batches))
            )  # fmt: skip
    refuse_all("TW-CAL-003", findings)
    return tuple(
        {name: b[k] if len(b) > 1 else b[0] for name, b in batches_of.items()} for k in range(count)
    )


def _by_input(
    arrays: Mapping[str, Array], inputs: Mapping[str, onnx_ir.Value]
) -> dict[str, list[tuple[str, Array]]]:
    """(key, array) of every input, numbered ones in order of their number."""
    numbered: dict[str, list[tuple[int, str]]] = {name: [] for name in inputs}
    findings: list[Finding] = []
    for key in arrays:
        match = _NUMBERED.fullmatch(key)
        if key in inputs:
            numbered[key].append((-1, key))
        elif match is not None and match["name"] in inputs:
            numbered[match["name"]].append((int(match["number"]), key))
        else:
            findings.append(
                _finding("TW-CAL-002", f"the model has no input {key!r}; it has"
                         f" {', '.join(inputs)}", key, list[Detail](inputs), key)
            )  # fmt: skip
    findings += [
        _finding("TW-CAL-002", f"no array for input {name!r}", name, name, list[Detail](arrays))
        for name, keys in numbered.items()
        if not keys
    ]
    refuse_all("TW-CAL-002", findings)
    return {name: [(key, arrays[key]) for _, key in sorted(k)] for name, k in numbered.items()}


def _batches(key: str, array: Array, value: onnx_ir.Value, findings: list[Finding]) -> list[Array]:
    """One array as batches of `value`; what is wrong with it goes to `findings`."""
    shape = static_shape(value)
    if array.dtype.kind == "f" and np.isnan(array).any():
        at = tuple(int(k) for k in np.argwhere(np.isnan(array))[0])
        findings.append(
            _finding("TW-CAL-006", f"{key!r} is not a number at {list(at)}", key, "numbers", "NaN")
        )
        return []
    wanted = None if value.dtype is None else np.dtype(value.dtype.numpy())
    if wanted is not None and array.dtype != wanted:
        findings.append(
            _finding("TW-CAL-003", f"{key!r} is {array.dtype}, the input is {wanted}", key,
                     str(wanted), str(array.dtype))
        )  # fmt: skip
        return []
    if shape is None or array.shape == shape:
        return [array]
    if array.ndim == len(shape) + 1 and array.shape[1:] == shape and array.shape[0] > 0:
        return list(array)
    findings.append(
        _finding("TW-CAL-003", f"{key!r} has shape {list(array.shape)}, the input is"
                 f" {list(shape)}, or [samples, {', '.join(map(str, shape))}]", key,
                 list[Detail](shape), list[Detail](array.shape))
    )  # fmt: skip
    return []


def _finding(code: str, message: str, key: str, allowed: Detail, actual: Detail) -> Finding:
    return Finding(code, message, f"/{key}", None, allowed, actual)


def refuse_all(code: str, findings: list[Finding]) -> None:
    """Raise ModelError with every finding, the first one's figures in front; nothing if empty."""
    if findings:
        first = findings[0]
        alone = {finding.code for finding in findings} == {first.code}
        raise ModelError(
            first.code if alone else code, first.message, pointer=first.pointer,
            limit=first.allowed, actual=first.actual, findings=tuple(findings),
        )  # fmt: skip

"""The reference: ONNX Runtime on the user's original file, without graph optimisations."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import CompilerError
from worker.compiler.frontend.model import OnnxModel

Array = npt.NDArray[Any]


def reference_outputs(
    path: Path, model: OnnxModel, inputs: Mapping[str, Array], threads: int = 2
) -> dict[str, Array]:
    """Outputs by name.

    A zip bundle (already checked when it was loaded) is unpacked into a temporary folder first.

    Raises:
        CompilerError: TW-VERIFY-003 with ONNX Runtime's own words.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with tempfile.TemporaryDirectory() as folder:
        source = _model_file(path, Path(folder))
        try:
            session = onnxruntime.InferenceSession(
                str(source), options, providers=["CPUExecutionProvider"]
            )
            names = [output.name for output in session.get_outputs()]
            wanted = {value.name for value in session.get_inputs()}
            feeds = {n: _fed(v) for n, v in inputs.items() if n in wanted}
            results = session.run(names, feeds)
        except Exception as error:  # noqa: BLE001 - onnxruntime raises its own types from C++
            text = " ".join(str(error).split())[:400]
            raise CompilerError(
                "TW-VERIFY-003", f"ONNX Runtime cannot run the original model: {text}"
            ) from error
    del model
    return {n: np.asarray(v) for n, v in zip(names, results, strict=True)}


def _fed(value: Array) -> Array:
    return value


def _model_file(path: Path, folder: Path) -> Path:
    if not zipfile.is_zipfile(path):
        return path
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return next(iter(sorted(folder.rglob("*.onnx"))))

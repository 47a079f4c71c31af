"""The reference: ONNX Runtime on the user's original file, without graph optimisations."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import CompilerError
from worker.compiler.frontend.bundle_files import model_name, open_model_file
from worker.compiler.frontend.limits import Limits

Array = npt.NDArray[Any]


def reference_outputs(
    path: Path, inputs: Mapping[str, Array], extra: Sequence[str] = ()
) -> tuple[dict[str, Array], dict[str, Array]]:
    """(outputs, values of the `extra` tensors), by name.

    Extra names that the original graph does not have (simplification renamed them) are left out.
    A zip bundle (already checked when it was loaded) is unpacked into a temporary folder first.

    Raises:
        CompilerError: TW-VERIFY-003 with ONNX Runtime's own words.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # One thread, as host parts have: ScatterND loses updates on several, so that the same job would
    # pass and fail by turns (measured: 50 results in 50 runs of a million elements on two threads).
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with tempfile.TemporaryDirectory() as folder:
        source = _model_file(path, Path(folder))
        try:
            inner: list[str] = []
            if extra:
                source, inner = _with_outputs(source, extra, Path(folder))
            session = onnxruntime.InferenceSession(
                str(source), options, providers=["CPUExecutionProvider"]
            )
            names = [output.name for output in session.get_outputs()]
            wanted = {value.name for value in session.get_inputs()}
            feeds = {n: _fed(v) for n, v in inputs.items() if n in wanted}
            results = session.run(names, feeds)
        except Exception as error:  # onnxruntime raises its own types from C++
            text = " ".join(str(error).split())[:400]
            raise CompilerError(
                "TW-VERIFY-003", f"ONNX Runtime cannot run the original model: {text}"
            ) from error
    found = {n: np.asarray(v) for n, v in zip(names, results, strict=True)}
    return (
        {n: v for n, v in found.items() if n not in inner},
        {n: found[n] for n in extra if n in found},
    )


def _with_outputs(path: Path, names: Sequence[str], folder: Path) -> tuple[Path, list[str]]:
    """The model with more graph outputs, and which of `names` were added.

    It is a file in `folder`, where a bundle's external data lie: ONNX Runtime then holds the only
    copy of the weights.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    outputs = {value.name for value in model.graph.output}
    made = {name for node in model.graph.node for name in node.output}
    added = [name for name in names if name in made and name not in outputs]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in added)
    target = folder / f"{path.stem}.more_outputs.onnx"
    onnx.save(model, target)
    return target, added


def _fed(value: Array) -> Array:
    return value


def _model_file(path: Path, folder: Path) -> Path:
    """The model as a file ONNX Runtime can open; a bundle's members are written into `folder`.

    Goes through the front end's own bundle reader, which has refused unsafe names and sizes.
    """
    if not zipfile.is_zipfile(path):
        return path
    members = open_model_file(path, Limits()).members
    for name, member in members.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(member.content())
    return folder / model_name(tuple(members))

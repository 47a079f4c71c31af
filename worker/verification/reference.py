"""The reference: ONNX Runtime on the user's original file, without graph optimisations."""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import CompilerError
from worker.compiler.frontend.bundle_files import model_name, open_model_file
from worker.compiler.frontend.edges import NARROW_INTEGERS, recast_edges
from worker.compiler.frontend.exact_products import may_have_products, multiply_exactly
from worker.compiler.frontend.limits import Limits
from worker.verification.definitions import by_definition
from worker.verification.float64 import FORCED, in_float64

Array = npt.NDArray[Any]
_FLOAT32 = 1
_FOREIGN = dict.fromkeys((16, 17, 18, 19, 20, *NARROW_INTEGERS), _FLOAT32)
"""ONNX element types that numpy has not: bfloat16, the 8-bit floats, 4- and 2-bit integers."""
_FOREIGN_TYPE = re.compile(r"tensor\((bfloat16|float8e[45].*|u?int[24])\)")
"""The same as ONNX Runtime calls them."""


@dataclass(frozen=True, slots=True)
class Float64Values:
    """What a model gives when it computes in float64."""

    values: Mapping[str, Array]
    kept: int
    """Nodes that computed in the model's own types all the same."""


def reference_outputs(
    path: Path, inputs: Mapping[str, Array], extra: Sequence[str] = ()
) -> tuple[dict[str, Array], dict[str, Array]]:
    """(outputs, values of the `extra` tensors), by name.

    Extra names that the original graph does not have (simplification renamed them) are left out.
    A zip bundle (already checked when it was loaded) is unpacked into a temporary folder first.

    Raises:
        CompilerError: TW-VERIFY-003 with ONNX Runtime's own words.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = _model_file(path, Path(folder))
        inner: list[str] = []
        if extra:
            source, inner = _with_outputs(source, extra, Path(folder))
        found = _run(source, inputs, Path(folder))
    return (
        {n: v for n, v in found.items() if n not in inner},
        {n: found[n] for n in extra if n in found},
    )


def float64_outputs(
    path: Path,
    inputs: Mapping[str, Array],
    names: Sequence[str],
    forced: Mapping[str, Array],
    forced_by: Mapping[str, Sequence[str]],
) -> Float64Values:
    """Values of `names` where the model computes in float64 (see `in_float64`).

    `forced` has values, by name, that nodes of the types in `forced_by` take as they are.

    Raises:
        NoFloat64: the model cannot be said in float64.
        CompilerError: TW-VERIFY-003, ONNX Runtime cannot run it in float64.
    """
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        source = _model_file(path, Path(folder))
        made = in_float64(onnx.load(source, load_external_data=False), names, forced_by)
        target = _beside(source, Path(folder), "float64")
        onnx.save(made.model, target)
        feeds = {**inputs, **{FORCED + name: value for name, value in forced.items()}}
        return Float64Values(_run(target, feeds, Path(folder)), made.kept)


def defined_outputs(
    path: Path, inputs: Mapping[str, Array], names: Sequence[str]
) -> dict[str, Array] | None:
    """Values of `names` where operators are what ONNX defines them by; None without such operators.

    Raises:
        CompilerError: TW-VERIFY-003, ONNX Runtime cannot run it so.
    """
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        source = _model_file(path, Path(folder))
        made = by_definition(onnx.load(source, load_external_data=False), names)
        if made is None:
            return None
        target = _beside(source, Path(folder), "defined")
        onnx.save(made, target)
        return _run(target, inputs, Path(folder))


def _run(source: Path, inputs: Mapping[str, Array], folder: Path) -> dict[str, Array]:
    """All outputs of a model file, by name; as float32 where numpy has no such type."""
    try:
        source = _exact(source, folder)
        session = _session(source)
        edges = (*session.get_inputs(), *session.get_outputs())
        if any(_FOREIGN_TYPE.fullmatch(value.type) for value in edges):
            return _run(_with_numpy_edges(source, folder), inputs, folder)
        names = [output.name for output in session.get_outputs()]
        wanted = {value.name for value in session.get_inputs()}
        feeds = {n: _numbers(v) for n, v in inputs.items() if n in wanted}
        results = session.run(names, feeds)
    except Exception as error:  # onnxruntime raises its own types from C++
        text = " ".join(str(error).split())[:400]
        raise CompilerError(
            "TW-VERIFY-003", f"ONNX Runtime cannot run the original model: {text}"
        ) from error
    return {n: np.asarray(v) for n, v in zip(names, results, strict=True)}


def _session(source: Path) -> Any:
    """ONNX Runtime on a file: no optimisations, one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # One thread, as host parts have: ScatterND loses updates on several, so that the same job would
    # pass and fail by turns (measured: 50 results in 50 runs of a million elements on two threads).
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def reference_refusal(path: Path) -> str | None:
    """Why no reference can run a model, before anything is compiled; None when one can load it.

    Cost: ONNX Runtime's own loading; nothing runs.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            _session(_model_file(path, Path(folder)))
        except Exception as error:  # onnxruntime raises its own types from C++
            text = " ".join(str(error).split())[:400]
            return f"ONNX Runtime cannot run the original model: {text}"
    return None


def _with_outputs(path: Path, names: Sequence[str], folder: Path) -> tuple[Path, list[str]]:
    """The model with more graph outputs, and which of `names` were added.

    It is a file beside a bundle's external data: ONNX Runtime then holds the only copy of the
    weights.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    outputs = {value.name for value in model.graph.output}
    made = {name for node in model.graph.node for name in node.output}
    added = [name for name in names if name in made and name not in outputs]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in added)
    target = _beside(path, folder, "more_outputs")
    onnx.save(model, target)
    return target, added


def _with_numpy_edges(path: Path, folder: Path) -> Path:
    """The model with float32 inputs and outputs where numpy has no such type as the model's."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    recast_edges(model, _FOREIGN)
    target = _beside(path, folder, "numpy_edges")
    onnx.save(model, target)
    return target


def _exact(path: Path, folder: Path) -> Path:
    """The model where no processor saturates its products of 8-bit integers.

    Most have none: those stay as they are, and ONNX Runtime holds the only copy of the weights.
    """
    import onnx

    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        if not may_have_products(data):
            return path
    model = onnx.load(path, load_external_data=False)
    exact = multiply_exactly(model)
    target = _beside(path, folder, "exact")
    onnx.save(exact, target)
    return target


def _numbers(value: Array) -> Array:
    """An array of one of ml_dtypes' types as float32, which holds every value of each exactly."""
    return value.astype(np.float32) if value.dtype.kind == "V" else value


def _beside(source: Path, folder: Path, kind: str) -> Path:
    """Where a changed copy of a model finds the same external data; a bare model has none."""
    place = source.parent if source.is_relative_to(folder) else folder
    return place / f"{source.stem}.{kind}.onnx"


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

"""Mutated models through the whole job: compile, simulate, package, verify, report.

What compiles is judged twice: by the product's own verification on inputs of the case's seed, and
by running the bundle's model in ONNX Runtime beside the kernels on other inputs still.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import onnx

from benchmarks.hostile.child import Verdict
from benchmarks.hostile.protos import Rng, mutated
from benchmarks.onnx_coverage import node_cases
from benchmarks.zoo import skeleton_folder
from worker.compiler.cache import MemoryCache
from worker.compiler.errors import CompilerError, Detail, Mismatch
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.simplify import simplify
from worker.compiler.options import CompileOptions
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress
from worker.verification.budget import over_budget
from worker.verification.inputs import seeded_inputs

PRESETS = ("stcp920-inferred", "a100", "kapla-edge", "dpu-zu", "nvdla-large", "ethos-u65")
STRATEGIES = ("auto", "naive", "graphturbo")
HOST_PART_FAILED = "TW-RUN-003"
_PIECE = 1 << 20
_BASE_BYTES = 600_000
"""Larger models make cases that are slow without being hostile."""


@cache
def bases() -> tuple[tuple[str, onnx.ModelProto], ...]:
    """Models that are mutated: ONNX's node tests, and real small nets."""
    from service.cli.demo import EXAMPLE

    found = [(case.name, case.model) for case in node_cases()]
    real = [EXAMPLE, *sorted((skeleton_folder() / "third_party").glob("*.onnx"))]
    nets = [(p.stem, onnx.load(p)) for p in real if p.stat().st_size <= _BASE_BYTES]
    # As many cases on nets as on single nodes: a mutation inside a graph meets more of the road.
    return (*found, *nets * max(1, len(found) // len(nets)))


def case(rng: Rng) -> tuple[str, Callable[[Path], Verdict]]:
    """One mutated model, and how to judge it."""
    name, model = bases()[int(rng.integers(len(bases())))]
    raw, what = mutated(model, rng)
    preset = PRESETS[int(rng.integers(len(PRESETS)))]
    verify = ("none", "sample", "full")[int(rng.integers(3))]
    asked = {
        "strategy": STRATEGIES[int(rng.integers(len(STRATEGIES)))],
        "verify": verify,
        "seed": int(rng.integers(2**31)),
    }

    def judge(folder: Path) -> Verdict:
        return compiled(raw, {"preset": preset}, asked, folder)

    return f"{name}: {what}; {preset} {asked['strategy']} {verify}", judge


def compiled(
    raw: bytes, hardware: Mapping[str, Detail], asked: dict[str, object], folder: Path
) -> Verdict:
    """Run one job on `raw` and say how it ended."""
    path = folder / "model.onnx"
    path.write_bytes(raw)
    request = JobRequest(
        model_path=path,
        model_name="model.onnx",
        hardware=hardware,
        options=CompileOptions.from_json(asked),
        build_dir=folder / "build",
    )
    try:
        run_job(request, folder / "out", MemoryCache(), NoProgress())
    except Mismatch as error:
        return Verdict("wrong", error.code, error.message[:300])
    except CompilerError as error:
        is_ours = error.code.startswith("TW-INT") or (
            error.code == HOST_PART_FAILED and _runs(path, int(str(asked.get("seed", 0))))
        )
        return Verdict("internal" if is_ours else "refused", error.code, error.message[:300])
    report = json.loads((folder / "out" / "report.json").read_bytes())
    if any(row["code"] == "SYNTHETIC_CALIBRATION" for row in report["warnings"]):
        # Quantised by ranges of random inputs: how far that is off is the report's noise, no fault.
        return Verdict("accepted", "converted")
    why = over_budget(simplify(bind(load_model(path, Limits()), {})), path.stat().st_size)
    if why is not None:
        return Verdict("accepted", "over budget", why)  # running it takes what verifying would
    return _beside_onnxruntime(
        path, folder / "out" / "model.twb", int(str(asked.get("seed", 0))) + 1
    )


def _runs(path: Path, seed: int) -> bool:
    """Whether ONNX Runtime runs the whole model on what the job drew by `seed`: then a host part
    that it refuses is our making.

    A model whose results have other shapes than it declares is not: a compiled one keeps its word.
    """
    from benchmarks.hostile.rivals import reference

    try:
        drawn = seeded_inputs(simplify(bind(load_model(path, Limits()), {})), seed)
        _, outputs = reference(path, seed, drawn)
    except Exception:  # onnxruntime raises its own types from C++
        return False
    for value in onnx.load(path).graph.output:
        dims = value.type.tensor_type.shape.dim
        given = [d.dim_value if d.HasField("dim_value") else None for d in dims]
        made = outputs[value.name].shape
        if value.type.tensor_type.HasField("shape") and (
            len(given) != len(made)
            or any(a not in (None, b) for a, b in zip(given, made, strict=True))
        ):
            return False
    return True


def _beside_onnxruntime(path: Path, bundle: Path, seed: int) -> Verdict:
    """The bundle's results on fresh inputs against ONNX Runtime's, with no help of the product.

    The tolerance is wide (2 % of the largest value, and a step of an integer): what is looked for
    is a wrong program, not a rounding.  Where either is not finite, nothing is said, nor where a
    float is converted to an integer that cannot hold it.
    """
    from benchmarks.hostile.rivals import Refused, reference, results

    try:
        feeds, expected = reference(path, seed)
    except Exception as error:  # onnxruntime raises its own types from C++
        return Verdict("accepted", "no-reference", str(error)[:200])
    try:
        found = results(bundle, feeds)
    except Refused as error:
        return Verdict("refused", "run", str(error))
    nodes = onnx.load(path).graph.node
    converted = {
        name
        for node in nodes
        if node.op_type in ("Cast", "CastLike", "Pow")
        for name in node.output
        if name in expected and expected[name].dtype.kind == "i"
    }
    for name, want in expected.items():
        got = found.get(name)
        if got is None:
            return Verdict("wrong", "lost", f"output {name!r} is lost")
        if got.shape != want.shape:
            return Verdict("wrong", "shape", f"{name!r}: {got.shape}, expected {want.shape}")
        if want.dtype.kind not in "iufb" or not want.size:
            continue
        if name in converted:
            is_none = want == np.iinfo(want.dtype).min  # x86: what no integer holds
            got = np.where(is_none, want, got)
        error, scale = _apart(got.ravel(), want.ravel())
        if error > 0.02 * scale + (1.0 if want.dtype.kind in "iu" else 1e-5):
            return Verdict("wrong", "values", f"{name!r}: off by {error:.3g}, scale {scale:.3g}")
    return Verdict("accepted", "compared")


def _apart(got: np.ndarray, want: np.ndarray) -> tuple[float, float]:
    """(largest difference, largest wanted value); no difference where either is not finite.  Piece
    by piece: what comparing takes is no product's memory."""
    error = scale = 0.0
    for at in range(0, len(want), _PIECE):
        left, right = (array[at : at + _PIECE].astype(np.float64) for array in (got, want))
        if not (np.isfinite(left).all() and np.isfinite(right).all()):
            return 0.0, 0.0
        error = max(error, float(np.max(np.abs(left - right))))
        scale = max(scale, float(np.max(np.abs(right))))
    return error, scale

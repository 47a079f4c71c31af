"""Running a bundle as a payload: its host parts and its C are somebody else's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from worker.compiler.array_file import read_arrays
from worker.compiler.errors import CompilerError
from worker.compiler.package.build import find_compiler, has_fused_products
from worker.compiler.package.executor import RegionRunner
from worker.compiler.package.runtime import load_bundle
from worker.interpreter.run import Interpreter
from worker.job.arrays import write_npz
from worker.report.run_profile import profile_document
from worker.sandbox.answering import answer


def _interpreted(seed: int | None) -> Callable[[bytes], RegionRunner] | None:
    """What executes streams, in an order by the seed; None: kernels run."""
    if seed is None:
        return None
    try:
        is_fused = has_fused_products(find_compiler())
    except CompilerError:
        is_fused = True

    return lambda stream: Interpreter(stream, seed=seed, is_fused=is_fused).run_on


def run(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run the bundle on the inputs, write the outputs, give profiles and the kernels' origin."""
    arrays = read_arrays(Path(request["inputs"]), "TW-RUN-002", "the file of inputs")
    profile = bool(request["profile"])
    loaded = load_bundle(
        Path(request["bundle"]),
        Path(request["build_dir"]),
        poison=not profile,
        clock=perf_counter,
        trust=bool(request["trust"]),
        interpreted=_interpreted(request["interpret"]),
    )
    runner, profiles = loaded.runner, []
    results: dict[str, Any] = {}
    for _ in range(int(request["repeat"])):
        results = runner.run(arrays)
        found = runner.profile()
        if profile and found is not None:
            profiles.append(profile_document(found, runner.model.program))
    write_npz(Path(request["output"]), results)
    return {"origin": str(loaded.origin), "profiles": profiles}


if __name__ == "__main__":
    sys.exit(answer(run))

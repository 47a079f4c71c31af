"""Running a bundle as a payload: its host parts and its C are somebody else's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from worker.compiler.array_file import read_arrays
from worker.compiler.package.runtime import load_bundle
from worker.interpreter.descriptor import DESCRIPTOR as INTERPRETER
from worker.interpreter.engine import opened
from worker.job.arrays import write_npz
from worker.report.run_profile import profile_document
from worker.sandbox.answering import answer


def run(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run the bundle on the inputs, write the outputs; give profiles, the kernels' origin, and what
    regions ran on."""
    arrays = read_arrays(Path(request["inputs"]), "TW-RUN-002", "the file of inputs")
    profile = bool(request["profile"])
    build_dir, seed, engine = Path(request["build_dir"]), request["interpret"], request["engine"]
    interpreter = {} if seed is None else {INTERPRETER.name: opened(build_dir, int(seed))}
    loaded = load_bundle(
        Path(request["bundle"]),
        build_dir,
        poison=not profile,
        clock=perf_counter,
        trust=bool(request["trust"]),
        engine=engine if seed is None else INTERPRETER.name,
        opened=interpreter,
        link=Path(request["link"]) if request["link"] else None,
    )
    runner, profiles = loaded.runner, []
    results: dict[str, Any] = {}
    for _ in range(int(request["repeat"])):
        results = runner.run(arrays)
        found = runner.profile()
        if profile and found is not None:
            profiles.append(profile_document(found, runner.model.program))
    write_npz(Path(request["output"]), results)
    return {
        "origin": str(loaded.origin), "engines": list(loaded.engines), "profiles": profiles,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(answer(run))

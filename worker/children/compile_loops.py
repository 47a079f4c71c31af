"""Compile every loop into the folder that NUMBA_CACHE_DIR names; outside the sandbox.

It reads our own modules and the example that ships with them, nothing of a user's.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory

import numba
import numpy as np

from worker.compiler import jit
from worker.compiler.cache import NullCache
from worker.compiler.isa.loops import LOOP, STRIDE, Loops, frozen
from worker.compiler.isa.program import INSTRUCTION, Opcode, Stream, UnitProgram
from worker.compiler.machine import load_preset
from worker.compiler.memory.allocate import Request, allocate
from worker.compiler.options import CompileOptions
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress
from worker.simulator.run import simulate_unit


def main() -> None:
    """Run the example's compile, which has all loops but the search for addresses and the timing of
    programs with loops, and these."""
    jit.INTERPRETED_STEPS = 0  # as if it were large
    options = CompileOptions.from_json({"verify": "none", "effort": "fast"})
    example = files("service.cli.example") / "tiny_cnn.onnx"
    with TemporaryDirectory(prefix="tilewright-loops-") as folder, as_file(example) as model:
        work = Path(folder)
        request = JobRequest(model, "example", {"preset": "stcp920-inferred"}, options, work)
        run_job(request, work / "out", NullCache(), NoProgress())
    simulate_unit(_with_a_loop(), load_preset("stcp920-inferred"))
    allocate([Request(64, 1, frozenset({k})) for k in (1, 0)], enough_bytes=100)  # they cannot fit
    kept_in = getattr(numba.config, "CACHE_DIR", "")
    if kept_in:
        jit.save_objects(Path(kept_in))


def _with_a_loop() -> UnitProgram:
    """Does nothing nine times."""
    listed = np.zeros(2, dtype=np.int32)
    rows = np.zeros(1, dtype=INSTRUCTION)
    rows["opcode"], rows["resource"] = int(Opcode.SYNC), -1
    stream = Stream(0, load_preset("stcp920-inferred").engines[0].name)
    nothing = listed[:0]
    loops = Loops(
        np.array([(0, 1, 9)], dtype=LOOP), np.zeros((1, 1), dtype=STRIDE),
        nothing.reshape(0, 1), nothing.reshape(0, 1),
    )  # fmt: skip
    for array in (rows, listed, nothing):
        array.setflags(write=False)
    return UnitProgram(
        "", (), (), (stream,), (), ("0",), rows, listed, nothing, listed, nothing, 0, frozen(loops)
    )


if __name__ == "__main__":
    main()

"""Compile every loop into the folder that NUMBA_CACHE_DIR names; outside the sandbox.

It reads our own modules and the example that ships with them, nothing of a user's.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from worker.compiler import jit
from worker.compiler.cache import NullCache
from worker.compiler.cost.row_stationary import least_moved
from worker.compiler.isa.loops import LOOP, NO_LOOPS, STRIDE, Loops, frozen
from worker.compiler.isa.program import INSTRUCTION, Opcode, Resource, Stream, UnitProgram
from worker.compiler.machine import load_preset
from worker.compiler.memory.allocate import Request, allocate
from worker.compiler.options import CompileOptions
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress
from worker.simulator.run import simulate_unit


def main() -> None:
    """Run the example's compile, which has all loops but the search for addresses and the timing of
    programs with loops and of those out of order, and these."""
    jit.INTERPRETED_STEPS = 0  # as if it were large
    options = CompileOptions.from_json({"verify": "none", "effort": "fast"})
    example = files("service.cli.example") / "tiny_cnn.onnx"
    with TemporaryDirectory(prefix="tilewright-loops-") as folder, as_file(example) as model:
        work = Path(folder)
        request = JobRequest(model, "example", {"preset": "stcp920-inferred"}, options, work)
        run_job(request, work / "out", NullCache(), NoProgress())
    jit.compiled(least_moved)(np.ones(18, np.int64))  # no array of the example keeps rows
    for trip in (0, 9):
        simulate_unit(_out_of_order(trip), load_preset("stcp920-inferred"))
    allocate([Request(64, 1, frozenset({k})) for k in (1, 0)], enough_bytes=100)  # they cannot fit


def _out_of_order(trip: int) -> UnitProgram:
    """A transfer that waits for another core stands in front of one that is ready before it; both
    take the same port.  With a trip, in a loop."""
    machine = load_preset("stcp920-inferred")
    rows = np.zeros(3, dtype=INSTRUCTION)
    rows["opcode"] = [int(Opcode.COMPUTE), int(Opcode.LOAD), int(Opcode.LOAD)]
    rows["stream"], rows["resource"], rows["op"] = np.arange(3), -1, -1
    rows["cycles"][0], rows["bytes"][1:], rows["resource"][1:, 0] = 10, 8, 0
    streams = tuple(Stream(core, machine.engines[0].name) for core in range(3))
    port = Resource(machine.home.name, 0, "read", 8.0, machine.home.half_duplex)
    token = np.zeros(1, dtype=np.int32)
    waits, signals = (np.array(part, dtype=np.int32) for part in ([0, 0, 1, 1], [0, 1, 1, 1]))
    loops = NO_LOOPS
    if trip:
        still = np.zeros((1, 1), dtype=np.int32)
        loops = frozen(
            Loops(np.array([(0, 3, trip)], LOOP), np.zeros((3, 1), STRIDE), still, still)
        )
    for array in (rows, token, waits, signals):
        array.setflags(write=False)
    return UnitProgram(
        "", (), (), streams, (port,), ("0",), rows, waits, token, signals, token, 1, loops
    )


if __name__ == "__main__":
    main()

"""Compile every loop into the folder that NUMBA_CACHE_DIR names; outside the sandbox.

It reads our own modules and the example that ships with them, nothing of a user's.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory

from worker.compiler import jit
from worker.compiler.cache import NullCache
from worker.compiler.memory.allocate import Request, allocate
from worker.compiler.options import CompileOptions
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress


def main() -> None:
    """Run the example's compile, which has all loops but the search for addresses, and that."""
    jit.INTERPRETED_STEPS = 0  # as if it were large
    options = CompileOptions.from_json({"verify": "none", "effort": "fast"})
    example = files("service.cli.example") / "tiny_cnn.onnx"
    with TemporaryDirectory(prefix="tilewright-loops-") as folder, as_file(example) as model:
        work = Path(folder)
        request = JobRequest(model, "example", {"preset": "stcp920-inferred"}, options, work)
        run_job(request, work / "out", NullCache(), NoProgress())
    allocate([Request(64, 1, frozenset({k})) for k in (1, 0)], enough_bytes=100)  # they cannot fit


if __name__ == "__main__":
    main()

"""Seconds of operators in ONNX Runtime on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from worker.host_rates.operators import HostOperator

FEWEST_RUNS = 7
WARM_RUNS = 2
SPEND_S = 0.15
"""Of each operator, at least: short ones are run until this is over."""


@dataclass(frozen=True, slots=True)
class Timing:
    """An operator, its work and its fastest run."""

    operator: HostOperator
    flops: int
    num_bytes: int
    seconds: float


def available_threads() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def busy_with() -> float:
    """Programs that ran on this machine in the last minute, in the mean."""
    return os.getloadavg()[0]


def runtime() -> str:
    """What runs the operators, with its version."""
    import onnxruntime

    return f"ONNX Runtime {onnxruntime.__version__}"


def timings(operators: Sequence[HostOperator], threads: int) -> Iterator[Timing]:
    """Measure one after the other.

    The fastest of several runs counts, as other programs can only make one slower; whoever wants a
    loaded host's rates measures under that load.

    Cost: about `SPEND_S` each.
    """
    for operator in operators:
        flops, num_bytes = operator.work()
        session = _session(operator, threads)
        feeds = operator.feeds()
        yield Timing(operator, flops, num_bytes, fastest(partial(session.run, None, feeds)))


def fastest(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest run, after two that are not counted."""
    for _ in range(WARM_RUNS):
        call()
    best, runs, begin = float("inf"), 0, clock()
    now = begin
    while runs < FEWEST_RUNS or now - begin < SPEND_S:
        call()
        runs, before, now = runs + 1, now, clock()
        best = min(best, now - before)
    return best


def _session(operator: HostOperator, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        operator.model().SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

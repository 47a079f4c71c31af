"""Planned addresses are real: kernels run in arenas of the machine's sizes, poisoned before use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lower_toys as toys
import numpy as np
import numpy.typing as npt
import pytest
from kernel_runs import check_kernel

from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule

Case = tuple[Schedule, Machine]
CASES: dict[str, Callable[[], Case]] = {
    "naive": lambda: (toys.naive_matmul(10, 7, 9, (2, 3, 4), 2, 3), toys.flat_machine()),
    "clusters": lambda: (toys.cluster_matmul(2, 2, 4), toys.cluster_machine()),
    "shared": lambda: (toys.fused_rows(7, 5, 2, 1), toys.flat_machine(2, 2 * 5 * 4 * 2)),
    "private": lambda: (toys.private_rows(15, 4, 2, 4, 2), toys.cluster_machine()),
    "staged": lambda: (toys.in_place(7, 4, 2), toys.flat_machine()),
    "lanes": lambda: (toys.laned(7, 8, 4), toys.flat_machine()),
    "gather": lambda: (toys.gather(10, 8, 50, 4), toys.flat_machine()),
    "pipe": lambda: (toys.piped(7, 4, 2, 2, "LLB", 2), toys.cluster_machine()),
    "skipping": lambda: (toys.skipping(7, 4, 2, (2, 1), "LLB"), toys.cluster_machine(1, 3)),
}


def small_integers(schedule: Schedule) -> dict[str, npt.NDArray[np.generic]]:
    """Inputs whose sums are exact in any order; indices stay inside the smallest table."""
    generator = np.random.default_rng(7)
    graph = schedule.graph
    return {
        name: generator.integers(0 if graph.tensors[name].dtype is DType.I64 else -3, 4,
                                 graph.tensors[name].shape)
        .astype(graph.tensors[name].dtype.numpy)
        for name in (*graph.inputs, *graph.constants)
    }  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_kernel_in_planned_arenas(name: str, tmp_path: Path) -> None:
    schedule, machine = CASES[name]()
    check_kernel(schedule, machine, small_integers(schedule), tmp_path, orders=12)

"""Single operators that the searches are given, as problems on a machine."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.operator_bounds import batched
from benchmarks.searches.page import SMALL
from benchmarks.searches.problem import Problem, problem_of
from worker.compiler.errors import Shortfall
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Machine
from worker.compiler.options import Objective
from worker.compiler.strategies.naive.tilings import layer_of
from worker.validation.figures import Conv, Gemm
from worker.validation.operators import graph_of

PRODUCTS = (
    (1, 4096, 4096), (8, 768, 3072), (64, 3072, 768), (512, 768, 768), (1024, 1024, 1024),
)  # fmt: skip
BATCHED = ((12, 128, 128, 64),)
CONVS = (
    # groups, in and out of each, size, kernel, stride, pad
    (1, 3, 64, 224, 7, 2, 3), (1, 64, 64, 56, 3, 1, 1), (1, 128, 128, 28, 3, 1, 1),
    (1, 512, 512, 7, 3, 1, 1), (1, 256, 64, 56, 1, 1, 0), (1, 1024, 2048, 14, 1, 2, 0),
    (144, 1, 1, 56, 3, 1, 1), (960, 1, 1, 7, 3, 1, 1),
)  # fmt: skip
SMALL_PRODUCTS = ((16, 24, 32), (1, 48, 64))
SMALL_CONVS = ((1, 4, 8, 6, 3, 1, 1),)
"""On one scratchpad their spaces are looked at one by one."""
BY_ENERGY = ("64x3072x768", "conv 128-128 28 3x3/1", "conv 256-64 56 1x1/1")
FORMATS = (DType.F16, DType.I8)
"""The first that the machine's array takes."""


def graphs(dtype: DType) -> Iterator[tuple[str, Graph]]:
    """(name, graph) of every operator, large ones first."""
    for m, n, k in PRODUCTS:
        yield f"{m}x{n}x{k}", graph_of(Gemm(m=m, n=n, k=k, dtype=dtype))
    for batch, m, n, k in BATCHED:
        yield f"{batch} x {m}x{n}x{k}", batched(batch, m, n, k, dtype)
    yield from _convolutions(CONVS, dtype)
    for m, n, k in SMALL_PRODUCTS:
        yield f"{SMALL}{m}x{n}x{k}", graph_of(Gemm(m=m, n=n, k=k, dtype=dtype))
    for name, graph in _convolutions(SMALL_CONVS, dtype):
        yield f"{SMALL}{name}", graph


def _convolutions(shapes: tuple[tuple[int, ...], ...], dtype: DType) -> Iterator[tuple[str, Graph]]:
    for groups, ins, outs, size, kernel, stride, pad in shapes:
        work = Conv(
            batch=1, groups=groups, in_channels=ins, out_channels=outs, size=size, kernel=kernel,
            stride=stride, pad=pad, dtype=dtype,
        )  # fmt: skip
        kind = f"conv {ins}-{outs}" if groups == 1 else f"depthwise {groups}"
        yield f"{kind} {size} {kernel}x{kernel}/{stride}", graph_of(work)


def problems(machine: Machine) -> Iterator[tuple[str, Problem]]:
    """(operator, problem) of every operator by cycles, then of some by energy."""
    found = list(graphs(_format(machine)))
    for name, graph in found:
        yield name, problem_of(f"{name} on {machine.name}", graph, machine)
    for name, graph in found:
        if name in BY_ENERGY:
            said = f"{name} by energy"
            yield said, problem_of(f"{said} on {machine.name}", graph, machine, Objective.ENERGY)


def _format(machine: Machine) -> DType:
    for dtype in FORMATS:
        layer = layer_of(graph_of(Gemm(m=64, n=64, k=64, dtype=dtype)), machine)
        if not isinstance(layer, Shortfall) and layer.engine.array:
            return dtype
    return FORMATS[0]

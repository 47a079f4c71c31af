"""Rules about how fast engines are: rates against arrays.

A rate that is left out is none (decision 0041), so what is promised elsewhere has to agree with
those that are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from worker.compiler.machine.lint.targets import COMPUTE
from worker.compiler.machine.lint.view import Defect, SpecReader

_MOVING = ("dma_in", "dma_out")
_MACS_PER_CELL = 64
"""Of the narrowest type in one cell: 16 x 16 cells of Ascend's cube, 16 deep, do 8192 (32 each)."""


def rates_of_compute_engines(view: SpecReader) -> Iterator[Defect]:
    for engine in view.items("/engines"):
        kind = view.text(f"{engine}/kind")
        rates = view.keys(f"{engine}/macs_per_cycle")
        is_fixed = kind != "matrix" and view.keys(f"{engine}/output_stage")
        if kind in COMPUTE and not rates and not is_fixed:
            beside = "" if kind == "matrix" else ", here or of an output stage"
            yield Defect(
                f"{engine}/macs_per_cycle",
                f"a {kind} engine needs a rate for at least one dtype{beside}",
                "a mapping of dtypes to rates > 0", None,
            )  # fmt: skip
        if kind in _MOVING and rates:
            yield Defect(
                f"{engine}/macs_per_cycle", "a DMA engine computes nothing: remove its rates",
                "absent", ", ".join(rates),
            )  # fmt: skip
        best, _ = _fastest(view, engine)
        array = _array(view, engine)
        cells = prod(array)
        if kind == "matrix" and array and best > _MACS_PER_CELL * cells:
            yield Defect(
                f"{engine}/array", f"{cells} cells cannot do {best:g} operations per cycle",
                f"at least {best / _MACS_PER_CELL:g} cells", cells,
            )  # fmt: skip


def special_rates_are_read(view: SpecReader) -> Iterator[Defect]:
    for engine in view.items("/engines"):
        kind = view.text(f"{engine}/kind")
        given = view.number(f"{engine}/special_ops_per_cycle")
        if given and kind in ("matrix", *_MOVING):
            yield Defect(
                f"{engine}/special_ops_per_cycle",
                f"a {kind} engine computes no exponentials or divisions: nothing reads this rate",
                "absent, or on a vector or scalar engine", given,
            )  # fmt: skip


def stages_of_vector_engines(view: SpecReader) -> Iterator[Defect]:
    for engine in view.items("/engines"):
        kind, stage = view.text(f"{engine}/kind"), f"{engine}/output_stage"
        operations = view.keys(stage)
        if operations and kind in ("matrix", *_MOVING):
            yield Defect(
                stage, f"the output stage of a {kind} engine is never asked: operators behind an "
                "array run on a vector or scalar engine", "absent, or on such an engine",
                ", ".join(operations),
            )  # fmt: skip
        for name in operations:
            if not view.keys(f"{stage}/{name}"):
                yield Defect(
                    f"{stage}/{name}", f"the stage has {name} in no number format",
                    "a mapping of dtypes to elements per cycle > 0", None,
                )  # fmt: skip


def _fastest(view: SpecReader, engine: str) -> tuple[float, str]:
    """(rate, dtype) of an engine's fastest format; 0 without any."""
    rates = [
        (view.number(f"{engine}/macs_per_cycle/{dtype}") or 0.0, dtype)
        for dtype in view.keys(f"{engine}/macs_per_cycle")
    ]
    return max(rates, default=(0.0, ""))


def _array(view: SpecReader, engine: str) -> tuple[int, ...]:
    return _whole_numbers(view, f"{engine}/array")


def _whole_numbers(view: SpecReader, pointer: str) -> tuple[int, ...]:
    """A list of integers >= 1; empty when one is not."""
    found = [view.number(item) for item in view.items(pointer)]
    return tuple(int(n) for n in found if n) if all(n and n >= 1 for n in found) else ()

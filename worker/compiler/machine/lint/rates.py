"""Rules about how fast engines are: rates against arrays, instructions against both.

A rate that is left out is none (decision 0041), so what is promised elsewhere has to agree with
those that are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, prod

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


def intrinsic_extents(view: SpecReader) -> Iterator[Defect]:
    for engine in view.items("/engines"):
        for intrinsic in view.items(f"{engine}/intrinsics"):
            num = len(list(view.items(f"{intrinsic}/extents")))
            if view.text(f"{intrinsic}/op") == "matmul" and num != 3:
                yield Defect(
                    f"{intrinsic}/extents", "a matmul intrinsic has the extents m, n, k",
                    "three extents", num,
                )  # fmt: skip


def intrinsics_keep_the_rate(view: SpecReader) -> Iterator[Defect]:
    """An instruction does not do more per cycle than its engine's fastest format.

    Nor than the array: a matmul fills the lanes that its extents reach, the others idle.
    """
    for engine in view.items("/engines"):
        best, dtype = _fastest(view, engine)
        array = _array(view, engine)
        for intrinsic in view.items(f"{engine}/intrinsics"):
            extents = _whole_numbers(view, f"{intrinsic}/extents")
            cycles = view.number(f"{intrinsic}/cycles")
            if not best or not extents or not cycles or cycles < 1:
                continue
            done = prod(extents)
            keeps_sums = view.choice(f"{engine}/dataflow/stationary") == "output"
            padded = _padded(view.text(f"{intrinsic}/op"), extents, array, keeps_sums=keeps_sums)
            if done > best * cycles:
                yield Defect(
                    f"{intrinsic}/cycles",
                    f"{done} operations in {cycles:g} cycles are {done / cycles:g} per cycle, but "
                    f"the engine does {best:g} in {dtype}, its fastest format",
                    f">= {ceil(done / best)}, or a higher rate at {engine}/macs_per_cycle", cycles,
                )  # fmt: skip
            elif padded > best * cycles:
                shape = " x ".join(map(str, array))
                yield Defect(
                    f"{intrinsic}/cycles",
                    f"the extents leave lanes of the array of {shape} idle: filled up they are "
                    f"{padded} multiply-accumulates, {padded / cycles:g} per cycle, but the engine "
                    f"does {best:g} in {dtype}, its fastest format",
                    f">= {ceil(padded / best)}, or extents that fill the array", cycles,
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


def _padded(
    op: str | None, extents: Sequence[int], array: tuple[int, ...], *, keeps_sums: bool
) -> int:
    """Multiply-accumulates with those of idle lanes; as the cost model pads (m, n, k)."""
    if op != "matmul" or len(extents) != 3:
        return prod(extents)
    m, n, k = extents
    match array:
        case (rows, columns) if keeps_sums:
            return _up(m, rows) * _up(n, columns) * k
        case (rows, columns):
            return m * _up(n, columns) * _up(k, rows)
        case (high, wide, deep):
            return _up(m, high) * _up(n, wide) * _up(k, deep)
        case (columns,):
            return m * _up(n, columns) * k
        case _:
            return m * n * k


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple

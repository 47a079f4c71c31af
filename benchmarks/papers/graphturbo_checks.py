"""The criteria of our reproduction of GraphTurbo, judged on finished cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.papers.graphturbo_paper import (
    ASTITCH_MEAN,
    GPU,
    ROWS,
    SPEEDUP_MEAN,
    STEP_MEANS,
)
from benchmarks.papers.graphturbo_results import Results, mean, ratio
from benchmarks.papers.graphturbo_tables import lb_share

_T = TypeVar("_T")
_EXACT_TVM = frozenset("ABCDG")
_STEP_TVM = frozenset("EHI")
_DOWN_SAMPLING = "ACEGI"
"""Models the paper says gain most from ordered instances."""
_FLAT = "BHF"


@dataclass(frozen=True, slots=True)
class Judged:
    """One criterion."""

    criterion: str
    paper: str
    ours: str
    passed: bool | None
    """None: something it needs was not measured."""


def judge(
    name: str, paper: str, value: _T | None, show: Callable[[_T], str], holds: Callable[[_T], bool]
) -> Judged:
    """Judge `value`; None stands for something that was not measured."""
    if value is None:
        return Judged(name, paper, "not measured", None)
    return Judged(name, paper, show(value), holds(value))


def checks(results: Results) -> tuple[Judged, ...]:
    """All criteria of one preset, in the order of the tables."""
    return (
        *_samples(results), *_knee(results), *_speedups(results), *_scopes(results),
        *_ablation(results), *_compile_time(results),
    )  # fmt: skip


def _times(value: float) -> str:
    return f"{value:.2f}x"


def _within(low: float, high: float) -> Callable[[float], bool]:
    return lambda value: low <= value <= high


def _mean_of(values: list[float] | None) -> float | None:
    return None if values is None else mean(values)


def _samples(results: Results) -> Iterator[Judged]:
    for row in ROWS:
        if row.label in _EXACT_TVM | _STEP_TVM:
            factor = 1 if row.label in _EXACT_TVM else 2
            limit = "equal" if factor == 1 else "within a factor of 2"
            yield judge(
                f"{row.label}: n of TVM by capacity, {limit}", str(row.tvm_samples),
                results.tvm_samples(row), str, _near(row.tvm_samples, factor),
            )  # fmt: skip
    chosen = {row.label: results.full(row) for row in ROWS}
    found = [(row, n[1]) for row in ROWS if (n := chosen[row.label]) is not None]
    complete = len(found) == len(ROWS)
    exact = sum(n == row.samples for row, n in found)
    below = sum(n < row.tvm_samples for row, n in found)
    yield judge("n of GraphTurbo is equal on at least 5 of 10", "10",
                exact if complete else None, str, lambda n: n >= 5)  # fmt: skip
    yield judge("models with n of GraphTurbo below TVM's", "0",
                below if complete else None, str, lambda n: n == 0)  # fmt: skip


def _near(paper: int, factor: int) -> Callable[[int], bool]:
    return lambda ours: ours * factor >= paper and ours <= paper * factor


def _knee(results: Results) -> Iterator[Judged]:
    eight, sixteen = (results.batch_ms("B", "full", n, 64) for n in (8, 16))
    yield judge("Table 1: throughput at 8 per cluster over that at 16 is 1.2-2", "1.49x",
                ratio(sixteen, eight), _times, _within(1.2, 2))  # fmt: skip
    both = None if eight is None or sixteen is None else (eight, sixteen)
    yield judge(
        "Table 1: 64 sentences in 2 rounds of 8 are faster than in 1 of 16", "15.34 < 23.58 ms",
        both, lambda v: f"{v[0]:.2f}, {v[1]:.2f} ms", lambda v: v[0] < v[1],
    )  # fmt: skip


def _speedups(results: Results) -> Iterator[Judged]:
    for row in ROWS:
        yield judge(f"{row.label}: at least as fast as layerwise", "-", results.speedup(row),
                    _times, lambda v: v >= 1)  # fmt: skip
    yield judge("mean speedup over layerwise is 2-15", f"{SPEEDUP_MEAN:g}x",
                _mean_of(results.every(results.speedup)), _times, _within(2, 15))  # fmt: skip
    yield judge("mean speedup over AStitch is above 1", f"{ASTITCH_MEAN:g}x",
                _mean_of(results.every(results.over_astitch)), _times, lambda v: v > 1)  # fmt: skip
    for row in ROWS:
        if row.label in "AG":
            yield judge(f"{row.label}: AStitch is slower than TVM", "yes",
                        ratio(results.tvm(row), results.astitch(row)),
                        lambda v: f"{v:.2f}x of TVM's speed", lambda v: v < 1)  # fmt: skip


def _scopes(results: Results) -> Iterator[Judged]:
    for row in ROWS:
        cell = results.cell(row.label, "full", row.samples)
        base = results.cell(row.label, "layerwise", row.tvm_samples)
        yield judge(f"{row.label}: layerwise keeps all tensors in DDR", "all",
                    base and base["scopes"], lambda v: "/".join(map(str, v)),
                    lambda v: v[1:] == [0, 0])  # fmt: skip
        if row.label != "H":
            yield judge(f"{row.label}: at most 5 tensors in DDR", str(row.scopes[0]),
                        cell and cell["scopes"][0], str, lambda v: v <= 5)  # fmt: skip
        if row.label != "J":
            yield judge(f"{row.label}: at least 68 % of tensors in L1",
                        f"{lb_share(row.scopes):.0f} %",
                        None if cell is None else lb_share(cell["scopes"]),
                        lambda v: f"{v:.0f} %", lambda v: v >= 68)  # fmt: skip


def _ablation(results: Results) -> Iterator[Judged]:
    means = [_mean_of(results.over_tvm(variant)) for variant in ("full", "v3", "v2")]
    known = [m for m in means if m is not None]
    yield judge(
        "means over layerwise: full > v3 > v2 > 1", "yes", known if len(known) == 3 else None,
        lambda v: ", ".join(map(_times, v)), lambda v: v[0] > v[1] > v[2] > 1,
    )  # fmt: skip
    for name, low, high in (("v2 / TVM", 1.5, 6.0), ("v3 / v2", 1.2, 3.5), ("full / v3", 1.1, 2.5)):
        average = _mean_of(results.step(name))
        yield judge(f"mean of {name} is {low:g}-{high:g}", _times(STEP_MEANS[name]), average,
                    _times, _within(low, high))  # fmt: skip
    gains = results.step("v3 / v2")
    split = None
    if gains is not None:
        of = {row.label: gain for row, gain in zip(ROWS, gains, strict=True)}
        split = tuple(mean([of[k] for k in group]) for group in (_DOWN_SAMPLING, _FLAT))
    yield judge("down-sampling models (A C E G I) gain more from v3 than B, F, H", "yes", split,
                lambda v: ", ".join(map(_times, v)), lambda v: v[0] > v[1])  # fmt: skip


def _compile_time(results: Results) -> Iterator[Judged]:
    ratios = results.every(results.compile_ratio)
    worst = None if ratios is None else max(ratios)
    yield judge("compiling takes at most 5 times the layerwise flow", "3.35 at most",
                worst, lambda v: f"{v:.2f} at most", lambda v: v <= 5)  # fmt: skip


def gpu_checks(results: Results) -> tuple[Judged, ...]:
    """Table 5's criterion, per batch."""
    found = []
    for batch, paper in GPU.items():
        ours = results.gpu(batch)
        known = [v for k in ("TVM", "CUTLASS", "GraphTurbo") if (v := ours[k]) is not None]
        found.append(judge(
            f"a100, batch {batch}: TVM > CUTLASS >= GraphTurbo in ms",
            " > ".join(f"{v:g}" for v in paper), known if len(known) == 3 else None,
            lambda values: ", ".join(f"{v:.2f}" for v in values),
            lambda v: v[0] > v[1] >= v[2],
        ))  # fmt: skip
    return tuple(found)

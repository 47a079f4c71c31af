"""Finished cells of one preset, put together as the paper's quantities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, log

from benchmarks.cells import Row
from benchmarks.papers.graphturbo_cells import GPU_PRESET, PEAK
from benchmarks.papers.graphturbo_paper import CLUSTERS, ROWS, PaperRow


def mean(values: list[float]) -> float:
    """Arithmetic mean."""
    return sum(values) / len(values)


def geomean(values: list[float]) -> float:
    """Geometric mean of positive numbers."""
    return exp(sum(map(log, values)) / len(values))


@dataclass(frozen=True, slots=True)
class Results:
    """Cells by key, seen from one preset.  None stands for a cell that is missing or failed."""

    rows: Mapping[str, Row]
    preset: str

    def cell(self, label: str, variant: str, samples: int) -> Row | None:
        row = self.rows.get(f"{label} {self.preset} {variant} {samples}")
        return None if row is None or "failure" in row else row

    def batch_ms(self, label: str, variant: str, samples: int, batch: int) -> float | None:
        """Latency of `batch`: as many rounds of `samples` per cluster as it takes."""
        row = self.cell(label, variant, samples)
        rounds = -(-batch // (CLUSTERS * samples))
        return None if row is None else rounds * float(row["ms"])

    def at_own(self, row: PaperRow, variant: str) -> float | None:
        """Milliseconds of a variant at GraphTurbo's samples per cluster: one round."""
        return self.batch_ms(row.label, variant, row.samples, row.batch)

    def best(
        self, row: PaperRow, variant: str, samples: tuple[int, ...]
    ) -> tuple[float, int] | None:
        """(milliseconds, samples per cluster) of the fastest of several; more samples on a tie."""
        found = [(self.batch_ms(row.label, variant, n, row.batch), -n) for n in samples]
        known = [(ms, n) for ms, n in found if ms is not None]
        return (min(known)[0], -min(known)[1]) if known else None

    def tvm(self, row: PaperRow) -> float | None:
        """Milliseconds of the layer-wise baseline at TVM's own samples per cluster."""
        return self.batch_ms(row.label, "layerwise", row.tvm_samples, row.batch)

    def full(self, row: PaperRow) -> tuple[float, int] | None:
        return self.best(row, "full", (row.samples, max(1, row.samples // 2)))

    def astitch(self, row: PaperRow) -> float | None:
        found = self.best(row, "astitch", (row.tvm_samples, row.samples))
        return None if found is None else found[0]

    def tvm_samples(self, row: PaperRow) -> int | None:
        """TVM's samples per cluster by capacity."""
        peak = self.cell(row.label, PEAK, 1)
        return None if peak is None else int(peak["tvm_samples"])

    def speedup(self, row: PaperRow) -> float | None:
        """Of GraphTurbo over the layer-wise baseline, each at its own samples per cluster."""
        full = self.full(row)
        return ratio(self.tvm(row), None if full is None else full[0])

    def over_astitch(self, row: PaperRow) -> float | None:
        full = self.full(row)
        return ratio(self.astitch(row), None if full is None else full[0])

    def steps(self, row: PaperRow) -> dict[str, float | None]:
        """The ablation: each variant over the one before it."""
        tvm = self.tvm(row)
        v1, v2, v3, full = (self.at_own(row, v) for v in ("v1", "v2", "v3", "full"))
        return {
            "v1 / TVM": ratio(tvm, v1), "v2 / TVM": ratio(tvm, v2), "v3 / v2": ratio(v2, v3),
            "full / v3": ratio(v3, full),
            "layerwise, same samples": ratio(tvm, self.at_own(row, "layerwise")),
        }  # fmt: skip

    def step(self, name: str) -> list[float] | None:
        """One column of the ablation."""
        return self.every(lambda row: self.steps(row)[name])

    def over_tvm(self, variant: str) -> list[float] | None:
        """Speedups of a variant over the baseline."""
        return self.every(lambda row: ratio(self.tvm(row), self.at_own(row, variant)))

    def compile_ratio(self, row: PaperRow) -> float | None:
        full = self.cell(row.label, "full", row.samples)
        base = self.cell(row.label, "layerwise", row.samples)
        if full is None or base is None:
            return None
        return float(full["compile_s"]) / float(base["compile_s"])

    def gpu(self, batch: int) -> dict[str, float | None]:
        """Table 5: milliseconds by approach; pairs of layers are models of their own there."""
        seen = Results(self.rows, GPU_PRESET)

        def pairs(variant: str) -> float | None:
            parts = [seen.cell(f"T{k}", variant, batch) for k in (1, 2, 3, 4)]
            return None if None in parts else sum(p["ms"] for p in parts if p is not None)

        def whole(variant: str) -> float | None:
            row = seen.cell("T", variant, batch)
            return None if row is None else float(row["ms"])

        return {
            "TVM": whole("layerwise"), "CUTLASS": pairs("v2"), "GraphTurbo": pairs("v3"),
            "uncapped": whole("v3"),
        }  # fmt: skip

    def every(self, quantity: Callable[[PaperRow], float | None]) -> list[float] | None:
        """A quantity of all models; None when one of them was not measured."""
        found = [quantity(row) for row in ROWS]
        known = [value for value in found if value is not None]
        return known if len(known) == len(found) else None


def ratio(above: float | None, below: float | None) -> float | None:
    """above / below; None when either is unknown."""
    return None if above is None or below is None else above / below

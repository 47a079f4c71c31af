"""What became of a row: its ratio, and whether that is where the row says it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, log

from worker.validation.figures import Cause, Mean, Network, Row, Unit
from worker.validation.published import DRIFT


class Verdict(StrEnum):
    WITHIN = "within"
    """The ratio is in the band, and no miss is stated."""
    MISS = "misses, as stated"
    """It is not, by about as much as the row says."""
    OUTSIDE = "OUTSIDE"
    """Neither."""
    MET = "MET"
    """The row states a miss, and its band is reached: the statement is out of date."""
    NOT_RUN = "not run"

    @property
    def is_failure(self) -> bool:
        return self in (Verdict.OUTSIDE, Verdict.MET)


def verdict_of(ratio: float | None, band: tuple[float, float], miss: float | None) -> Verdict:
    """Whether a ratio is where its band, or the miss that is stated, says."""
    if ratio is None:
        return Verdict.NOT_RUN
    if band[0] <= ratio <= band[1]:
        return Verdict.WITHIN if miss is None else Verdict.MET
    if miss is not None and miss / DRIFT <= ratio <= miss * DRIFT:
        return Verdict.MISS
    return Verdict.OUTSIDE


@dataclass(frozen=True, slots=True)
class Measured:
    """Our figure of one row, in the row's unit."""

    figure: float
    how: str
    """The mapping, or the strategy and its kernels."""
    floor: float | None
    """A figure that no mapping (of the space, of the kernels) beats; None: of power there is none.
    """
    examined: str
    """How thorough the search for it was."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row and what was measured."""

    row: Row
    measured: Measured | None
    reason: str = ""
    """Why it was not measured."""

    @property
    def ratio(self) -> float | None:
        """Ours / published; of a rate published / ours, so that above one is slower always."""
        return None if self.measured is None else self._ratio_of(self.measured.figure)

    @property
    def floor_ratio(self) -> float | None:
        """The ratio that the best conceivable mapping would have: the rest is the search's."""
        floor = None if self.measured is None else self.measured.floor
        return None if floor is None else self._ratio_of(floor)

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.ratio, self.row.band, self.row.miss)

    @property
    def is_single(self) -> bool:
        """Whether the geometric mean counts it: the time of one operator."""
        return not isinstance(self.row.work, Network) and self.row.unit is not Unit.MW

    def sentence(self) -> str:
        """Row, ratio, band and causes in words: what a failing gate prints."""
        row = self.row
        if self.ratio is None:
            return f"{row.id}: not run, {self.reason}"
        return _sentence(row.id, self.ratio, row.band, row.miss, row.causes)

    def _ratio_of(self, figure: float) -> float:
        published = self.row.figure
        return published / figure if self.row.unit.is_rate else figure / published


@dataclass(frozen=True, slots=True)
class Validation:
    """All rows that were asked for, and the mean over the single operators."""

    outcomes: tuple[Outcome, ...]
    mean: Mean
    whole: bool
    """Every single operator of the file was asked for, so that the mean is the file's."""

    @property
    def geometric_mean(self) -> float | None:
        """Of the ratios of times of single operators; None where some are not there."""
        ratios = [o.ratio for o in self.outcomes if o.is_single and o.ratio is not None]
        return exp(sum(map(log, ratios)) / len(ratios)) if ratios and self.whole else None

    @property
    def mean_verdict(self) -> Verdict:
        return verdict_of(self.geometric_mean, self.mean.band, self.mean.miss)

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence for everything that is not where the file says; empty: the gate is open."""
        found = [o.sentence() for o in self.outcomes if o.verdict.is_failure]
        mean = self.geometric_mean
        if mean is not None and self.mean_verdict.is_failure:
            found.append(
                _sentence("geometric mean", mean, self.mean.band, self.mean.miss, self.mean.causes)
            )
        return tuple(found)


def _sentence(
    name: str, ratio: float, band: tuple[float, float], miss: float | None, causes: Sequence[Cause]
) -> str:
    stated = "" if miss is None else f", stated miss {miss:.3g}"
    verdict = verdict_of(ratio, band, miss)
    return (
        f"{name}: {verdict}: ratio {ratio:.3g}, band {band[0]:g} to {band[1]:g}{stated}; "
        f"causes: {', '.join(causes)}"
    )

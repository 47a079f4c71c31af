"""How many samples each cluster takes at a time, and how often it goes round, by analytic search.

The paper tunes this number by running the model (its section 5.1), and names that its first
limitation (section 7).  Here the cost of one round is predicted for every number that can win, so
nothing runs.  Its baseline takes the largest power of two whose activations fit the cluster's
buffer; that rule is `tvm_samples`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil


class Limit(StrEnum):
    """What a round waits for."""

    COMPUTE = "compute"
    WEIGHTS = "weights"
    EXCHANGE = "exchange"


@dataclass(frozen=True, slots=True)
class SampleCost:
    """One round: every cluster works on the same number of samples.

    The three cycle counts overlap each other; all are of the whole round.
    """

    compute_cycles: int
    """Of the busiest core."""
    weight_cycles: int
    """To bring every weight from home once."""
    exchange_cycles: int
    """To move what goes through the busiest cluster's global buffer."""
    spilled_bytes: int
    """Written to home and read back because nothing nearer had room; all clusters together."""
    fits: bool = True
    """Whether the samples can be held at all."""

    @property
    def limit(self) -> Limit:
        """The largest of the three; the first one listed on a tie."""
        return max(
            (Limit.COMPUTE, self.compute_cycles),
            (Limit.WEIGHTS, self.weight_cycles),
            (Limit.EXCHANGE, self.exchange_cycles),
            key=lambda part: part[1],
        )[0]


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One number of samples per cluster, judged."""

    samples: int
    iterations: int
    """Rounds that the batch takes."""
    cost: SampleCost
    round_cycles: int
    latency_cycles: int
    """Of the whole batch."""


@dataclass(frozen=True, slots=True)
class SampleChoice:
    """The number of samples per cluster for one batch, with everything it was chosen from."""

    batch: int
    clusters: int
    rows: tuple[SampleRow, ...]
    """Ascending in `samples`; only those that fit can be chosen, unless none does."""
    chosen: SampleRow

    @property
    def samples(self) -> int:
        return self.chosen.samples

    @property
    def iterations(self) -> int:
        return self.chosen.iterations

    @property
    def is_fallback(self) -> bool:
        """Not even one sample fits: the batch is looped over, one sample per cluster at a time."""
        return not self.chosen.cost.fits

    def explanation(self) -> str:
        """One sentence for the report: what was chosen, what limits it, and what came next."""
        row = self.chosen
        rounds = "1 round" if row.iterations == 1 else f"{row.iterations} rounds"
        text = (
            f"{row.samples} per cluster in {rounds}: {row.latency_cycles} cycles for"
            f" {self.batch}, limited by {row.cost.limit}"
        )
        if self.is_fallback:
            return f"{text}; not even 1 sample fits a cluster, so the batch is looped over"
        others = [r for r in self.rows if r.cost.fits and r.samples != row.samples]
        if not others:
            return f"{text}; nothing else fits"
        second = min(others, key=_preference)
        spilled = (
            f", spilling {second.cost.spilled_bytes} bytes" if second.cost.spilled_bytes else ""
        )
        return f"{text}; next {second.samples} with {second.latency_cycles} cycles{spilled}"


def tvm_samples(peak_bytes_per_sample: int, gb_bytes: int) -> int:
    """Samples per cluster of the layer-wise baseline: largest power of two that fits, at least 1.

    Where not even one sample fits, one is still taken, as the paper's BERT-512 shows (Table 2: 1,
    with 9 MiB live in 8 MiB), and the rest goes through home.

    Raises:
        ValueError: sizes that are not positive.
    """
    if peak_bytes_per_sample < 1 or gb_bytes < 1:
        raise ValueError(f"{peak_bytes_per_sample} bytes per sample in {gb_bytes} bytes")
    fitting = gb_bytes // peak_bytes_per_sample
    return 1 << (fitting.bit_length() - 1) if fitting else 1


def sample_candidates(batch: int, clusters: int) -> tuple[int, ...]:
    """Every number of samples per cluster that can be best, and the powers of two, ascending.

    For each number of rounds only the fewest samples that need no more rounds can win, as long as
    more samples never cost less: with p samples per cluster in all these are ceil(p / k), among
    them every divisor of p.  The powers of two are what the paper tries (its Conformer shows that
    they are not enough: 3).  About 2 sqrt(p) + log2(p) numbers.

    Raises:
        ValueError: no sample or no cluster.
    """
    if batch < 1 or clusters < 1:
        raise ValueError(f"a batch of {batch} on {clusters} clusters")
    share = -(-batch // clusters)
    best = {-(-share // rounds) for rounds in range(1, share + 1)}
    powers = {1 << k for k in range(share.bit_length())}
    return tuple(sorted(best | powers))


def choose_samples(
    batch: int,
    clusters: int,
    cost_of: Callable[[int], SampleCost],
    candidates: Sequence[int] | None = None,
    *,
    overhead_cycles: int = 0,
    home_bytes_per_cycle: float = float("inf"),
) -> SampleChoice:
    """Choose the samples per cluster with the least latency for the batch.

    A round takes max(compute, weights, exchange) + 2 * spilled / `home_bytes_per_cycle` +
    `overhead_cycles`, and there are ceil(batch / (clusters * n)) of them.  On equal latency the
    fewest spilled bytes win, then the fewest rounds, then the fewest samples.  If nothing fits, 1
    is chosen and marked as the fallback.

    Raises:
        ValueError: no sample, no cluster, no bandwidth, or a candidate below 1.

    Cost: one call of `cost_of` per candidate.
    """
    numbers = sorted({*(candidates or ()), 1} if candidates else sample_candidates(batch, clusters))
    if batch < 1 or clusters < 1 or numbers[0] < 1 or home_bytes_per_cycle <= 0:
        raise ValueError(
            f"a batch of {batch} on {clusters} clusters, {numbers[0]} at a time,"
            f" {home_bytes_per_cycle} bytes per cycle"
        )
    rows = tuple(
        _row(batch, clusters, n, cost_of(n), overhead_cycles, home_bytes_per_cycle)
        for n in numbers
    )  # fmt: skip
    fitting = [row for row in rows if row.cost.fits]
    chosen = min(fitting, key=_preference) if fitting else rows[0]
    return SampleChoice(batch, clusters, rows, chosen)


def _row(
    batch: int, clusters: int, samples: int, cost: SampleCost, overhead: int, bandwidth: float
) -> SampleRow:
    iterations = -(-batch // (clusters * samples))
    busy = max(cost.compute_cycles, cost.weight_cycles, cost.exchange_cycles)
    spill = ceil(2 * cost.spilled_bytes / bandwidth)
    round_cycles = busy + spill + overhead
    return SampleRow(samples, iterations, cost, round_cycles, iterations * round_cycles)


def _preference(row: SampleRow) -> tuple[int, int, int, int]:
    return (row.latency_cycles, row.cost.spilled_bytes, row.iterations, row.samples)

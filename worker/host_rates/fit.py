"""The host model's numbers from seconds of operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log
from statistics import geometric_mean

from worker.compiler.errors import CompilerError
from worker.host_rates.measure import Timing
from worker.host_rates.operators import Role

Work = tuple[int, int, float]
"""Flops, bytes and seconds without the invocation."""


@dataclass(frozen=True, slots=True)
class HostRates:
    """What is measured of a host; the fields of the same names in a spec.

    The rates are sustained ones of operators in practice, not peaks, so that a spec's `efficiency`
    is 1 beside them: the memory's peak is not what activations see that stay in caches, and small
    products do not reach the peak of arithmetic.
    """

    flops_per_s: float
    memory_bytes_per_s: float
    launch_overhead_s: float

    def seconds(self, flops: int, num_bytes: int) -> float:
        """A host part of one operator: invocation and roofline, as the simulator charges it."""
        work = max(flops / self.flops_per_s, num_bytes / self.memory_bytes_per_s)
        return self.launch_overhead_s + work


@dataclass(frozen=True, slots=True)
class Comparison:
    """An operator's seconds as the fitted model predicts them, over those measured."""

    timing: Timing
    predicted_s: float

    @property
    def ratio(self) -> float:
        """Below 1: the model is too fast."""
        return self.predicted_s / self.timing.seconds


def fit_host(timings: Sequence[Timing]) -> HostRates:
    """Rates that tell the fitted operators best: least squares of logarithms of predicted over
    measured work.  What is held out is not looked at.

    Exact: an operator is bound by arithmetic where its flops a byte exceed those of the host, so
    one of the cuts of the operators by that figure is the optimum's, and on either side of a cut
    the best rate is the geometric mean.  Of a host that none of them shows bound by one of the two,
    that rate is the least that it can be.

    Raises: CompilerError (TW-CLI-005) where an operator took no longer than an empty call, so that
    nothing can be said.

    Cost: the square of the operators.
    """
    launch = min(t.seconds for t in timings if t.operator.role is Role.CALL)
    works = sorted(
        (
            (t.flops, t.num_bytes, _net(t, launch))
            for t in timings
            if t.operator.role is Role.FITTED
        ),
        key=lambda work: work[0] / work[1],
    )
    candidates = [_of_cut(works, cut, launch) for cut in range(1, len(works))]
    return min(candidates, key=lambda rates: _error(works, rates))


def _of_cut(works: Sequence[Work], cut: int, launch: float) -> HostRates:
    """The best rates where the first `cut` operators are bound by memory, the others not."""
    return HostRates(
        geometric_mean([flops / seconds for flops, _, seconds in works[cut:]]),
        geometric_mean([num_bytes / seconds for _, num_bytes, seconds in works[:cut]]),
        launch,
    )


def _error(works: Sequence[Work], rates: HostRates) -> float:
    return sum(
        log((rates.seconds(flops, num_bytes) - rates.launch_overhead_s) / seconds) ** 2
        for flops, num_bytes, seconds in works
    )


def compared(timings: Iterable[Timing], rates: HostRates) -> list[Comparison]:
    """Every operator beside what the model says of it."""
    return [Comparison(t, rates.seconds(t.flops, t.num_bytes)) for t in timings]


def _net(timing: Timing, launch: float) -> float:
    """Seconds without the invocation."""
    net = timing.seconds - launch
    if net <= 0:
        raise CompilerError(
            "TW-CLI-005",
            f"{timing.operator.name} took {timing.seconds:.3g} s, no longer than an empty call"
            f" ({launch:.3g} s): other programs disturb the clock; measure again",
        )
    return net

"""The queue with many workers, simulated event by event with service times that were measured.

A worker claims an item, works on it, writes to the database as often as one was seen to, ends it,
and claims the next.  Beside that it renews its lease every ten seconds and runs the reconciler
every five, the API and the broker use what they were seen to use when there was nothing to do (the
broker as much for each worker), and for those who wait API and database look as often as they were
seen to: that passes with time, so it is none of what a job takes.
Each transaction needs processor time of the machine that database, API and broker
share, and waits for a disk; each job needs time of the API and the broker on the same processors.
Processors are shared in turns: who comes later is not starved, nobody is faster than the machine.

`shared`: workers run on the same processors as all else, as on the machine that was measured, and
wait for what jobs were seen to wait for there.  Without, each has a processor of its own, which
nobody else uses, and waits for nothing but the database's processor time: the most that so many
workers can ask of it, whatever else went on where one was measured.

What is not in it: locks on rows (claims skip what is locked), the network between machines, a
database that gets slower with its size, and one disk's limit of syncs, which the database shares
among concurrent commits.
"""

from __future__ import annotations

import heapq
import statistics
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

HEARTBEAT_S = 10.0
RECONCILE_S = 5.0
_LEAST_ROUNDS = 4
_JOBS_EACH = 40
_TURN_S = 0.01
"""How long a process has a processor before the next one has its turn."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one job, in seconds, as one worker was measured."""

    attempt_s: tuple[float, ...]
    """From claim to end, each as it was; jobs take them in turn."""
    cycle_s: float
    """From one claim to the next, on average."""
    worker_cpu_s: float
    """Of the worker and the processes it started."""
    database_cpu_s: float
    transactions: int
    api_cpu_s: float
    broker_cpu_s: float
    commit_s: float
    """A transaction that writes, seen by a client while nothing else went on."""
    reconcile_cpu_s: float
    """Of the database, for one round of one worker that has nothing to do."""
    idle_api: float
    """Processor seconds a second of the API that has nothing to do."""
    idle_broker: float
    """The same of the broker, for one worker."""
    watch: float
    """Of API and database while somebody waits for a job: they look once for all who do."""
    cores: int
    """Of the machine that was measured."""

    @property
    def around_cpu_s(self) -> float:
        """What a job takes of the machine that workers share."""
        return self.database_cpu_s + self.api_cpu_s + self.broker_cpu_s


def costs_of(row: dict[str, Any], cores: int) -> Costs:
    """From a measurement with one worker (`benchmarks.load.work`)."""
    jobs, idle = row["jobs"], row["idle"]
    count = jobs["jobs"]
    idle_of = {kind: used / idle["seconds"] for kind, used in idle["cpu_s"].items()}
    watch = row["watch"]

    def each(kind: str) -> float:
        passing = float(idle_of[kind] + watch[kind])
        return max(0.0, (jobs["cpu_s"][kind] - passing * jobs["seconds"]) / count)

    return Costs(
        attempt_s=tuple(jobs["attempt_s"]), cycle_s=jobs["span_s"] / count,
        worker_cpu_s=jobs["cpu_s"]["workers"] / count, database_cpu_s=each("database"),
        transactions=max(1, round(jobs["transactions"] / count)),
        api_cpu_s=each("api"), broker_cpu_s=each("broker"), commit_s=row["commit_s"],
        reconcile_cpu_s=RECONCILE_S * idle_of["database"], idle_api=idle_of["api"],
        idle_broker=idle_of["broker"], watch=sum(watch.values()), cores=cores,
    )  # fmt: skip


@dataclass(slots=True)
class Processors:
    """So many processors, given in turns to those who want them."""

    count: int
    queue: deque[tuple[Process, float]] = field(default_factory=deque)
    busy: int = 0
    used_s: float = 0.0


Step = tuple[Processors | None, float]
"""Time on processors, or (None) time that just passes."""
Process = Generator[Step, None, None]


class Clock:
    """Runs processes; of events at one time, the first that was planned is first."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Processors | None, Process, float]] = []
        self._count = 0

    def start(self, process: Process) -> None:
        """Let a process begin now."""
        self._go_on(process)

    def run(self, until: float) -> None:
        """Until there is nothing to do, or the time has come."""
        while self._events and self._events[0][0] <= until:
            self.now, _, processors, process, left = heapq.heappop(self._events)
            if processors is not None:
                processors.busy -= 1
                if left > 0:
                    processors.queue.append((process, left))
                self._dispatch(processors)
            if processors is None or left <= 0:
                self._go_on(process)

    def _go_on(self, process: Process) -> None:
        for processors, seconds in process:
            if processors is None:
                self._plan(seconds, None, process, 0.0)
            else:
                processors.queue.append((process, seconds))
                self._dispatch(processors)
            return

    def _dispatch(self, processors: Processors) -> None:
        while processors.queue and processors.busy < processors.count:
            process, left = processors.queue.popleft()
            turn = min(left, _TURN_S)
            processors.busy += 1
            processors.used_s += turn
            rest = left - turn
            self._plan(turn, processors, process, rest if rest > 1e-12 else 0.0)

    def _plan(
        self, seconds: float, processors: Processors | None, process: Process, left: float
    ) -> None:
        self._count += 1
        event = (self.now + seconds, self._count, processors, process, left)
        heapq.heappush(self._events, event)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a number of workers do."""

    workers: int
    per_s: float
    around_load: float
    """Part of the shared machine's processors that is used."""


def forecast(costs: Costs, workers: int, *, shared: bool) -> Forecast:
    """Simulate until all jobs that were measured have been done several times, and every worker has
    ended many."""
    clock, random = Clock(), Random(workers)
    around = Processors(costs.cores)
    own = around if shared else None  # alone on a processor, time just passes
    rounds = max(_LEAST_ROUNDS, -(-workers * _JOBS_EACH // len(costs.attempt_s)))
    left = [rounds * len(costs.attempt_s)]
    ends: list[float] = []
    chunk = costs.database_cpu_s / costs.transactions
    sync = max(0.0, costs.commit_s - chunk) if shared else 0.0
    mean = statistics.mean(costs.attempt_s)
    # What a job waits for that is neither a processor nor the database: pipes, starts, the bell,
    # and other programs on the same machine.
    waits = max(0.0, costs.cycle_s - costs.worker_cpu_s - costs.transactions * (chunk + sync))
    waits = waits if shared else 0.0

    def transaction(cpu_s: float) -> Process:
        yield around, cpu_s
        yield None, sync

    def beside(seconds: float) -> Process:
        yield around, seconds

    def worker() -> Process:
        yield None, random.uniform(0.0, costs.cycle_s)
        while left[0] > 0:
            left[0] -= 1
            size = costs.attempt_s[left[0] % len(costs.attempt_s)] / mean
            clock.start(beside(costs.api_cpu_s + costs.broker_cpu_s))
            for _ in range(costs.transactions):
                yield from transaction(chunk)
                yield own, size * costs.worker_cpu_s / costs.transactions
                yield None, size * waits / costs.transactions
            ends.append(clock.now)

    def heartbeat() -> Process:
        while left[0] > 0:
            yield None, HEARTBEAT_S
            yield from transaction(chunk)

    def reconciler() -> Process:
        while left[0] > 0:
            yield None, RECONCILE_S * random.uniform(0.75, 1.25)
            yield from transaction(costs.reconcile_cpu_s)

    def idle(part: float) -> Process:
        while left[0] > 0:
            yield None, 1.0
            clock.start(beside(part))

    clock.start(idle(costs.idle_api + costs.watch))
    for _ in range(workers):
        clock.start(worker())
        clock.start(heartbeat())
        clock.start(reconciler())
        clock.start(idle(costs.idle_broker))
    clock.run(float("inf"))
    # The first and the last jobs of each worker are left out: not all work then.
    inner = sorted(ends)[2 * workers : -2 * workers]
    span = inner[-1] - inner[0]
    load = around.used_s / (ends[-1] * around.count)
    return Forecast(workers, (len(inner) - 1) / span, load)


def bend(costs: Costs) -> float:
    """How many workers, each on a processor of its own, leave the shared machine no time."""
    background = costs.reconcile_cpu_s / RECONCILE_S + costs.idle_broker
    cycle_s = costs.worker_cpu_s + costs.database_cpu_s
    return (costs.cores - costs.idle_api - costs.watch) / (
        costs.around_cpu_s / cycle_s + background
    )


def efficiency(costs: Costs, counts: Sequence[int]) -> list[tuple[Forecast, float]]:
    """Forecasts, each with its part of so many times one worker's rate."""
    one = forecast(costs, 1, shared=False).per_s
    found = [forecast(costs, count, shared=False) for count in counts]
    return [(one_of, one_of.per_s / (one_of.workers * one)) for one_of in found]

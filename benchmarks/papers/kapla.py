"""KAPLA's greedy search inside layers beside the proven optimum of its space.

    python -m benchmarks.papers.kapla [--only NET] [--out benchmarks/papers/KAPLA.md]

`greedy` is the paper's Algorithm 1 as `benchmarks/rivals/greedy.py` resolves it, nothing added; the
optimum is that of every blocking, replication and order of the same space, which equals the open
tool's to the last digit (`benchmarks/RIVALS.md`).  Both are counted by one model, the tool's on one
node: energy of operations, registers, array, buffer and DRAM, without static power, fill and drain.
The paper solves by a model of its own and reports by the tool's, on a systolic array for its small
device; here the array is row stationary, as for its large machine.  Batch 1 and 64: inference; the
sweep changes the array, registers and the buffer, as its Table V does on a node of its own, whose
figures are lost.  Where it goes wrong (the worst layers at batch 64): results of all images grow
until they fill the buffer, for that saves inputs from DRAM, and then channels are all left outside:
each of their iterations brings all results to the registers and back, which no count of that step
sees.  Criteria: a mean overhead of at most 10 % in inference and 12 % in every row of the sweep.
Third table, baseline R: candidates of each level (what registers hold, what the buffer does, in
which orders) are each looked at with probability 0.1 (`benchmarks/rivals/chance.py`), five times
over; a layer of which nothing that fits was looked at is tried with the next seeds, and counted.
The paper's order of means, greedy <= random, is judged per batch.
Not here: training, several nodes, segments, annealing (M).

CPU seconds are of layers of one network, equal ones once; the optimum's loop is compiled, the
greedy search is plain Python.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

from benchmarks.rivals.__main__ import table
from benchmarks.rivals.blocking import optimum
from benchmarks.rivals.chance import chance
from benchmarks.rivals.greedy import Blocking, energy_of, greedy
from benchmarks.rivals.nets import NETS
from benchmarks.rivals.row_stationary import Node

BATCHES = (1, 64)
PROBABILITY, TIMES = 0.1, 5
MOST_INFERENCE, MOST_SWEPT = 0.10, 0.12
SWEEP = (
    ("as above", Node(), 64),
    ("array 8 x 8", Node((8, 8)), 64),
    ("array 32 x 32", Node((32, 32)), 64),
    ("registers 32 words", Node(register_words=32), 64),
    ("registers 1024 words", Node(register_words=1024), 64),
    ("buffer 16 Ki words", Node(buffer_words=16_384), 64),
    ("buffer 256 Ki words", Node(buffer_words=262_144), 64),
    ("batch 8", Node(), 8),
)
HEADS = (
    ("net", "batch", "greedy", "optimum", "over", "worst layer", "its over",
     "its trips (DRAM; buffer; registers)", "CPU s greedy", "optimum"),
    ("node", "batch", "nets", "mean over", "worst net", "its over", "criterion"),
    ("net", "batch", "random: least over", "mean", "most", "greedy", "looked at", "of candidates",
     "nothing fitted", "CPU s"),
)  # fmt: skip


class Compared(NamedTuple):
    """Of one network."""

    greedy: float
    optimum: float
    worst: str
    """The layer with the largest overhead."""
    worst_over: float
    blocking: Blocking
    """Of that layer, by the greedy search."""
    seconds: tuple[float, float]

    @property
    def over(self) -> float:
        return self.greedy / self.optimum - 1


def compared(net: str, batch: int, node: Node) -> Compared | None:
    """Both searches on all layers; None where a layer has no pass that the memories hold."""
    found: list[tuple[float, str, Blocking]] = []
    totals, seconds = [0.0, 0.0], [0.0, 0.0]
    for name, layer, times in NETS[net]():
        began = time.process_time()
        blocking = greedy(layer, batch, node)
        mine = energy_of(blocking, node)
        seconds[0] += time.process_time() - began
        began = time.process_time()
        try:
            least = optimum(layer, batch, node).energy
        except ValueError:
            return None
        seconds[1] += time.process_time() - began
        totals[0] += mine * times
        totals[1] += least * times
        found.append((mine / least - 1, name, blocking))
    over, name, blocking = max(found, key=lambda each: each[0])
    return Compared(totals[0], totals[1], name, over, blocking, (seconds[0], seconds[1]))


def networks(nets: Sequence[str]) -> Iterator[list[str]]:
    """Rows of the first table, and the mean."""
    compared(next(iter(NETS)), 1, Node())  # compiles the loop, or loads it
    overs: list[float] = []
    for batch in BATCHES:
        for net in nets:
            one = compared(net, batch, Node())
            assert one is not None
            overs.append(one.over)
            trips = "; ".join(" x ".join(map(str, level)) for level in one.blocking.trips)
            yield [
                net, str(batch), f"{one.greedy:,.0f}", f"{one.optimum:,.0f}", f"{one.over:.2%}",
                one.worst, f"{one.worst_over:.2%}", trips, f"{one.seconds[0]:.2f}",
                f"{one.seconds[1]:.2f}",
            ]  # fmt: skip
    mean = sum(overs) / len(overs)
    said = "pass" if mean <= MOST_INFERENCE else "fail"
    yield ["mean", "", "", "", f"{mean:.2%}", f"worst {max(overs):.2%}", f"{said} at 10 %",
           "", "", ""]  # fmt: skip


def sweep(nets: Sequence[str]) -> Iterator[list[str]]:
    """Rows of the second table."""
    for name, node, batch in SWEEP:
        found = {net: one for net in nets if (one := compared(net, batch, node)) is not None}
        if not found:
            yield [name, str(batch), "0", "", "", "", "nothing fits"]
            continue
        mean = sum(one.over for one in found.values()) / len(found)
        worst = max(found, key=lambda net: found[net].over)
        said = "pass" if mean <= MOST_SWEPT else "fail"
        yield [name, str(batch), str(len(found)), f"{mean:.2%}", worst,
               f"{found[worst].over:.2%}", f"{said} at 12 %"]  # fmt: skip


class Drawn(NamedTuple):
    """Of one network, by chance."""

    over: float
    looked_at: int
    missed: int
    """Layers of which nothing that fits was looked at, each time."""


def drawn(net: str, batch: int, seed: int) -> Drawn:
    """Each layer by random search; seeds differ by layer and try."""
    total = least = 0.0
    looked_at = missed = 0
    for number, (_, layer, times) in enumerate(NETS[net]()):
        energy, attempt = inf, 0
        while energy == inf:
            found, count = chance(
                layer, batch, Node(), PROBABILITY, (seed * 1000 + number) * 1000 + attempt
            )
            looked_at += count
            energy = inf if found is None else energy_of(found, Node())
            missed += energy == inf
            attempt += 1
        total += energy * times
        least += optimum(layer, batch, Node()).energy * times
    return Drawn(total / least - 1, looked_at, missed)


def by_chance(nets: Sequence[str]) -> Iterator[list[str]]:
    """Rows of the third table."""
    for batch in BATCHES:
        means, greedies = [], []
        for net in nets:
            began = time.process_time()
            found = [drawn(net, batch, seed) for seed in range(TIMES)]
            spent = (time.process_time() - began) / TIMES
            one = compared(net, batch, Node())
            assert one is not None
            overs = [each.over for each in found]
            means.append(sum(overs) / TIMES)
            greedies.append(one.over)
            looked = sum(each.looked_at for each in found) // TIMES
            whole = sum(optimum(layer, batch, Node()).candidates for _, layer, _ in NETS[net]())
            yield [net, str(batch), f"{min(overs):.2%}", f"{means[-1]:.2%}", f"{max(overs):.2%}",
                   f"{one.over:.2%}", f"{looked:,}", f"{whole:,}",
                   str(sum(each.missed for each in found)), f"{spent:.2f}"]  # fmt: skip
        mean, own = sum(means) / len(means), sum(greedies) / len(greedies)
        said = "as the paper's" if own <= mean else "the other way round"
        yield ["mean", str(batch), "", f"{mean:.2%}", "", f"{own:.2%}", said, "", "", ""]


def main(argv: Sequence[str] | None = None) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(NETS), help="one network")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    nets = [net for net in NETS if args.only in {None, net}]
    text = table(HEADS[0], networks(nets)) + "\n\n" + table(HEADS[1], sweep(nets))
    text += "\n\n" + table(HEADS[2], by_chance(nets))
    sys.stdout.write(text + "\n")
    if args.out is not None:
        first, _, rest = __doc__.partition("\n\n    ")
        command, _, said = rest.partition("\n\n")
        args.out.write_text(
            f"# KAPLA\n\n{first}\n\n`{command.strip()}`\n\n{said.strip()}\n\n{text}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

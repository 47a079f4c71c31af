"""Searches for tiles on the same problems: ours, random, annealing, climb, CoSA's program, all.

    python -m benchmarks.searches --out benchmarks/SEARCHES.md
    python -m benchmarks.searches --presets simba --only conv

A problem is one operator on one chain of scratchpads of a machine (where the climb is at its best:
of the spaces that `naive` searches, one), with the units that are worth waking.  Products and
convolutions in fp16, in int8 where the machine's array takes no fp16.  All searches walk over the
same tilings, and are judged by the same price: predicted cycles, or energy, and a thousandth of a
cycle for every executed instruction (`search.score`).  Nothing is simulated.  Every tiling is
priced with its loops in the best of the space's orders.

- `ours`: branch and bound, from what the climb finds, as the product does it: at most 24 576 boxes
  for each of two ways to cut, and 4 096 prices; where that ends more than 15 % from its bound,
  65 536 steps of walks by floors as well, and at most 512 prices more.  `bound`: what no tiling of
  the space is below.  `gap`: ours over that, less one.
- `climb`: the hill climb alone.  Its tiles may be larger than trips need, else as anywhere.
- `random`: each candidate with probability 0.1 on each of two levels, as KAPLA's random search R.
- `annealing`: one walk from a drawn tiling, temperatures 0.1 to 0.01 of the logarithm of scores.
- `cosa`, `milp`: a mixed-integer program at small size, by CoSA's objective and by the slowest of
  computing and moving; `benchmarks/searches/mixed_integers.py` says what they cannot express.
- `every`: all tilings, where there are at most 16 384 splits and trips.

Each may price as many tilings (`--budget`, 4 096: what ours may, which seldom prices that many);
programs and climb end by themselves.  A rival's cell: its score over ours (prices; CPU seconds over
ours, all loops compiled or loaded before).  Means leave out operators that are called small.

Prices of single tilings are Python in all searches, a hundred microseconds each; what ours does
with boxes is compiled, and what HiGHS does; draws and neighbours are plain Python, as a rival's own
tool might not be.  One seed each, from the digest of the problem's name.  In the list of what is
better than ours, `over every space` is the rival's score over that of the best tiling that `naive`
offers of the operator anywhere: on another chain, with sums elsewhere or with one copy of its
result.  Exit 1: a tiling is below our bound.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.searches.annealing import annealing
from benchmarks.searches.mixed_integers import cosa, milp
from benchmarks.searches.operators import problems
from benchmarks.searches.page import Cell, faults, page
from benchmarks.searches.problem import Budget, Problem, Search, ran
from benchmarks.searches.product import climb, of_every_space, ours
from benchmarks.searches.sampling import exhaustive, random_draws
from worker.compiler.machine import load_preset

PRESETS = ("a100", "stcp920-inferred", "kapla-16x16", "simba", "eyeriss")
RIVALS: Mapping[str, Search] = {
    "climb": climb, "random": random_draws, "annealing": annealing, "cosa": cosa, "milp": milp,
    "every": exhaustive,
}  # fmt: skip
BUDGET = 4096
LESSER = (("random", 64), ("random", 512), ("annealing", 64), ("annealing", 512))


def cell_of(operator: str, preset: str, problem: Problem, budget: int) -> Cell:
    """Every search on one problem."""
    best = ran(ours, problem, Budget(budget))
    assert best is not None, "ours takes every problem"
    rivals = {name: ran(search, problem, Budget(budget)) for name, search in RIVALS.items()}
    lesser = {
        f"{name} at {most}": ran(RIVALS[name], problem, Budget(most))
        for name, most in LESSER
        if most < budget
    }
    found = [run.score for run in rivals.values() if run is not None and run.score is not None]
    is_beaten = best.score is not None and min(found) < best.score
    return Cell(
        operator, preset, "/".join(stage.level.name for stage in problem.stages),
        problem.objective, best, rivals, lesser, of_every_space(problem) if is_beaten else None,
    )  # fmt: skip


def cells_of(presets: Sequence[str], only: str, budget: int) -> Iterator[Cell]:
    """Of all operators whose name has `only` in it; loops are compiled before."""
    for preset in presets:
        asked = [(n, p) for n, p in problems(load_preset(preset)) if only in n]
        for _, problem in asked[:1]:
            for search in (ours, *RIVALS.values()):
                ran(search, problem, Budget(16))
        for name, problem in asked:
            cell = cell_of(name, preset, problem, budget)
            ratios = {rival: cell.ratio(rival) for rival in cell.rivals}
            sys.stderr.write(f"{name} on {preset}: {ratios}\n")
            yield cell


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of the benchmark."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--only", default="", help="operators whose name has this in it")
    parser.add_argument("--budget", type=int, default=BUDGET, help="tilings that are priced")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(argv)
    cells = list(cells_of(asked.presets, asked.only, asked.budget))
    if not cells:
        parser.error(f"no operator has {asked.only!r} in its name")
    text = page(cells)
    sys.stdout.write(text)
    if asked.out is not None:
        command, _, rest = __doc__.partition("\n\n    ")[2].partition("\n")
        said = rest.partition("\n\n")[2].strip()
        asked.out.write_text(f"# Searches\n\n`{command}`\n\n{said}\n\n{text}", encoding="utf-8")
    found = faults(cells)
    sys.stderr.write("".join(f"{fault}\n" for fault in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""How much of the zoo is timed by which of the clock's two passes.

    python -m benchmarks.slow_path [--only resnet18] [--presets stcp920-inferred] [--strategy auto]

Where every port is granted in the order of the program, one pass over it finds all times; where
one is not, a second pass keeps a queue of what is ready and takes about five times as long.  Which
it is is found out on the way.  Counted are the instructions, loops expanded, of the units that a
compile keeps: each once, however often it is called.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.zoo import ZOO, ZooModel, materialized
from worker.compiler.cache import MemoryCache
from worker.compiler.clock.run import run_unit
from worker.compiler.frontend.limits import Limits
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.job.ports import open_ports
from worker.job.request import NoProgress

PRESETS = ("stcp920-inferred", "a100")


def counted(model: ZooModel, preset: str, strategy: str, scratch: Path) -> tuple[int, int]:
    """Instructions of all units, and of those that the second pass timed."""
    machine = load_preset(preset)
    options = CompileOptions(strategy=strategy, symbols=model.symbols)
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    path = materialized(model, scratch)
    compiled = compile_model(path, model.name, machine, options, ports, Limits())
    total = slow = 0
    for unit in compiled.units:
        count = unit.program.num_instructions
        total += count
        slow += 0 if run_unit(unit.program, machine).in_order else count
    return total, slow


def lines(args: argparse.Namespace) -> Iterator[str]:
    """Of the table, as they are found; the last is the sum."""
    yield f"{'model':20} {'preset':18} {'instructions':>14} {'second pass %':>14}"
    sums = [0, 0]
    for model in ZOO:
        if args.only and model.name not in args.only:
            continue
        for preset in args.presets:
            found = counted(model, preset, args.strategy, args.scratch)
            sums = [a + b for a, b in zip(sums, found, strict=True)]
            yield _line(model.name, preset, *found)
    yield _line("all", "", *sums)


def _line(model: str, preset: str, total: int, slow: int) -> str:
    return f"{model:20} {preset:18} {total:14,} {100 * slow / max(total, 1):14.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "tw-zoo")
    for line in lines(parser.parse_args()):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What the constants of the search for tiles are worth: cycles and search time with others.

    python -m benchmarks.search_constants [--only resnet50] [--presets a100] [--constants COARSE]

The kernels that `naive` makes of some networks, each once, are scheduled and simulated again with
one constant of `tiling/nest/branch_bound.py`, of `walks.py` beside it, or of the strategy, changed
at a time.  Printed, as factors over the constants as they are: the sum of simulated cycles by
preset, the CPU seconds of the search, and the schedules that are simulated.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.zoo import ZOO, materialized
from worker.compiler.cache import MemoryCache
from worker.compiler.frontend.limits import Limits
from worker.compiler.ir.graph import Graph
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.strategies.naive import tilings as naive
from worker.compiler.strategies.naive.descriptor import NaiveOptions, Tiles
from worker.compiler.strategies.naive.strategy import NAIVE
from worker.compiler.tiling.nest import branch_bound, walks
from worker.job.hardware import resolve_machine
from worker.job.ports import open_ports
from worker.job.request import NoProgress
from worker.simulator.run import simulate_unit

MODELS = ("resnet50", "mobilenet_v2", "bert_base_s128")
PRESETS = ("stcp920-inferred", "a100", "kapla-16x16", "eyeriss")
CONSTANTS: tuple[tuple[ModuleType, str, tuple[Any, ...]], ...] = (
    (branch_bound, "MOST_BOXES", (1 << 13, 1 << 14, 1 << 15, 1 << 16)),
    (branch_bound, "MOST_TILINGS", (1 << 9, 1 << 14)),
    (branch_bound, "AT_ONCE", (1 << 5, 1 << 6, 1 << 8, 1 << 9)),
    (branch_bound, "WAYS_FIRST", ((1,), (16,), (4,), (1, 4), (1, 64))),
    (branch_bound, "DEEP", (0.0, 0.25, 0.5, 0.9)),
    (branch_bound, "NEAR", (1.0, 1.01, 1.02, 1.05)),
    (branch_bound, "ROUNDINGS", ((), (0,), (0, 16), (0, 4, 8, 16, 32, 64, 128))),
    (branch_bound, "WIDE", (1.02, 1.05, 1.3, 2.0)),
    (branch_bound, "MOST_WALKED", (1 << 4, 1 << 6, 1 << 12)),
    (walks, "WALKS", (1 << 5, 1 << 6, 1 << 8)),
    (walks, "STEPS", (1 << 7, 1 << 8, 1 << 10)),
    (walks, "GATHER", (1 << 4, 1 << 6, 1 << 30)),
    (walks, "WORSE", (0.05, 0.1, 0.4, 0.8)),
    (naive, "NEAR", (1.0, 1.1, 1.5, 2.0)),
    (naive, "ALONE_CYCLES", (1 << 14, 1 << 60)),
    (naive, "LONG_SUMS", (0, 1 << 12, 1 << 60)),
)

Kernels = dict[str, Graph]
"""By signature."""
Found = tuple[dict[str, int], float, int]
"""Simulated cycles by kernel, CPU seconds of the search, schedules simulated."""


def kernels_of(names: Sequence[str], machine: Machine, scratch: Path) -> Kernels:
    """What the strategy makes of the networks, each kernel once."""
    found: Kernels = {}
    for model in ZOO:
        if model.name not in names:
            continue
        options = CompileOptions.from_json(
            {"strategy": "naive", "verify": "none", "symbols": dict(model.symbols)}
        )
        ports = open_ports(machine, options, MemoryCache(), NoProgress())
        path = materialized(model, scratch)
        compiled = compile_model(path, model.name, machine, options, ports, Limits())
        for unit in compiled.units:
            found[unit.program.signature] = unit.schedule.graph
    return found


def searched(kernels: Kernels, machine: Machine, tiles: Tiles, known: dict[str, int]) -> Found:
    """The best simulated schedule of every kernel; `known`: cycles by schedule."""
    cycles: dict[str, int] = {}
    seconds, schedules = 0.0, 0
    for signature, graph in kernels.items():
        begun = time.process_time()
        answers = list(NAIVE.candidates(graph, machine, NaiveOptions(tiles=tiles)))
        seconds += time.process_time() - begun
        for schedule in answers:
            if not isinstance(schedule, Schedule):
                continue
            schedules += 1
            key = repr(schedule.root)
            if key not in known:
                program = lower_unit(schedule, machine, signature)
                known[key] = simulate_unit(program, machine).cycles
            cycles[signature] = min(known[key], cycles.get(signature, known[key]))
    return cycles, seconds, schedules


def rows_of(
    kernels: Mapping[str, Kernels],
    machines: Mapping[str, Machine],
    constants: Sequence[str] = (),
) -> list[tuple[str, list[int], float, int]]:
    """(constant, cycles by preset, search seconds, schedules), the constants as they are first.

    `constants`: those that are changed; none: all.
    """
    known: dict[str, dict[str, int]] = {preset: {} for preset in kernels}

    def row(label: str, tiles: Tiles = Tiles.BOUNDED) -> tuple[str, list[int], float, int]:
        found = {p: searched(kernels[p], machines[p], tiles, known[p]) for p in kernels}
        cycles = [sum(found[p][0].values()) for p in kernels]
        return label, cycles, sum(f[1] for f in found.values()), sum(f[2] for f in found.values())

    row("to warm up")
    rows = [row("as they are"), row("tiles: grown", Tiles.GROWN)]
    for module, name, values in CONSTANTS:
        if constants and name not in constants:
            continue
        before = getattr(module, name)
        for value in values:
            setattr(module, name, value)
            rows.append(row(f"{module.__name__.rsplit('.', 1)[-1]}.{name} {before} -> {value}"))
        setattr(module, name, before)
    return rows


def table(presets: Sequence[str], rows: Sequence[tuple[str, list[int], float, int]]) -> str:
    """Factors over the first row."""
    _, base, base_seconds, base_schedules = rows[0]
    lines = [
        "| constant | " + " | ".join(presets) + " | search CPU | simulated |",
        "|---" * (len(presets) + 3) + "|",
    ]
    for label, cycles, seconds, schedules in rows:
        factors = [f"{a / b:.4f}" for a, b in zip(cycles, base, strict=True)]
        lines.append(
            f"| {label} | {' | '.join(factors)} | {seconds / base_seconds:.2f} |"
            f" {schedules / base_schedules:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> int:
    """Entry of the benchmark."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="*", default=list(MODELS), help="models by name")
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--constants", nargs="*", default=[], help="of these alone")
    parser.add_argument("--scratch", type=Path, help="where models are made")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = asked.scratch or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        machines = {preset: resolve_machine({"preset": preset}) for preset in asked.presets}
        kernels = {p: kernels_of(asked.only, m, scratch) for p, m in machines.items()}
    rows = rows_of(kernels, machines, asked.constants)
    counts = ", ".join(f"{len(kernels[p])} of {p}" for p in kernels)
    _, base, seconds, schedules = rows[0]
    sys.stdout.write(f"Kernels: {counts}; {schedules} schedules found in {seconds:.1f} CPU s;"
                     f" cycles {', '.join(map(str, base))}.\n\n")  # fmt: skip
    sys.stdout.write(table(asked.presets, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""GraphTurbo against its rivals on the whole zoo: latency, traffic, kernels, distance to bounds.

    python -m benchmarks.graphturbo_zoo [--only resnet18] [--presets ascend910] [--modes full naive]

Every cell is a fresh process; finished cells are kept in the JSON file beside the page, so a run
can be resumed.  A model counts in a mean only when all its modes are measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from math import exp, log, nan
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cells import Row, fill, run_child
from benchmarks.zoo import ZOO, ZooModel, materialized
from worker.job.request import NoProgress

if TYPE_CHECKING:
    from worker.compiler.isa.program import Program
    from worker.simulator.results import UnitSimulation

PRESETS = ("stcp920-inferred", "ascend910")
FULL, NAIVE = "full", "naive"
RIVALS = ("layerwise", "astitch", NAIVE)
MODES = (FULL, *RIVALS)
"""Variants of strategy `graphturbo`, and strategy `naive`."""


def compulsory_bytes(
    program: Program, sims: Sequence[UnitSimulation], views: Mapping[str, str]
) -> tuple[int, int]:
    """Bytes (into, out of) the chip that no schedule of this placement can save.

    Every constant and outside tensor once, but no more of it than its kernel reads (a table's
    rows), and every result that no kernel reads.  `views` maps a tensor to the one whose memory it
    shares: reading a reshaped result is reading that result.
    """
    from worker.compiler.isa.program import OperandRole, UnitCall

    def stored(tensor: str) -> str:
        while tensor in views:
            tensor = views[tensor]
        return tensor

    made: set[str] = set()
    read: set[str] = set()
    wanted: dict[str, int] = {}
    inward = written = 0
    for call in program.calls:
        if not isinstance(call, UnitCall):
            continue
        operands = program.units[call.unit].operands
        pairs = [(o, stored(b.tensor)) for o, b in zip(operands, call.bindings, strict=True)]
        fresh = 0
        for operand, tensor in pairs:
            if operand.role in (OperandRole.INPUT, OperandRole.CONSTANT):
                if tensor not in made and tensor not in read:
                    fresh += operand.size_bytes
                read.add(tensor)
                wanted.pop(tensor, None)
        for operand, tensor in pairs:
            if operand.role is OperandRole.OUTPUT:
                made.add(tensor)
                wanted[tensor] = operand.size_bytes
        inward += min(fresh, sims[call.unit].traffic[0].read_bytes)
        written += sims[call.unit].traffic[0].write_bytes
    return inward, min(sum(wanted.values()), written)


def run_cell(model: ZooModel, preset: str, mode: str, scratch: Path) -> Row:
    """Compile and simulate one model in one mode; runs inside the child process.

    Raises:
        ValueError: the compulsory bytes exceed those of the simulator's bound.
    """
    from worker.compiler.cache import MemoryCache
    from worker.compiler.frontend.limits import Limits
    from worker.compiler.isa.program import UnitCall
    from worker.compiler.options import CompileOptions
    from worker.compiler.pipeline import compile_model
    from worker.job.hardware import resolve_machine
    from worker.job.ports import open_ports
    from worker.job.simulation import refuse_violations, simulate_model
    from worker.simulator.bounds import port_floor

    chosen = (
        {"strategy": NAIVE}
        if mode == NAIVE
        else {"strategy": "graphturbo", "strategy_options": {"graphturbo": {"variant": mode}}}
    )
    options = CompileOptions.from_json(
        {"verify": "none", "symbols": dict(model.symbols), **chosen}
    )  # fmt: skip
    machine, cache = resolve_machine({"preset": preset}), MemoryCache()
    ports = open_ports(machine, options, cache, NoProgress())
    path = materialized(model, scratch)
    compiled = compile_model(path, model.name, machine, options, ports, Limits())
    sims, whole = simulate_model(compiled, cache)
    refuse_violations(sims, whole)
    program = compiled.linked.program
    views = {view.tensor: view.source for view in compiled.linked.views}
    inward, outward = compulsory_bytes(program, sims, views)
    home = machine.home
    floor = port_floor(home, inward, outward)
    bound = next(b.cycles for b in whole.bounds if b.name == f"traffic:{home.name}")
    if floor > bound:
        raise ValueError(f"compulsory bytes take {floor} cycles, the bound is {bound}")
    moved = next(t for t in whole.traffic if t.level == home.name)
    return {
        "cycles": whole.cycles,
        "kernel_cycles": whole.invocation.launch_cycles + whole.invocation.execute_cycles,
        "ms": whole.cycles / machine.clock_hz * 1e3,
        "bound": whole.roofline.cycles,
        "tight_bound": whole.lower_bound_cycles,
        "offchip": moved.read_bytes + moved.write_bytes,
        "compulsory": inward + outward,
        "kernels": sum(isinstance(call, UnitCall) for call in program.calls),
        "unique": len(compiled.units),
    }


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return sum(values) / len(values)


def geomean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers."""
    return exp(sum(map(log, values)) / len(values))


def _distance(row: Row, bound: str) -> float:
    """Cycles over a bound; not a number in a row of before there was this bound."""
    return float(row["cycles"] / max(1, row[bound])) if bound in row else nan


COLUMNS: tuple[tuple[str, Callable[[Mapping[str, Row]], float], str], ...] = (
    ("full ms", lambda m: m[FULL]["ms"], "{:.3f}"),
    *(
        (f"{rival} / full", lambda m, r=rival: m[r]["cycles"] / m[FULL]["cycles"], "{:.2f}")
        for rival in RIVALS
    ),
    ("naive / full, kernels only",
     lambda m: m[NAIVE]["kernel_cycles"] / max(1, m[FULL]["kernel_cycles"]), "{:.2f}"),
    *(
        (f"{title}, {mode}", lambda m, v=mode, k=key: _distance(m[v], k), "{:.2f}")
        for title, key in (("x bound", "tight_bound"), ("x roofline", "bound"))
        for mode in (NAIVE, FULL)
    ),
    ("off-chip / compulsory, naive",
     lambda m: m[NAIVE]["offchip"] / max(1, m[NAIVE]["compulsory"]), "{:.2f}"),
    ("off-chip / compulsory, full",
     lambda m: m[FULL]["offchip"] / max(1, m[FULL]["compulsory"]), "{:.2f}"),
    ("compulsory MB", lambda m: m[FULL]["compulsory"] / 1e6, "{:.1f}"),
    ("kernels, naive", lambda m: m[NAIVE]["kernels"], "{:d}"),
    ("kernels, layerwise", lambda m: m["layerwise"]["kernels"], "{:d}"),
    ("kernels, full", lambda m: m[FULL]["kernels"], "{:d}"),
)  # fmt: skip
_AVERAGED = frozenset(title for title, _, _ in COLUMNS if " / full" in title or "off-chip" in title
                      or title.startswith("x "))  # fmt: skip


def measured(rows: Mapping[str, Row], model: str, preset: str) -> dict[str, Row] | None:
    """The model's rows by mode; None unless every mode is there."""
    found = {mode: rows.get(f"{model} {preset} {mode}", {"failure": "missing"}) for mode in MODES}
    return None if any("failure" in row for row in found.values()) else found


def page(rows: Mapping[str, Row], presets: Sequence[str]) -> str:
    """Markdown: a table per preset with both means, and the cells that failed."""
    lines = ["# GraphTurbo on the zoo", "", "Printed by `python -m benchmarks.graphturbo_zoo`.", "",
             *_NOTES, ""]  # fmt: skip
    for preset in presets:
        complete = [(m.name, found) for m in ZOO if (found := measured(rows, m.name, preset))]
        lines += [f"### {preset}: {len(complete)} of {len(ZOO)} models", ""]
        lines += ["| model | " + " | ".join(title for title, _, _ in COLUMNS) + " |",
                  "|" + "---|" * (len(COLUMNS) + 1)]  # fmt: skip
        for name, found in complete:
            cells = [form.format(value(found)) for _, value, form in COLUMNS]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        for title, average in (("mean", mean), ("geomean", geomean)):
            cells = [
                form.format(average([value(found) for _, found in complete]))
                if complete and name in _AVERAGED else ""
                for name, value, form in COLUMNS
            ]  # fmt: skip
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
        lines.append("")
    failures = [f"| {key} | {row['failure']} |" for key, row in rows.items() if "failure" in row]
    if failures:
        lines += ["### Cells that failed", "", "| cell | why |", "|---|---|", *failures, ""]
    return "\n".join(lines)


_NOTES = (
    "Simulated; ratios above 1 mean that `full` is faster. Cycles are of whole models with",
    "launches, host parts and copies, `kernels only` without the latter two. `x bound` divides by",
    "what every schedule of the same kernels takes at least (nan: a row of before there was",
    "this), `x roofline` by the loose bound of the same placement; `compulsory` are the off-chip",
    "bytes that no schedule can save: every weight and input once, every result once.",
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/GRAPHTURBO_ZOO.md"))
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "tw-zoo")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=MODES)
    parser.add_argument("--again", action="store_true", help="run finished cells again")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--limit", type=float, default=900, help="seconds of a cell")
    parser.add_argument("--cell", nargs=3, metavar=("MODEL", "PRESET", "MODE"))
    args = parser.parse_args(argv)
    if args.cell:
        model = next(m for m in ZOO if m.name == args.cell[0])
        row = run_cell(model, args.cell[1], args.cell[2], args.scratch)
        sys.stdout.write(json.dumps(row) + "\n")
        return 0
    keys = [f"{m.name} {p} {v}" for m in ZOO for p in args.presets for v in args.modes]
    rows, failed = fill(
        args.out.with_suffix(".json"),
        [key for key in keys if not args.only or key.split(" ")[0] in args.only],
        lambda key: run_child("benchmarks.graphturbo_zoo", key, args.scratch, args.limit),
        jobs=args.jobs,
        again=args.again,
        after_each=lambda rows: args.out.write_text(page(rows, args.presets), encoding="utf-8"),
    )
    sys.stdout.write(page(rows, args.presets))
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())

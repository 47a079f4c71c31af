"""The default strategy against every single one, by every objective, on the whole zoo.

    python -m benchmarks.elections [--only resnet18] [--presets ascend910] [--jobs 2]

A cell is one model on one machine: `auto` and each strategy alone are compiled for every objective
(one cache for all, as a server has), whole programs are simulated, and every program that differs
from those before it is verified.  Finished cells stay in the JSON file beside the page, which says
at which commit each ran: `--keep COMMIT` runs the others again.  Exit 1: `auto` lost somewhere to a
strategy alone, or to its own program for another objective; or a program failed its verification.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import Row, fill, run_child
from benchmarks.zoo import ZOO, ZooModel, materialized
from worker.job.request import NoProgress

PRESETS = ("stcp920-inferred", "ascend910")
AUTO = "auto"
OBJECTIVES = ("latency", "energy", "edp", "offchip", "peak_memory")


def measure(figures: Mapping[str, Any], objective: str) -> float:
    """What an objective minimises, of a whole program."""
    if objective == "edp":
        return float(figures["energy"] * figures["latency"])
    return float(figures[objective])


def run_cell(model: ZooModel, preset: str, scratch: Path) -> Row:
    """Compile, simulate and verify every program of a cell; runs inside the child process."""
    from worker.compiler.cache import MemoryCache
    from worker.compiler.descriptors import strategies
    from worker.compiler.frontend.limits import Limits
    from worker.compiler.options import CompileOptions
    from worker.compiler.pipeline import compile_model
    from worker.job.hardware import resolve_machine
    from worker.job.ports import open_ports
    from worker.job.simulation import refuse_violations, simulate_model
    from worker.verification.drive import verify_model

    machine, cache = resolve_machine({"preset": preset}), MemoryCache()
    path = materialized(model, scratch)
    programs: dict[str, Row] = {}
    verified: dict[str, str] = {}
    for objective in OBJECTIVES:
        for strategy in (AUTO, *strategies()):
            options = CompileOptions.from_json({
                "verify": "sample", "symbols": dict(model.symbols),
                "strategy": strategy, "objective": objective,
            })  # fmt: skip
            ports = open_ports(machine, options, cache, NoProgress())
            compiled = compile_model(path, model.name, machine, options, ports, Limits())
            sims, whole = simulate_model(compiled, cache)
            refuse_violations(sims, whole)
            home = whole.traffic[0]
            figures: Row = {
                "latency": whole.cycles,
                "energy": whole.energy_pj,
                "offchip": home.read_bytes + home.write_bytes,
                "peak_memory": compiled.home_bytes,
            }
            if (key := repr(figures)) not in verified:
                build = scratch / "kernels" / f"{model.name}-{preset}"
                found = verify_model(path, compiled, options, build)
                verified[key] = "passed" if found.passed else found.detail
            programs[f"{strategy} {objective}"] = {
                **figures, "kernels": compiled.num_kernels, "won": compiled.strategy,
                "verified": verified[key],
            }  # fmt: skip
    return {"programs": programs}


def faults(rows: Mapping[str, Row]) -> list[str]:
    """Where `auto` is not the best, or a program is not verified."""
    found = []
    for cell, row in rows.items():
        programs = row.get("programs")
        if programs is None:
            found.append(f"{cell}: {row['failure']}")
            continue
        for key, program in programs.items():
            strategy, objective = key.split(" ")
            if program["verified"] != "passed":
                found.append(f"{cell}: {key} is {program['verified']}")
            mine = measure(programs[f"{AUTO} {objective}"], objective)
            if measure(program, objective) < mine:
                found.append(f"{cell}: {strategy} alone is better by {objective}")
            if strategy == AUTO:
                found += [
                    f"{cell}: auto's program for {objective} is better by {other} than its own"
                    for other in OBJECTIVES
                    if measure(program, other) < measure(programs[f"{AUTO} {other}"], other)
                ]
    return found


def page(rows: Mapping[str, Row]) -> str:
    """Markdown: a line per cell; its winners, what each gains over the latency program."""
    lines = ["# Elections on the zoo", "", "Printed by `python -m benchmarks.elections`.", "",
             *_NOTES, "", "| cell | " + " | ".join(OBJECTIVES) + " | programs | at |",
             "|" + "---|" * (len(OBJECTIVES) + 3)]  # fmt: skip
    for cell, row in rows.items():
        if programs := row.get("programs"):
            base = programs[f"{AUTO} latency"]
            cells = []
            for objective in OBJECTIVES:
                mine = programs[f"{AUTO} {objective}"]
                gain = measure(base, objective) / max(1.0, measure(mine, objective))
                cells.append(f"{mine['won']} {gain:.3f}")
            distinct = {json.dumps(p, sort_keys=True) for k, p in programs.items()
                        if k.startswith(AUTO)}  # fmt: skip
            lines.append(
                f"| {cell} | " + " | ".join(cells) + f" | {len(distinct)} | {row.get('at', '')} |"
            )
    wrong = faults(rows)
    total = len(ZOO) * len(PRESETS)
    lines += ["", f"{len(rows)} of {total} cells, {len(wrong)} faults.", ""]
    lines += [f"- {row}" for row in wrong]
    return "\n".join(lines) + "\n"


_NOTES = (
    "Per objective: which program `auto` elected, and by what factor it is better, in that",
    "objective's measure, than the program it elects for latency. `programs`: distinct ones among",
    "the five. Every program here was verified (`--verify sample`). `at`: the commit at which the",
    "cell ran; nothing: an older one, before the clock and the mapper were last changed.",
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/ELECTIONS.md"))
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "tw-zoo")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--again", action="store_true", help="run finished cells again")
    parser.add_argument("--keep", nargs="*", default=[], metavar="COMMIT",
                        help="run cells of other commits again")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--limit", type=float, default=3600, help="seconds of a cell")
    parser.add_argument("--cell", nargs=2, metavar=("MODEL", "PRESET"))
    args = parser.parse_args(argv)
    if args.cell:
        model = next(m for m in ZOO if m.name == args.cell[0])
        sys.stdout.write(json.dumps(run_cell(model, args.cell[1], args.scratch)) + "\n")
        return 0
    keys = [f"{m.name} {p}" for m in ZOO for p in args.presets]
    rows, failed = fill(
        args.out.with_suffix(".json"),
        [key for key in keys if not args.only or key.split(" ")[0] in args.only],
        lambda key: run_child("benchmarks.elections", key, args.scratch, args.limit),
        jobs=args.jobs,
        again=args.again,
        keep=args.keep,
        after_each=lambda rows: args.out.write_text(page(rows), encoding="utf-8"),
    )
    sys.stdout.write(page(rows))
    return int(failed or bool(faults(rows)))


if __name__ == "__main__":
    raise SystemExit(main())

"""What every heuristic earns: simulated cycles of the zoo with it and without it.

    python -m benchmarks.ablation [--only resnet18] [--presets ascend910] [--jobs 2]

A cell is one model on one machine: the zoo, two of its nets with eight samples (`BATCHES`), and
nets of `benchmarks/models.py` that heuristics were made for (`BESIDES`).  Its base is the default
compile, by `graphturbo` alone for the heuristics of lowering and of that strategy, by `naive` for
its own, by `auto` for the judge's; then the same compile with one heuristic turned off at a time
(`without` of the options), one cache for all.  Tiles by what the objective sums up are judged by
the energy of compiles for energy.  On a100, which has registers for sums, the rows of `naive`
alone.  Whole programs are simulated; nothing is verified here, as a switch only chooses among
schedules that are.  Finished cells stay in the JSON file beside the page.  Exit 1: a compile
failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

from benchmarks.cells import Row, fill, run_child
from benchmarks.zoo import ZOO, ZooModel, every_model, materialized
from worker.compiler.heuristics import LOWERING, Heuristic
from worker.compiler.strategies.graphturbo.descriptor import Idea
from worker.compiler.strategies.naive.descriptor import Idea as NaiveIdea
from worker.job.request import NoProgress

PRESETS = ("stcp920-inferred", "ascend910", "a100")
GENERAL = tuple(sorted(LOWERING))
JUDGE = tuple(sorted(set(Heuristic) - LOWERING))
TOGETHER = ("level+pace",)
"""Heuristics that are also turned off together: what one does the other may do as well."""
BOUNDED = "bounded"
"""Tiles of single operators by branch and bound; without it, those that tiles grow into."""
OF_NAIVE = {f"naive.{idea}": idea for idea in NaiveIdea}
BY_ENERGY = "naive by energy"
NAIVE_ROWS = (BOUNDED, *OF_NAIVE)
ROWS = (*GENERAL, *TOGETHER, *Idea, *NAIVE_ROWS, *JUDGE)
BATCHES = (
    ZooModel("mobilenet_v2_of_8", "mobilenet_v2", (("N", 8),)),
    ZooModel("googlenet_of_8", "googlenet", (("N", 8),)),
)
BESIDES = ("bert_base_s256_b4", "bsrn_x4", "conformer_m", "mobilevit_s", "tinybert", "mnist_cnn")
EARNS = 1.001
"""Cycles without over cycles with, above which a heuristic earns something in a cell."""


def cells() -> tuple[ZooModel, ...]:
    """The models, cheap ones not first: a ledger is whole or it decides nothing."""
    return (*ZOO, *BATCHES, *(m for m in every_model() if m.name in BESIDES))


def rows_on(preset: str) -> tuple[str, ...]:
    """What is measured on a preset."""
    return NAIVE_ROWS if preset == "a100" else ROWS


def base_of(row: str) -> str:
    """The compile that a row is compared with, by the options that make it."""
    if row in JUDGE:
        return "auto"
    if OF_NAIVE.get(row) is NaiveIdea.MEASURES:
        return BY_ENERGY
    return "naive" if row in NAIVE_ROWS else ""


def options_of(row: str) -> dict[str, Any]:
    """The options that turn a row's heuristics off; "", "naive" and the like are the bases."""
    if row in {"auto", "naive"}:
        return {"strategy": row}
    if row == BY_ENERGY:
        return {"strategy": "naive", "objective": "energy"}
    if row in OF_NAIVE:
        own = {"strategy_options": {"naive": {"without": [OF_NAIVE[row]]}}}
        return {**options_of(base_of(row)), **own}
    if row == BOUNDED:
        return {"strategy": "naive", "strategy_options": {"naive": {"tiles": "grown"}}}
    if row in JUDGE:
        return {"strategy": "auto", "without": [row]}
    if row in set(Idea):
        return {"strategy": "graphturbo", "strategy_options": {"graphturbo": {"without": [row]}}}
    return {"strategy": "graphturbo", "without": row.split("+") if row else []}


def run_cell(model: ZooModel, preset: str, scratch: Path) -> Row:
    """Cycles by row; runs inside the child process."""
    from worker.compiler.cache import MemoryCache
    from worker.compiler.errors import CompilerError
    from worker.compiler.frontend.limits import Limits
    from worker.compiler.options import CompileOptions
    from worker.compiler.pipeline import compile_model
    from worker.job.hardware import resolve_machine
    from worker.job.ports import open_ports

    machine, cache = resolve_machine({"preset": preset}), MemoryCache()
    path = materialized(model, scratch)
    cycles: Row = {}
    bases = dict.fromkeys(base_of(row) for row in rows_on(preset))
    for row in (*bases, *rows_on(preset)):
        options = CompileOptions.from_json(
            {"verify": "none", "symbols": dict(model.symbols), **options_of(row)}
        )
        ports = open_ports(machine, options, cache, NoProgress())
        try:
            compiled = compile_model(path, model.name, machine, options, ports, Limits())
        except CompilerError as error:
            cycles[row] = f"{error.code} {error.message}"[:200]
            continue
        whole = ports.whole(compiled)
        is_energy = BY_ENERGY in (row, base_of(row))
        cycles[row] = round(whole.energy_pj) if is_energy else whole.cycles
    return {"cycles": cycles}


def ratios(rows: Mapping[str, Row], heuristic: str) -> dict[str, float]:
    """Cycles without over cycles with, by cell: above 1 it earns."""
    base = base_of(heuristic)
    return {
        key: row["cycles"][heuristic] / row["cycles"][base]
        for key, row in rows.items()
        if isinstance(row.get("cycles", {}).get(heuristic), int)
        and isinstance(row["cycles"].get(base), int)
    }


def table(rows: Mapping[str, Row]) -> str:
    """The page: one row a heuristic, then one a cell."""
    lines = [
        "# What every heuristic earns",
        "",
        "    python -m benchmarks.ablation",
        "",
        "Simulated cycles of a compile without the heuristic over cycles of the default compile,",
        f"whole programs, {len(rows)} of {len(cells()) * len(PRESETS)} cells (model x preset),"
        " symbols as in `benchmarks/zoo.py`.",
        f"Above 1 the heuristic earns. Lowering's ({', '.join(GENERAL)}) and",
        f"GraphTurbo's own are measured with `--strategy graphturbo`, {', '.join(NAIVE_ROWS)} with",
        f"`naive`, the judge's ({', '.join(JUDGE)}) with `auto`; of `naive.{NaiveIdea.MEASURES}`",
        "the energy of compiles for energy. A compile that has no program without the heuristic",
        "counts under `fails`.",
        "",
        "| heuristic | geomean | best cell | ratio | worst cell | ratio | earns | costs | fails |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for heuristic in ROWS:
        found = ratios(rows, heuristic)
        if not found:
            continue
        best, worst = max(found, key=lambda k: found[k]), min(found, key=lambda k: found[k])
        geomean = exp(sum(map(log, found.values())) / len(found))
        failed = sum(
            not isinstance(row["cycles"].get(heuristic), int)
            for key, row in rows.items()
            if "cycles" in row and heuristic in rows_on(key.rsplit(" ", 1)[-1])
        )
        lines.append(
            f"| {heuristic} | {geomean:.4f} | {best} | {found[best]:.4f} | {worst} |"
            f" {found[worst]:.4f} | {sum(r >= EARNS for r in found.values())} |"
            f" {sum(r <= 1 / EARNS for r in found.values())} | {failed} |"
        )
    heads = " | ".join(("cell", "graphturbo", "naive", "auto", *ROWS))
    lines += ["", "## By cell", "", f"| {heads} |"]
    lines.append("|---" * (4 + len(ROWS)) + "|")
    for key, row in rows.items():
        cycles = row.get("cycles", {})
        told = [ratios({key: row}, heuristic).get(key) for heuristic in ROWS]
        words = ["-" if r is None else "1" if r == 1 else f"{r:.4f}" for r in told]
        bases = " | ".join(str(cycles.get(base, "-")) for base in ("", "naive", "auto"))
        lines.append(f"| {key} | {bases} | {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> int:
    """Entry of the benchmark."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="*", default=[], help="models by name")
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "ABLATION.md")
    parser.add_argument("--scratch", type=Path, help="where models are made")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="finished cells as well")
    parser.add_argument("--cell", nargs=2, metavar=("MODEL", "PRESET"), help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    if asked.cell:
        name, preset = asked.cell
        model = next(m for m in cells() if m.name == name)
        sys.stdout.write(json.dumps(run_cell(model, preset, asked.scratch)) + "\n")
        return 0
    models = [m for m in cells() if not asked.only or m.name in asked.only]
    keys = [f"{m.name} {preset}" for m in models for preset in asked.presets]
    with tempfile.TemporaryDirectory() as temporary:
        scratch = asked.scratch or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        rows, failed = fill(
            asked.out.with_suffix(".json"), keys,
            lambda key: run_child("benchmarks.ablation", key, scratch, 7200.0),
            jobs=asked.jobs, again=asked.again,
            after_each=lambda done: asked.out.write_text(table(done), encoding="utf-8"),
        )  # fmt: skip
    sys.stdout.write(table({key: rows[key] for key in keys if key in rows}))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Training steps of real models: made, counted, compiled and simulated; CPU seconds of each.

    python -m benchmarks.training --out benchmarks/TRAINING.md [--only lstm_t32]

One step by SGD of the mean squared error of one output; batch 4 where the model has a symbol for
it.  "Made" is `tilewright model train`, "compiled" is `tilewright compile --verify none` of the
file that it wrote, with simulation, kernels in C and bundle; a process and an empty cache each,
loops compiled before.  `--strategy` says which (naive by default: `auto` looks at more and takes
longer).  A step has three times the multiply-accumulates of the forward pass, less one for those
that read no trained value and those of gradients that nobody needs (of a given first state, say).

Exit status 1: a step took more than 60 CPU seconds to compile, or was not made.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.zoo import ZooModel, materialized

MOST_S = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and the output that the loss is taken of where it has several."""

    stem: str
    batch: int
    is_symbolic: bool = True
    output: str = ""


CASES = (
    Case("mlp_mnist", 4), Case("alexnet", 4), Case("resnet18", 1, False), Case("mobilenet_v2", 4),
    Case("unet_resnet34", 1, False), Case("lstm_t32", 4, output="y"), Case("dlrm", 4),
    Case("bert_base_s128", 1, False, "hidden"), Case("llama_prefill_s128", 1, False, "logits"),
)  # fmt: skip
COLUMNS = (
    "model", "batch", "nodes", "forward G MACs", "step / forward", "made CPU s", "kernels",
    "nodes on host", "cycles", "energy mJ", "compiled CPU s", f"<= {MOST_S:g}",
)  # fmt: skip


def measured(words: Sequence[str]) -> tuple[str, float]:
    """What a command of the product printed, and its CPU seconds with all that it started.

    Raises:
        RuntimeError: it failed; the text is what it said.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "service.cli.main", *words], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[0] if done.stderr else "no answer")
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, spent


def row_of(case: Case, path: Path, folder: Path, preset: str, strategy: str) -> dict[str, Any]:
    """One model's row.

    Raises:
        RuntimeError: there is no step, or it does not compile.
    """
    step, out = folder / "step.onnx", folder / "out"
    bound = ["--set", f"N={case.batch}"] if case.is_symbolic else []
    of = ["--loss-of", case.output] if case.output else []
    text, made_s = measured(
        ["model", "train", str(path), "--loss", "mse", *of, *bound, "-o", str(step), "--json"]
    )
    said = json.loads(text)
    _, compiled_s = measured(
        ["compile", str(step), "--hardware", preset, "--strategy", strategy, "--verify", "none",
         "--local", "--data-dir", str(folder / "data"), "-o", str(out), "--json"]
    )  # fmt: skip
    summary = json.loads((out / "report.json").read_bytes())["summary"]
    return {
        "model": case.stem, "batch": case.batch, "nodes": said["nodes"],
        "forward G MACs": f"{said['forward_macs'] / 1e9:.3f}",
        "step / forward": f"{said['step_macs'] / said['forward_macs']:.4f}",
        "made CPU s": f"{made_s:.1f}", "kernels": summary["kernels"],
        "nodes on host": summary["host_ops"], "cycles": f"{summary['latency_cycles']:,}",
        "energy mJ": f"{summary['energy_pj'] / 1e9:.3g}", "compiled CPU s": f"{compiled_s:.1f}",
        f"<= {MOST_S:g}": "yes" if compiled_s <= MOST_S else "no",
    }  # fmt: skip


def page(rows: Sequence[dict[str, Any]], preset: str, strategy: str) -> str:
    """The table as Markdown."""
    lines = [
        "# Training steps", "",
        f"`python -m benchmarks.training`: {strategy} on {preset}. What is measured, and how, is "
        "in its docstring.", "",
        f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(str(row.get(c, '')) for c in COLUMNS)} |" for row in rows),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("--preset", default="simba")
    parser.add_argument("--strategy", default="naive")
    parser.add_argument("--only", nargs="+", choices=[case.stem for case in CASES])
    parser.add_argument("--models", type=Path, help="folder for materialised models")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in CASES:
            if asked.only and case.stem not in asked.only:
                continue
            folder = Path(scratch) / case.stem
            folder.mkdir()
            path = materialized(ZooModel(case.stem, case.stem), asked.models or Path(scratch))
            try:
                rows.append(row_of(case, path, folder, asked.preset, asked.strategy))
            except RuntimeError as error:
                rows.append({"model": case.stem, "batch": case.batch, "nodes": str(error)})
            sys.stderr.write(f"{rows[-1]}\n")
    text = page(rows, asked.preset, asked.strategy)
    sys.stdout.write(text)
    if asked.out:
        asked.out.write_text(text)
    return int(any(row.get(f"<= {MOST_S:g}") != "yes" for row in rows))


if __name__ == "__main__":
    sys.exit(main())

"""Every layer on every machine in every peer, beside Tilewright's own figures.

    python -m benchmarks.peers [--peers zigzag] [--only 'gemm 64x128x96'] [--presets kapla-edge]

Each layer is compiled by itself, simulated, exported, and priced by the peer in an environment that
is made under --environments.  Rows stay in the JSON ledger beside the page; a layer that the peer
cannot express is a row with the reason.  Exit 1: a peer failed, or more than 5 % of a figure has no
named cause.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.cells import Row, fill
from benchmarks.peers.compare import (
    accelforge_figures,
    nn_dataflow_figures,
    scalesim_figures,
    zigzag_figures,
)
from benchmarks.peers.environments import ENVIRONMENTS, python_of, run_peer
from benchmarks.peers.layers import LAYERS, PRESETS, Compiled, compiled
from worker.compiler.errors import CompilerError
from worker.compiler.export.export import export_kernels
from worker.compiler.export.peer import Peer

FIGURES = {
    "zigzag": zigzag_figures,
    "accelforge": accelforge_figures,
    "scalesim": scalesim_figures,
    "nn-dataflow": nn_dataflow_figures,
}
TOLERANCE = 0.05
SLOW = {"scalesim": 60_000}
"""Cycles that a peer is asked to step through one by one at most."""


def run_cell(peer: str, preset: str, name: str, environments: Path) -> Row:
    """Compile, export and price one layer."""
    with tempfile.TemporaryDirectory() as scratch:
        layer = compiled(name, preset, Path(scratch))
        if layer.simulation.cycles > SLOW.get(peer, sys.maxsize):
            return {"left_out": f"more than {SLOW[peer]:,} cycles, which it steps through singly"}
        return _priced(peer, layer, Path(scratch) / "exported", environments)


def _priced(peer: str, layer: Compiled, folder: Path, environments: Path) -> Row:
    try:
        export = export_kernels((layer.kernel,), layer.machine, Peer(peer))
    except CompilerError as error:
        return {"left_out": error.findings[0].message.partition(": ")[2]}
    for name, text in export.files:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = run_peer(peer, python_of(peer, environments), folder, 1800)
    if "failure" in found:
        return {"failure": found["failure"]}
    (exported,) = export.exported
    figures = FIGURES[peer](layer, exported.nest, found[exported.name])
    return {"figures": [figure.row() for figure in figures]}


def page(rows: Mapping[str, Row]) -> str:
    """The ledger as tables, one a peer."""
    lines = [
        "# Other cost models on the same loop nests", "",
        "Written by `python -m benchmarks.peers`; ratios are theirs to ours, causes and the"
        " unexplained rest are shares of ours. Versions and rules: `docs/exports.md`.",
    ]  # fmt: skip
    for peer in FIGURES:
        lines += ["", f"## {peer}", "",
                  "| machine | layer | figure | ours | theirs | ratio | causes | unexplained |",
                  "|---|---|---|---:|---:|---:|---|---:|"]  # fmt: skip
        for key, row in rows.items():
            of, preset, name = key.split("/")
            if of == peer:
                lines += _lines(preset, name, row)
    return "\n".join(lines) + "\n"


def _lines(preset: str, name: str, row: Row) -> list[str]:
    head = f"| {preset} | {name} |"
    if "figures" not in row:
        return [f"{head} {row.get('left_out') or row.get('failure')} | | | | | |"]
    return [
        f"{head} {f['figure']} | {f['ours']:,} | {f['theirs']:,} | {f['ratio']:.3f} |"
        f" {'; '.join(f'{k} {v:+.1%}' for k, v in f['causes'].items())} | {_rest(f)} |"
        for f in row["figures"]
    ]


def _rest(figure: Mapping[str, Any]) -> str:
    return str(figure["apart"]) if "apart" in figure else f"{figure['unexplained']:+.1%}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/PEERS.md"))
    parser.add_argument("--environments", type=Path, default=Path("build/peers"))
    parser.add_argument("--peers", nargs="*", default=list(ENVIRONMENTS))
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--only", nargs="*", default=list(LAYERS))
    parser.add_argument("--again", action="store_true", help="run finished rows again")
    args = parser.parse_args(argv)
    keys = [f"{p}/{preset}/{name}" for p in args.peers for preset in args.presets
            for name in args.only]  # fmt: skip

    def run(key: str) -> Row:
        peer, preset, name = key.split("/")
        return run_cell(peer, preset, name, args.environments)

    def written(rows: Mapping[str, Row]) -> None:
        args.out.write_text(page(rows))

    rows, failed = fill(
        args.out.with_suffix(".json"), keys, run, again=args.again, after_each=written
    )
    written(rows)
    sys.stdout.write(page({key: rows[key] for key in keys}))
    unnamed = [key for key in keys for f in rows[key].get("figures", []) if _is_unnamed(f)]
    return int(failed or bool(unnamed))


def _is_unnamed(figure: Mapping[str, Any]) -> bool:
    return "apart" not in figure and abs(float(figure["unexplained"])) > TOLERANCE


if __name__ == "__main__":
    sys.exit(main())

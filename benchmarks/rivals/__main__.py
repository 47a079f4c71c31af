"""nn-dataflow's search: its optima found again, its time, and how far `naive` is.

    python -m benchmarks.rivals --tool CHECKOUT --out benchmarks/RIVALS.md
    python -m benchmarks.rivals --tool CHECKOUT --only alex_net      # the tool's figures of one
    python -m benchmarks.rivals                       # without the tool: a minute

CHECKOUT is one of nn_dataflow at 198a527 (release 2.1 counts the array's words otherwise); what it
needs is installed into an environment of its own.  What the tool found is kept in a JSON file
beside the page, and stands there until the tool is run on that network again.

First table: the least energy of whole networks in the tool's own space (every replication, exact
cut and order: `blocking`), compiled beforehand, and the same of the tool, one process each, CPU
seconds of the search alone, one after the other.  Exit 1: the two differ.
Second table: the same on a mesh of 16 x 16 nodes with arrays of 8 x 8, 32 words a PE and 16 384 in
the buffer, memory at the corners: the least energy of all cuts, blockings and layouts of a network
together, and what the tool's rule finds (blockings chosen without hops, the best of each layer
kept), by the formulas and by the tool, whose dictionaries are patched.  Exit 1: these two differ.
States: combinations of layouts of the maps that are still to be read, where they are most; all of
them are kept, so nothing is bounded or left out.
Third table: DRAM words and energy of AlexNet's layers, batch 16, float16, by `naive` for each
objective as simulated, on the same array and buffer: kapla-edge with 128 KiB, no bursts and words
of 2 bytes as alignment.  What the two are allowed is not the same.  The tool's blockings need no
second copy of a tile, are exact, and hold sums in 256 words of every PE; ours may cut unevenly and
count what simulation moves, leakage (0.1 W) and what the array draws, but place nothing in the PEs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import python_of
from benchmarks.rivals.blocking import optimum
from benchmarks.rivals.graphs import GRAPHS
from benchmarks.rivals.mesh_networks import by_rule, of_graph
from benchmarks.rivals.nets import NETS
from benchmarks.rivals.row_stationary import Layer, Node
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.signature import canonicalize
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.options import Objective
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.strategies.base import Budget
from worker.compiler.strategies.naive.strategy import NAIVE
from worker.simulator.run import simulate_unit
from worker.validation.figures import Conv
from worker.validation.operators import graph_of

RUNS = (
    ("mlp_l", 1), ("lstm_gnmt", 1), ("alex_net", 1), ("alex_net", 16), ("mobilenet", 1),
    ("resnet50", 1), ("googlenet", 1), ("vgg_net", 1),
)  # fmt: skip
NOT_THE_TOOLS = ("mobilenet",)
"""Networks that it has no file of."""
NOT_ON_A_MESH = ("googlenet",)
"""Those that it has, and searches too long there."""
PAGE = Path(__file__).resolve().parent.parent / "RIVALS.md"
OBJECTIVES = (Objective.LATENCY, Objective.ENERGY, Objective.OFFCHIP)
NET, BATCH = "alex_net", 16
BUFFER_BYTES = 131_072
HEAD = (
    ("net", "batch", "least energy", "its cycles", "candidates", "CPU s", "the tool's", "ratio"),
    ("net", "batch", "cuts", "states", "least energy", "by the rule", "over", "CPU s",
     "the tool's", "ratio"),
    ("layer", "objective", "M words of DRAM", "the optimum's", "ratio", "mJ", "the optimum's",
     "ratio", "cycles", "CPU s"),
)  # fmt: skip


def network(net: str, batch: int) -> tuple[int, int, int, float]:
    """(energy, cycles, candidates, CPU seconds) of all layers, equal ones solved once."""
    began = time.process_time()
    found = [(optimum(layer, batch, Node()), times) for _, layer, times in NETS[net]()]
    seconds = time.process_time() - began
    return (
        round(sum(o.energy * times for o, times in found)),
        round(sum(o.cycles * times for o, times in found)),
        sum(o.candidates for o, _ in found), seconds,
    )  # fmt: skip


def of_the_tool(checkout: Path, python: Path, runs: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """What the tool finds, by `net:batch`."""
    script = Path(__file__).with_name("nn_dataflow_search.py")
    asked = [f"{net}:{batch}" for net, batch in runs if net not in NOT_THE_TOOLS]
    asked += [
        f"{net}:{batch}:mesh"
        for net, batch in runs
        if batch == 1 and net not in (*NOT_THE_TOOLS, *NOT_ON_A_MESH)
    ]
    ran = subprocess.run(
        [str(python), str(script), *asked], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(checkout.resolve())},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return found


def networks(runs: Sequence[tuple[str, int]], tool: Mapping[str, Any]) -> Iterator[list[str]]:
    """Rows of the first table.

    Raises:
        SystemExit: the tool's optimum is another one.
    """
    network(*RUNS[0])  # compiles the loop, or loads it
    for net, batch in runs:
        energy, cycles, candidates, seconds = network(net, batch)
        row = [net, str(batch), f"{energy:,}", f"{cycles:,}", f"{candidates:,}", f"{seconds:.4f}"]
        theirs = tool.get(f"{net}:{batch}")
        if theirs is None:
            yield [*row, "", ""]
            continue
        if (round(theirs["energy"]), round(theirs["cycles"])) != (energy, cycles):
            raise SystemExit(f"{net} {batch}: {energy}, {cycles}; the tool finds {theirs}")
        yield [*row, f"{theirs['cpu_s']:.1f}", f"{theirs['cpu_s'] / seconds:,.0f}"]


def mesh(runs: Sequence[tuple[str, int]], tool: Mapping[str, Any]) -> Iterator[list[str]]:
    """Rows of the second table.

    Raises:
        SystemExit: the tool finds something else than its rule does.
    """
    of_graph(GRAPHS[RUNS[0][0]](), 1)  # compiles the loops, or loads them
    for net, batch in runs:
        if batch != 1:
            continue
        graph = GRAPHS[net]()
        found = of_graph(graph, batch)
        began = time.process_time()
        ruled = by_rule(graph, batch)
        seconds = time.process_time() - began
        row = [
            net, str(batch), f"{found.cuts:,}", f"{found.states:,}", f"{found.energy:,}",
            f"{ruled:,}", f"{100 * (ruled / found.energy - 1):.2f} %",
            f"{found.seconds:.2f}, {seconds:.2f}",
        ]  # fmt: skip
        theirs = tool.get(f"{net}:{batch}:mesh")
        if theirs is None:
            yield [*row, "", ""]
            continue
        if round(theirs["energy"]) != ruled:
            raise SystemExit(f"{net} {batch} on a mesh: {ruled}; the tool finds {theirs}")
        yield [*row, f"{theirs['cpu_s']:.1f}", f"{theirs['cpu_s'] / found.seconds:.1f}"]


def one_node() -> Machine:
    """The reference problem's node, as nearly as our machines can say it."""
    machine = load_preset("kapla-edge")
    home, buffer, *rest = machine.levels
    return replace(machine, levels=(
        replace(home, burst_bytes=1, align_bytes=2),
        replace(buffer, capacity_bytes=BUFFER_BYTES, align_bytes=2), *rest,
    ))  # fmt: skip


def ours(layer: Layer, machine: Machine, objective: Objective) -> tuple[float, float, int, float]:
    """(DRAM words, pJ, cycles, CPU seconds of the search) of the best candidate, simulated."""
    size = (layer.size[0] - 1) * layer.stride + layer.window[0]
    graph = canonicalize(graph_of(Conv(
        batch=BATCH, in_channels=layer.channels, out_channels=layer.filters, size=size,
        kernel=layer.window[0], stride=layer.stride, dtype=DType.F16,
    )))  # fmt: skip
    began = time.process_time()
    answers = list(NAIVE.candidates(graph.graph, machine, budget=Budget(3, (objective,))))
    seconds = time.process_time() - began
    found = []
    for schedule in answers:
        assert isinstance(schedule, Schedule)
        ran = simulate_unit(lower_unit(schedule, machine, graph.signature), machine)
        home = next(t for t in ran.traffic if t.level == machine.home.name)
        words = (home.read_bytes + home.write_bytes) / 2
        found.append((words, sum(line.pj for line in ran.energy), ran.cycles))
    place = {Objective.OFFCHIP: 0, Objective.ENERGY: 1, Objective.LATENCY: 2}[objective]
    return (*min(found, key=lambda row: row[place]), seconds)


def layers() -> Iterator[list[str]]:
    """Rows of the third table; what is no product is left out."""
    machine = one_node()
    for name, layer, _ in NETS[NET]():
        if layer.is_region:
            continue
        least = optimum(layer, BATCH, Node())
        for objective in OBJECTIVES:
            words, pj, cycles, seconds = ours(layer, machine, objective)
            yield [
                name, str(objective), f"{words / 1e6:.3f}", f"{least.dram_words / 1e6:.3f}",
                f"{words / least.dram_words:.3f}", f"{pj / 1e9:.2f}", f"{least.energy / 1e9:.2f}",
                f"{pj / least.energy:.3f}", f"{cycles:,}", f"{seconds:.2f}",
            ]  # fmt: skip


def table(head: Sequence[str], rows: Iterator[list[str]]) -> str:
    """In Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", type=Path, metavar="CHECKOUT")
    parser.add_argument("--environments", type=Path,
                        default=Path(tempfile.gettempdir()) / "tilewright-peers")  # fmt: skip
    parser.add_argument("--only", help="one network")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    runs = [run for run in RUNS if args.only in {None, run[0]}]
    figures = (args.out or PAGE).with_suffix(".json")
    tool: dict[str, Any] = json.loads(figures.read_text()) if figures.exists() else {}
    if args.tool is not None:
        tool |= of_the_tool(args.tool, python_of("nn-dataflow", args.environments), runs)
        figures.write_text(json.dumps(tool, indent=1, sort_keys=True) + "\n")
    text = table(HEAD[0], networks(runs, tool)) + "\n\n" + table(HEAD[1], mesh(runs, tool))
    if args.only in {None, NET}:
        text += "\n\n" + table(HEAD[2], layers())
    sys.stdout.write(text + "\n")
    if args.out is not None:
        args.out.write_text(f"# Rivals\n\n{_said()}\n\n{text}\n")
    return 0


def _said() -> str:
    """The head of this file, as the page's."""
    assert __doc__ is not None
    commands, _, rest = __doc__.partition("\n\n    ")[2].partition("\n\n")
    return f"`{commands.splitlines()[0]}`\n\n{rest.strip()}"


if __name__ == "__main__":
    sys.exit(main())

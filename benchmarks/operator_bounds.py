"""How far single operators are from what no schedule can beat: products and convolutions on GPUs.

    python -m benchmarks.operator_bounds [--presets a100] [--only 4096] [--every 3]

Square and skinny products in fp16 (M x N x K of decoders and encoders), batches of attention's, and
ResNet-50's convolutions.  `ours`: the fastest candidate of `naive`, simulated, with one launch.
`bound`: the kernel's floor (`cost/floor.py`: sustained rates, whole arrays, each byte once, first
and last transfer) with one launch; all engines that can share the work in it, cores evenly.
`one engine`: the same where the engine that ours uses works alone.  `space`: what no tiling of the
search's space is predicted to take less than (`tiling/nest/branch_bound.py`), with one launch: not
of schedules at large, and as far off as predictions are.  The target is 1.2 of a bound, or 1.02 of
the space's.  `gap`: by how much its best tiling could be better, as predictions go.  `off`: the
mean of |ln(predicted / simulated)| over all candidates, without launches.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp, log

from worker.compiler.cost.compute import engines_of
from worker.compiler.cost.floor import kernel_floor
from worker.compiler.ir.affine import var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.ir.signature import canonicalize
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import EngineKind, Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.strategies.naive.certificate import Certificate
from worker.compiler.strategies.naive.descriptor import NaiveOptions
from worker.compiler.strategies.naive.strategy import NAIVE
from worker.simulator.run import simulate_unit
from worker.validation.figures import Conv, Gemm
from worker.validation.operators import graph_of

PRESETS = ("a100", "h200")
SQUARE = (512, 1024, 2048, 4096, 8192)
SKINNY_ROWS = (1, 8, 64, 128, 512)
SKINNY = ((4096, 4096), (14336, 4096), (4096, 14336), (768, 768), (3072, 768), (768, 3072))
BATCHED = ((12, 128, 128, 64), (12, 512, 512, 64), (32, 2048, 2048, 128))
CONVS = (
    # in, out, size, kernel, stride, pad
    (3, 64, 224, 7, 2, 3), (64, 64, 56, 1, 1, 0), (64, 64, 56, 3, 1, 1), (64, 256, 56, 1, 1, 0),
    (256, 64, 56, 1, 1, 0), (256, 128, 56, 1, 1, 0), (128, 128, 56, 3, 2, 1),
    (128, 512, 28, 1, 1, 0), (256, 512, 56, 1, 2, 0), (512, 128, 28, 1, 1, 0),
    (128, 128, 28, 3, 1, 1), (512, 256, 28, 1, 1, 0), (256, 256, 28, 3, 2, 1),
    (256, 1024, 14, 1, 1, 0), (512, 1024, 28, 1, 2, 0), (1024, 256, 14, 1, 1, 0),
    (256, 256, 14, 3, 1, 1), (1024, 512, 14, 1, 1, 0), (512, 512, 14, 3, 2, 1),
    (512, 2048, 7, 1, 1, 0), (1024, 2048, 14, 1, 2, 0), (2048, 512, 7, 1, 1, 0),
    (512, 512, 7, 3, 1, 1),
)  # fmt: skip
TARGET = 1.2
OF_SPACE = 1.02
PROVEN, MOST = 0.005, 0.15
"""Gaps: of what is searched to its end, and the largest that issue 17 allows."""
Row = tuple[int, int, int, int, float, float]
"""(ours, bound, bound with one engine, of the space), in cycles; the certificate's gap; how far
predictions are off."""


def operators() -> Iterator[tuple[str, Graph]]:
    """(name, graph) of every operator."""
    shapes = [(m, m, m) for m in SQUARE] + [(m, n, k) for n, k in SKINNY for m in SKINNY_ROWS]
    for m, n, k in shapes:
        yield f"{m}x{n}x{k}", graph_of(Gemm(m=m, n=n, k=k, dtype=DType.F16))
    for batch, m, n, k in BATCHED:
        yield f"{batch} x {m}x{n}x{k}", batched(batch, m, n, k)
    for ins, outs, size, kernel, stride, pad in CONVS:
        work = Conv(
            batch=1, groups=1, in_channels=ins, out_channels=outs, size=size, kernel=kernel,
            stride=stride, pad=pad, dtype=DType.F16,
        )  # fmt: skip
        yield f"conv {ins}-{outs} {size} {kernel}x{kernel}/{stride}", graph_of(work)


def batched(batch: int, m: int, n: int, k: int, dtype: DType = DType.F16) -> Graph:
    """c[b, m, n] = sum over k of a[b, m, k] b[b, k, n]."""
    b, i, j, s = (var(name) for name in "bmnk")
    shapes = {"a": (batch, m, k), "w": (batch, k, n), "c": (batch, m, n)}
    op = TensorOp(
        "op", (Axis("b", batch), Axis("m", m), Axis("n", n), Axis("k", k, AxisKind.REDUCE)),
        (Access("a", (b, i, s)), Access("w", (b, s, j))), Access("c", (b, i, j)),
        Apply(Fn.MUL, (Read(0), Read(1))), Reduce.ADD, Origin(("MatMul",), "MatMul"),
    )  # fmt: skip
    tensors = tuple(Tensor(name, shape, dtype) for name, shape in shapes.items())
    return Graph.build((op,), tensors, ("a", "w"), ("c",))


def row_of(graph: Graph, machine: Machine) -> Row:
    """One operator."""
    canonical = canonicalize(graph)
    launch = machine.launch_latency_cycles
    cycles, off, proven, gap = [], [], 1, 0.0
    for schedule in NAIVE.candidates(canonical.graph, machine, NaiveOptions()):
        if isinstance(schedule, Schedule):
            program = lower_unit(schedule, machine, canonical.signature)
            cycles.append(simulate_unit(program, machine).cycles)
            off.append(abs(log((schedule.predicted_cycles - launch) / cycles[-1])))
            for found in filter(None, map(Certificate.said, schedule.notes)):
                proven, gap = round(found.bound) + launch, found.gap
    chosen = engines_of(canonical.graph.ops, canonical.graph.tensors, machine)
    assert not isinstance(chosen, str), "every machine here has an engine for products in fp16"
    moving = (EngineKind.DMA_IN, EngineKind.DMA_OUT)
    names = {engine.name for engine in chosen.values()}
    engines = tuple(e for e in machine.engines if e.kind in moving or e.name in names)
    floors = [
        sum(part for _, part in kernel_floor(canonical.graph, each))
        for each in (machine, replace(machine, engines=engines))
    ]
    ours = min(cycles) + launch
    return ours, floors[0] + launch, floors[1] + launch, proven, gap, sum(off) / len(off)


def main(argv: Sequence[str]) -> int:
    """Entry of the benchmark."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--only", default="", help="operators whose name has this in it")
    parser.add_argument("--every", type=int, default=1, help="one operator in so many")
    asked = parser.parse_args(argv)
    heads = ["operator", "preset", "ours"]
    heads += ["bound", "ratio", "one engine", "ratio", "space", "ratio", "gap", "off"]
    sys.stdout.write(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|\n")
    rows: dict[str, list[Row]] = {preset: [] for preset in asked.presets}
    for name, graph in list(operators())[:: asked.every]:
        if asked.only not in name:
            continue
        for preset in asked.presets:
            ours, *bounds, gap, off = row = row_of(graph, load_preset(preset))
            rows[preset].append(row)
            cells = "".join(f" {bound:,} | {ours / bound:.3f} |" for bound in bounds)
            sys.stdout.write(f"| {name} | {preset} | {ours:,} |{cells} {gap:.3f} | {off:.3f} |\n")
            sys.stdout.flush()
    for preset, found in rows.items():
        for what, k in (("bound", 1), ("one engine", 2), ("space", 3)) if found else ():
            target = OF_SPACE if k == 3 else TARGET
            ratios = [row[0] / row[k] for row in found]
            mean = exp(sum(map(log, ratios)) / len(ratios))
            within = sum(ratio <= target for ratio in ratios)
            sys.stdout.write(f"\n{preset}, {what}: {within} of {len(ratios)} within {target},"
                             f" geometric mean {mean:.4f}, worst {max(ratios):.3f}\n")  # fmt: skip
        if found:
            met = sum(r[0] <= TARGET * r[2] or r[0] <= OF_SPACE * r[3] for r in found)
            off = sum(row[-1] for row in found) / len(found)
            gaps = [row[4] for row in found]
            mean = exp(sum(log(1 + gap) for gap in gaps) / len(gaps)) - 1
            sys.stdout.write(
                f"\n{preset}: gaps of {mean:.4f} in the geometric mean, {max(gaps):.3f} at worst;"
                f" {sum(gap <= PROVEN + 1e-5 for gap in gaps)} of {len(gaps)} searched to the end,"
                f" {sum(gap <= MOST for gap in gaps)} within {MOST}\n"
            )
            sys.stdout.write(
                f"\n{preset}: {met} of {len(found)} within {TARGET} of one engine's bound or"
                f" {OF_SPACE} of the space's; predictions off by {off:.4f} in the mean\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

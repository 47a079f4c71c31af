"""How long a GraphTurbo compile takes: its limits, and how it grows with what must be planned.

    python -m benchmarks.compile_limits [--only limits growth] [--repeat 1] [--blocks 2 4 8 16]
                                        [--preset stcp920-inferred] [--json]

Limits: ResNet-50 with 16 samples per cluster and BERT-base of 128 tokens, each compiled in a fresh
process as in `benchmarks.compile_time`, beside an ONNX Runtime session of the same file.  The
strategy simulates the kernels it compares, so simulation counts here; packaging does not.  A limit
is judged by CPU seconds: neighbours on the machine stretch the wall clock, not the work (much).

Growth: made-up residual networks whose blocks all differ in width, so that no unit and no layer is
shared.  The exponent is fitted to CPU seconds over operators: 1 is linear.  Units hold at most 128
operators, so what is more than linear inside a unit ends there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.compile_time import child, measure, render
from benchmarks.zoo import ZOO, materialized

STRATEGY = "graphturbo"
RSS_LIMIT_MB = 2048.0
MAX_EXPONENT = 1.3
"""What still counts as near-linear."""
CHANNELS, SIDE, SAMPLES = 16, 14, 4


@dataclass(frozen=True, slots=True)
class Limit:
    """What one compile may take, in seconds; None: no limit."""

    model: str
    symbols: Mapping[str, int]
    cold_s: float
    warm_s: float | None


LIMITS = (
    Limit("resnet50_fp16", {"N": 64}, 20.0, 2.0),
    Limit("bert_base_s128", {}, 10.0, None),
)
"""On four clusters, 64 samples are 16 per cluster."""


def judged(limit: Limit, row: Mapping[str, Any]) -> dict[str, bool]:
    """Which limits a row of `measure` keeps, by name."""
    found = {"cold": row["cold_cpu_s"] <= limit.cold_s, "rss": row["peak_rss_mb"] <= RSS_LIMIT_MB}
    if limit.warm_s is not None:
        found["warm"] = max(row["warm_cpu_s"], row["warm_process_cpu_s"]) <= limit.warm_s
    return found


def widening_net(blocks: int) -> onnx.ModelProto:
    """`blocks` pairs of bottlenecks around shortcuts, every one of another width."""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def conv(source: str, name: str, cin: int, cout: int, kernel: int) -> str:
        shape = (cout, cin, kernel, kernel)
        values = np.full(shape, 1.0 / (cin * kernel * kernel), dtype=np.float32)
        weights.append(onnx.numpy_helper.from_array(values, f"{name}_w"))
        nodes.append(
            helper.make_node("Conv", [source, f"{name}_w"], [name], name, pads=[kernel // 2] * 4)
        )
        return name

    def node(kind: str, inputs: Sequence[str], name: str) -> str:
        nodes.append(helper.make_node(kind, inputs, [name], name))
        return name

    source, channels = "x", CHANNELS
    for k in range(2 * blocks):
        width = CHANNELS + 4 * (k + 1)
        entry = conv(source, f"b{k}_in", channels, width, 1)
        inner = node("Relu", [conv(entry, f"b{k}_a", width, width // 2, 1)], f"b{k}_ra")
        inner = node("Relu", [conv(inner, f"b{k}_b", width // 2, width // 2, 3)], f"b{k}_rb")
        back = conv(inner, f"b{k}_c", width // 2, width, 1)
        source = node("Relu", [node("Add", [back, entry], f"b{k}_sum")], f"b{k}_out")
        channels = width
    graph = helper.make_graph(
        nodes, "widening",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (SAMPLES, CHANNELS, SIDE, SIDE))],
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, (SAMPLES, channels, SIDE, SIDE))],
        weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Slope of the straight line through (log size, log seconds).

    Raises:
        ValueError: fewer than two different sizes.
    """
    x, y = [log(size) for size in sizes], [log(second) for second in seconds]
    middle, height = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - middle) ** 2 for a in x)
    if not spread:
        raise ValueError("a line needs two different sizes")
    return sum((a - middle) * (b - height) for a, b in zip(x, y, strict=True)) / spread


def growth(preset: str, blocks: Sequence[int], repeat: int) -> dict[str, Any]:
    """CPU seconds of cold compiles in fresh processes (the least of `repeat`), by size."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in blocks:
            model = widening_net(number)
            path = Path(folder) / f"blocks{number}.onnx"
            onnx.save(model, path)
            samples = [
                child(path, {}, preset, Path(folder) / f"cache{number}_{k}.json", STRATEGY)
                for k in range(repeat)
            ]
            seconds = min(row["cold"]["cpu_s"] for row in samples)
            units, operators = samples[0]["units"], len(model.graph.node)
            rows.append(
                {"blocks": number, "operators": operators, "units": units, "cold_cpu_s": seconds,
                 "s_per_unit": seconds / units, "s_per_operator": seconds / operators}
            )  # fmt: skip
    found = exponent([row["operators"] for row in rows], [row["cold_cpu_s"] for row in rows])
    return {"preset": preset, "rows": rows, "exponent": found, "passed": found <= MAX_EXPONENT}


def render_growth(found: Mapping[str, Any]) -> str:
    """A table as text."""
    lines = [f"growth on {found['preset']}: blocks of different widths, nothing shared"]
    lines.append("  blocks  operators  units  cold CPU s  s per unit  s per operator")
    lines += [
        f"  {row['blocks']:6}  {row['operators']:9}  {row['units']:5}  {row['cold_cpu_s']:10.2f}"
        f"  {row['s_per_unit']:10.2f}  {row['s_per_operator']:14.4f}"
        for row in found["rows"]
    ]
    verdict = "met" if found["passed"] else "MISSED"
    lines.append(f"  exponent {found['exponent']:.2f} (near-linear: <= {MAX_EXPONENT}): {verdict}")
    return "\n".join(lines)


def render_limit(limit: Limit, row: Mapping[str, Any]) -> str:
    """`compile_time`'s lines, then every limit with pass or fail."""
    shown = {
        "cold": f"cold {row['cold_cpu_s']:.1f} <= {limit.cold_s:g} CPU s",
        "rss": f"peak RSS {row['peak_rss_mb']:.0f} <= {RSS_LIMIT_MB:.0f} MB",
    }
    if limit.warm_s is not None:
        warm = max(row["warm_cpu_s"], row["warm_process_cpu_s"])
        shown["warm"] = f"warm {warm:.1f} <= {limit.warm_s:g} CPU s"
    verdicts = judged(limit, row)
    words = [f"{text}: {'met' if verdicts[name] else 'MISSED'}" for name, text in shown.items()]
    return "\n".join([render(dict(row)), *(f"  limit {line}" for line in words)])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", choices=("limits", "growth"))
    parser.add_argument("--preset", default="stcp920-inferred")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--blocks", type=int, nargs="*", default=[2, 4, 8, 16])
    parser.add_argument("--file", type=Path, help="an .onnx file instead of the models with limits")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "tw-zoo")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    wanted = args.only or ("limits", "growth")
    passed = True

    def say(row: Mapping[str, Any], text: str) -> None:
        sys.stdout.write((json.dumps(row) if args.json else text) + "\n")
        sys.stdout.flush()

    for limit in LIMITS if "limits" in wanted else ():
        zoo = next(m for m in ZOO if m.stem == limit.model)
        path = args.file or materialized(zoo, args.scratch)
        symbols = {} if args.file else dict(limit.symbols)
        row = measure(path, symbols, args.preset, args.repeat, STRATEGY)
        row["passed"] = all(judged(limit, row).values())
        passed = passed and row["passed"]
        say(row, render_limit(limit, row))
    if "growth" in wanted:
        found = growth(args.preset, args.blocks, args.repeat)
        passed = passed and found["passed"]
        say(found, render_growth(found))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

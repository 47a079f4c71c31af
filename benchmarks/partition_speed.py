"""How long partitioning takes: 10 000 made-up nodes, and BERT-base.

    python -m benchmarks.partition_speed [--nodes 10000] [--presets xavier a100 dpu-zu]
                                         [--repeat 5] [--json]

The made-up model mixes operators that every preset takes, operators that none takes, fused
patterns (Conv, Add, Relu), branches that join again and long skips.  It goes through the front end
and, where the preset asks for integers, through conversion first; neither is timed, only
partitioning is: annotate (rules and patterns), read the data flow, merge, split, and the whole
`partition()`, which does all of that and drops, orders and explains as well.

Beside it, in the same process: a plain topological sort of the same nodes by value name, and
`onnx.checker` on the same graph.  Every figure is the fastest of --repeat: the cost when
neighbours are quiet, in CPU seconds of its one thread.  Nodes are counted as partitioned: with the
conversions that an integer preset makes necessary.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir
from onnx import TensorProto, helper, numpy_helper

from benchmarks.zoo import ZOO, materialized
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.simplify import simplify
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions
from worker.compiler.partition.annotate import annotate
from worker.compiler.partition.flow import read_flow
from worker.compiler.partition.measure import Ruler
from worker.compiler.partition.partition import merged, partition
from worker.compiler.partition.split import split_region
from worker.compiler.pipeline import convert_for
from worker.verification.inputs import seeded_inputs

SYNTHETIC_TARGET_S = 2.0
BERT_TARGET_S = 0.3
BERT = "bert_base_s128"
_CHANNELS, _SIDE = 8, 6


def synthetic(count: int, seed: int = 0) -> onnx.ModelProto:
    """A model of `count` nodes, in blocks of eight.

    A block: Conv, Add and Relu on the trunk; Conv and Sigmoid on a branch; Mul joins them; Add
    brings in the trunk of up to 40 blocks ago; the eighth node is a MaxPool whose result returns
    later, or (one block in six) an operator that only the host has.
    """
    rng = np.random.default_rng(seed)
    shape = [1, _CHANNELS, _SIDE, _SIDE]
    weights: dict[str, npt.NDArray[Any]] = {
        f"w{k}": rng.standard_normal((_CHANNELS, _CHANNELS, 3, 3)).astype(np.float32) / 40
        for k in range(4)
    }
    weights["axis"] = np.array(3, np.int64)
    weights["bias"] = rng.standard_normal((1, _CHANNELS, 1, 1)).astype(np.float32)
    nodes: list[onnx.NodeProto] = []

    def add(op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"n{len(nodes)}"
        nodes.append(helper.make_node(op_type, inputs, [f"v{name}"], name=name, **attributes))
        return f"v{name}"

    trunk = "x"
    trunks = ["x"]
    while len(nodes) + 8 <= count:
        block = len(trunks)
        pads = {"pads": [1, 1, 1, 1]}
        head = add("Relu", add("Add", add("Conv", trunk, f"w{block % 4}", **pads), "bias"))
        gate = add("Sigmoid", add("Conv", trunk, f"w{(block + 1) % 4}", **pads))
        joined = add("Mul", head, gate)
        # Both keep the shape.
        if block % 6 == 0:
            joined = add("CumSum", joined, "axis")
        else:
            joined = add("MaxPool", joined, kernel_shape=[3, 3], **pads)
        far = trunks[max(0, block - 1 - int(rng.integers(1, 40)))]
        trunk = add("Add", joined, far)
        trunks.append(trunk)
    while len(nodes) < count:
        trunk = add("Tanh", trunk)
    graph = helper.make_graph(
        nodes,
        "synthetic",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(trunk, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def prepared(path: Path, machine: Machine) -> OnnxModel:
    """The model as `partition` gets it: with the machine's conversions."""
    model = simplify(bind(load_model(path, Limits(), path.stem), {}))
    return convert_for(model, machine, CompileOptions(), lambda m: (seeded_inputs(m, 0),)).model


def sized_synthetic(count: int, machine: Machine) -> tuple[int, OnnxModel]:
    """(nodes before conversion, a made-up model of about `count` nodes as they are partitioned).

    Conversion to integers triples the nodes, so such machines get a model of fewer.
    """
    sample = min(count, 400)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "synthetic.onnx"
        onnx.save(synthetic(sample), path)
        share = sample / len(prepared(path, machine).ir.graph)
        wanted = count if share == 1 else round(count * share)
        onnx.save(synthetic(wanted), path)
        return wanted, prepared(path, machine)


def sorted_names(model: OnnxModel) -> list[str]:
    """Node names in a topological order (Kahn's algorithm on value names): the reference."""
    nodes = list(model.ir.graph)
    producer = {v.name: k for k, node in enumerate(nodes) for v in node.outputs}
    waiting = [0] * len(nodes)
    after: list[list[int]] = [[] for _ in nodes]
    for k, node in enumerate(nodes):
        for value in node.inputs:
            if value is not None and value.name in producer:
                after[producer[value.name]].append(k)
                waiting[k] += 1
    ready = deque(k for k, count in enumerate(waiting) if not count)
    order: list[str] = []
    while ready:
        k = ready.popleft()
        order.append(nodes[k].name or "")
        for other in after[k]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return order


def fastest(call: Callable[[], object], repeat: int) -> float:
    """Least CPU seconds of `repeat` calls (all of this is one thread: wall seconds when idle)."""
    times = []
    for _ in range(repeat):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    return min(times)


def measure(model: OnnxModel, machine: Machine, repeat: int) -> dict[str, Any]:
    """Seconds of each step of partitioning one model, and of the references."""
    found = annotate(model, machine, {})
    flow = read_flow(model)
    regions = merged(flow, found.placement, found.composites)
    rules = {target.name: target.criteria for target in machine.targets}

    def split() -> None:
        ruler = Ruler(flow, tuple(model.ir.graph))
        for region in regions:
            split_region(region, rules[region.target], machine, flow, ruler)

    proto = _weightless(model)
    parts = partition(model, machine, {})
    row: dict[str, Any] = {
        "nodes": len(found.placement), "regions": len(parts.regions), "parts": len(parts.parts),
        "composites": len(found.composites),
        "annotate_s": fastest(lambda: annotate(model, machine, {}), repeat),
        "flow_s": fastest(lambda: read_flow(model), repeat),
        "merge_s": fastest(lambda: merged(flow, found.placement, found.composites), repeat),
        "split_s": fastest(split, repeat),
        "partition_s": fastest(lambda: partition(model, machine, {}), repeat),
        "sort_s": fastest(lambda: sorted_names(model), repeat),
        "checker_s": fastest(lambda: onnx.checker.check_model(proto), repeat),
    }  # fmt: skip
    row["ratio_to_sort"] = row["partition_s"] / row["sort_s"]
    row["ratio_to_checker"] = row["partition_s"] / row["checker_s"]
    return row


def _weightless(model: OnnxModel) -> onnx.ModelProto:
    """The graph with large weights as inputs: the checker would hash hundreds of megabytes."""
    clone = model.ir.clone()
    for name, value in list(clone.graph.initializers.items()):
        if value.const_value is not None and value.const_value.nbytes > 1024:
            del clone.graph.initializers[name]
            value.const_value = None
            clone.graph.inputs.append(value)
    return onnx_ir.serde.serialize_model(clone)


def render(row: dict[str, Any]) -> str:
    """Two lines of text."""
    steps = ", ".join(f"{s} {row[f'{s}_s']:.3f}" for s in ("annotate", "flow", "merge", "split"))
    return (
        f"{row['model']} on {row['preset']}: {row['nodes']} nodes"
        f"{' made of ' + str(row['user_nodes']) if row['user_nodes'] else ''},"
        f" {row['composites']} composites,"
        f" {row['regions']} regions, {row['parts']} parts\n"
        f"  partition {row['partition_s']:.3f} s (target {row['target_s']:g}): {steps};"
        f" {row['ratio_to_sort']:.0f} x a topological sort ({row['sort_s']:.4f} s),"
        f" {row['ratio_to_checker']:.1f} x onnx.checker ({row['checker_s']:.3f} s)"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.partition_speed")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--presets", nargs="*", default=["xavier", "a100", "dpu-zu"])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--synthetic-only", action="store_true")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "tw-zoo")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    passed = True
    for name, target_s in (("synthetic", SYNTHETIC_TARGET_S), (BERT, BERT_TARGET_S)):
        if args.synthetic_only and name == BERT:
            continue
        for preset in args.presets:
            machine = load_preset(preset)
            if name == BERT:
                zoo = next(m for m in ZOO if m.name == BERT)
                user_nodes, model = 0, prepared(materialized(zoo, args.scratch), machine)
            else:
                user_nodes, model = sized_synthetic(args.nodes, machine)
            row = {"model": name, "preset": preset, "target_s": target_s}
            row |= {"user_nodes": user_nodes} | measure(model, machine, args.repeat)
            row["passed"] = row["partition_s"] <= target_s
            passed = passed and row["passed"]
            sys.stdout.write((json.dumps(row) if args.json else render(row)) + "\n")
            sys.stdout.flush()
    if not args.json:
        sys.stdout.write(f"targets: {'met' if passed else 'MISSED'}\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

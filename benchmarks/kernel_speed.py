"""Speed of generated kernels against ONNX Runtime, single thread, in one process and one run.

    python benchmarks/kernel_speed.py [--preset NAME] [--repeat 7]

Every operator is scheduled by `naive` for the preset, so the kernels run on that machine's tiles,
with poison and bounds checks on: this is the speed at which whole models are verified.  The two
sides alternate, times are CPU time, and the minimum counts; a ratio above 1 means slower than ONNX
Runtime.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from onnx import TensorProto, helper

from worker.compiler.codegen.kernel import generate_kernel
from worker.compiler.frontend.express import express_region
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.signature import canonicalize
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.package.build import build_library
from worker.compiler.package.emulator import Arena, Emulator
from worker.compiler.package.executable import level_specs
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.strategies.naive.strategy import NaiveStrategy


@dataclass(frozen=True, slots=True)
class Case:
    """One ONNX operator with the shapes of its inputs; the first is the activation."""

    name: str
    op_type: str
    shapes: tuple[tuple[int, ...], ...]
    attrs: tuple[tuple[str, object], ...] = ()


def conv(name: str, c: int, f: int, size: int, k: int, stride: int = 1, groups: int = 1) -> Case:
    pad = k // 2
    return Case(
        name, "Conv", ((1, c, size, size), (f, c // groups, k, k)),
        (("pads", [pad] * 4), ("strides", [stride] * 2), ("group", groups)),
    )  # fmt: skip


CASES = (
    Case("matmul 128x768x3072", "MatMul", ((128, 768), (768, 3072))),
    Case("matmul 512x512x512", "MatMul", ((512, 512), (512, 512))),
    Case("matmul 12x128x64x128", "MatMul", ((12, 128, 64), (12, 64, 128))),
    Case("matmul 1x2048x1000", "MatMul", ((1, 2048), (2048, 1000))),
    conv("conv 7x7/2 3->64 at 224", 3, 64, 224, 7, 2),
    conv("conv 3x3 64->64 at 56", 64, 64, 56, 3),
    conv("conv 1x1 64->256 at 56", 64, 256, 56, 1),
    conv("conv 3x3/2 128->128 at 56", 128, 128, 56, 3, 2),
    conv("conv 3x3 512->512 at 7", 512, 512, 7, 3),
    conv("conv 1x1 2048->512 at 7", 2048, 512, 7, 1),
    conv("depthwise 3x3 144 at 56", 144, 144, 56, 3, 1, 144),
    conv("depthwise 3x3 960 at 7", 960, 960, 7, 3, 1, 960),
)


def macs_of(graph: Graph) -> int:
    """Points of the operators that multiply and add."""
    return sum(op.num_points for op in graph.ops if getattr(op, "reduce_axes", ()))


def onnx_model(case: Case) -> bytes:
    names = [f"x{k}" for k in range(len(case.shapes))]
    graph = helper.make_graph(
        [helper.make_node(case.op_type, names, ["y"], name="node", **dict(case.attrs))],
        "case",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
         for n, s in zip(names, case.shapes, strict=True)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def express(case: Case) -> Graph:
    import onnx
    import onnx_ir
    from onnx import shape_inference

    model = onnx_ir.from_proto(
        shape_inference.infer_shapes(onnx.load_from_string(onnx_model(case)))
    )
    return express_region(list(model.graph), ["y"], 17).graph


def schedule(graph: Graph, machine: Machine) -> Schedule:
    found = next(NaiveStrategy().candidates(canonicalize(graph).graph, machine))
    assert isinstance(found, Schedule), found
    return found


Ours = tuple[Callable[[], None], int, Callable[[], np.ndarray]]


def ours(case: Case, machine: Machine, arrays: list[np.ndarray]) -> Ours:
    """A call that runs the kernel, its MACs, and a reader of the output."""
    canonical = canonicalize(express(case))
    graph = canonical.graph
    tree = schedule(graph, machine)
    program = lower_unit(tree, machine, canonical.signature)
    text = generate_kernel(tree, program, machine, "tw_case")
    library = build_library({"tw_case": text}, Path(tempfile.gettempdir()) / "tilewright-bench")
    emulator = Emulator(library, level_specs(machine), [program])
    by_name = {f"x{k}": array for k, array in enumerate(arrays)}
    original = dict(canonical.tensor_of)
    arenas = [Arena(operand.size_bytes) for operand in program.operands]
    for operand, arena in zip(program.operands, arenas, strict=True):
        value = by_name.get(original[operand.tensor])
        if value is not None:
            np.frombuffer(arena.buffer(), np.uint8)[:] = np.frombuffer(value.tobytes(), np.uint8)
    out = next(k for k, o in enumerate(program.operands) if o.tensor in graph.outputs)
    addresses = [arena.address for arena in arenas]

    def read() -> np.ndarray:
        flat = np.frombuffer(arenas[out].buffer(), DType.F32.numpy)
        return flat.reshape(program.operands[out].shape)

    return lambda: emulator.call("tw_case", program, addresses), macs_of(graph), read


def theirs(case: Case, arrays: list[np.ndarray]) -> Callable[[], np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        onnx_model(case), options, providers=["CPUExecutionProvider"]
    )
    feeds = {f"x{k}": array for k, array in enumerate(arrays)}
    return lambda: session.run(None, feeds)[0]


def cpu_seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="a100")
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    machine = load_preset(options.preset)
    out = sys.stdout
    out.write(f"machine {options.preset}; GMAC/s per core; ratio = our time / ONNX Runtime's\n")
    logs: list[float] = []
    for case in CASES:
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal(s, dtype=np.float32) for s in case.shapes]
        run, macs, read = ours(case, machine, arrays)
        reference = theirs(case, arrays)
        want = reference()
        run()
        error = float(np.max(np.abs(read().reshape(want.shape) - want)) / np.max(np.abs(want)))
        mine, peer = [], []
        for _ in range(options.repeat):
            mine.append(cpu_seconds(run))
            peer.append(cpu_seconds(reference))
        a, b = max(min(mine), 1e-9), max(min(peer), 1e-9)
        logs.append(float(np.log(a / b)))
        out.write(
            f"{case.name:28} {macs / a / 1e9:7.2f} (ORT {macs / b / 1e9:7.2f})"
            f"  ratio {a / b:6.2f}  max rel err {error:.1e}\n"
        )
        out.flush()
    out.write(f"geometric mean ratio {np.exp(np.mean(logs)):.2f}\n")


if __name__ == "__main__":
    main()

"""Hand-written schedules run through generated kernels: the shortest road from a tree to arrays."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.codegen.kernel import generate_kernel
from worker.compiler.ir.affine import const, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read, Scalar
from worker.compiler.isa.program import INSTRUCTION, Buffer, Operand, OperandRole, UnitProgram
from worker.compiler.machine.machine import (
    AcceleratorTarget,
    Capabilities,
    Engine,
    EngineKind,
    Host,
    Machine,
    Managed,
    MemoryLevel,
)
from worker.compiler.package.build import build_library
from worker.compiler.package.emulator import Arena, Emulator
from worker.compiler.package.executable import level_specs
from worker.compiler.schedule.nodes import (
    Compute,
    Init,
    Loop,
    LoopKind,
    Move,
    Node,
    Pipe,
    Place,
    Queue,
    Schedule,
    Seq,
    Span,
)

ORIGIN = Origin(("node",), "Test")
BUILD_DIR = Path(tempfile.gettempdir()) / "tilewright-test-kernels"
"""Shared by all tests of one machine: libraries are named by their content."""


def machine(num_cores: int = 16, capacity_bytes: int = 1 << 24) -> Machine:
    """Home and one scratchpad per core."""
    rates = dict.fromkeys(DType, 16.0)
    return Machine(
        "toy", 1e9, num_cores, 1,
        (MemoryLevel("DDR", 1 << 34, 1, 16.0, 16.0, 10, 1.0, 1.0, Managed.SCRATCHPAD),
         MemoryLevel("L1", capacity_bytes, num_cores, 64.0, 64.0, 1, 1.0, 1.0,
                     Managed.SCRATCHPAD)),
        (Engine("mme", EngineKind.MATRIX, "L1", rates, (4, 4)),
         Engine("vec", EngineKind.VECTOR, "L1", rates, special_ops_per_cycle=4.0),
         Engine("din", EngineKind.DMA_IN, "L1", {}), Engine("dout", EngineKind.DMA_OUT, "L1", {})),
        (), Host("host", 1e9, 1e9, 1e9, 1e-6, 1e-5),
        (AcceleratorTarget("accelerator", Capabilities((), tuple(DType), 8)),),
        100,
    )  # fmt: skip


def stacked_program(schedule: Schedule, mach: Machine) -> UnitProgram:
    """Buffers one after the other in each level; no instructions."""
    graph = schedule.graph
    buffers: list[Buffer] = []
    top: dict[str, int] = {}

    def add(node: Place | Queue, path: str, copies: int) -> None:
        dtype = node.dtype or graph.tensors[node.tensor].dtype
        extents = tuple(s.extent for s in node.tile)
        slot = -(-int(np.prod(extents, dtype=np.int64)) * dtype.size_bytes // 64) * 64
        address = top.get(node.memory, 0)
        top[node.memory] = address + slot * copies
        buffers.append(
            Buffer(node.tensor, node.memory, address, slot, copies, str(dtype), extents, path)
        )

    def visit(node: Node, path: str) -> None:
        match node:
            case Loop(body=body):
                visit(body, path + ".0")
            case Place():
                add(node, path, node.copies)
                visit(node.body, path + ".0")
            case Seq(parts):
                for k, part in enumerate(parts):
                    visit(part, f"{path}.{k}")
            case Pipe(_, _, stages, queues):
                for k, queue in enumerate(queues):
                    add(queue, f"{path}.q{k}", queue.depth)
                for k, stage in enumerate(stages):
                    visit(stage.body, f"{path}.{k}")
            case _:
                pass

    visit(schedule.root, "0")
    roles = {
        **dict.fromkeys(graph.inputs, OperandRole.INPUT),
        **dict.fromkeys(graph.constants, OperandRole.CONSTANT),
        **dict.fromkeys(graph.outputs, OperandRole.OUTPUT),
    }
    for name in graph.tensors:
        roles.setdefault(name, OperandRole.SCRATCH)
    operands = tuple(
        Operand(n, role, str(graph.tensors[n].dtype), graph.tensors[n].shape,
                graph.tensors[n].size_bytes)
        for n, role in roles.items()
    )  # fmt: skip
    empty = np.zeros(0, np.int32)
    return UnitProgram(
        "0" * 64, operands, tuple(buffers), (), (), (), np.zeros(0, INSTRUCTION),
        np.zeros(1, np.int32), empty, np.zeros(1, np.int32), empty, 0,
    )  # fmt: skip


def run_unit(
    schedule: Schedule,
    inputs: Mapping[str, npt.NDArray[Any]],
    mach: Machine | None = None,
    program: UnitProgram | None = None,
    poison: bool = True,
) -> dict[str, npt.NDArray[Any]]:
    """Generate, build and run one kernel; outputs and intermediates by name."""
    mach = mach or machine()
    program = program or stacked_program(schedule, mach)
    return run_units([(schedule, program, inputs)], mach, poison)[0]


def run_units(
    cases: Sequence[tuple[Schedule, UnitProgram, Mapping[str, npt.NDArray[Any]]]],
    mach: Machine,
    poison: bool = True,
    header: str | None = None,
) -> list[dict[str, npt.NDArray[Any]]]:
    """Build all kernels into one library, then run them one by one."""
    kernels = {
        f"tw_unit_{k}": generate_kernel(schedule, program, mach, f"tw_unit_{k}")
        for k, (schedule, program, _) in enumerate(cases)
    }
    library = build_library(kernels, BUILD_DIR, header=header)
    emulator = Emulator(library, level_specs(mach), [p for _, p, _ in cases], poison)
    return [
        _call(emulator, f"tw_unit_{k}", program, inputs)
        for k, (_, program, inputs) in enumerate(cases)
    ]


def _call(
    emulator: Emulator, name: str, program: UnitProgram, inputs: Mapping[str, npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    arenas = [Arena(o.size_bytes + 64) for o in program.operands]
    for operand, arena in zip(program.operands, arenas, strict=True):
        view = np.frombuffer(arena.buffer(), np.uint8, operand.size_bytes)
        view[:] = 0xFF
        if operand.tensor in inputs:
            value = np.ascontiguousarray(inputs[operand.tensor])
            view[:] = np.frombuffer(value.tobytes(), np.uint8)
    emulator.call(name, program, [a.address for a in arenas])
    return {
        o.tensor: np.frombuffer(a.buffer(), np.uint8, o.size_bytes).copy()
        .view(DType(o.dtype).numpy).reshape(o.shape)
        for o, a in zip(program.operands, arenas, strict=True)
        if o.role in (OperandRole.OUTPUT, OperandRole.SCRATCH)
    }  # fmt: skip


def graph_of(op: TensorOp, tensors: tuple[Tensor, ...]) -> Graph:
    """A graph of one operator."""
    return Graph.build((op,), tensors, op.input_names(), (op.write.tensor,))


def tiled(graph: Graph, tile: Mapping[str, int], cores: int = 1, engine: str = "mme") -> Schedule:
    """One operator: cores over the first tiled axis, output and reduction tiles in L1."""
    op = graph.ops[0]
    starts = {a.name: const(0) for a in op.domain}
    loops: list[tuple[str, int, LoopKind, AxisKind]] = []
    for axis in op.domain:
        size = min(tile.get(axis.name, axis.extent), axis.extent)
        trips = -(-axis.extent // size)
        if trips == 1:
            continue
        starts[axis.name] = var(f"v_{axis.name}") * size
        loops.append((f"v_{axis.name}", trips, LoopKind.TIME, axis.kind))
    sizes = {a.name: min(tile.get(a.name, a.extent), a.extent) for a in op.domain}

    def box(access: Access) -> tuple[Span, ...]:
        spans = []
        for expr in access.index:
            low, high, _ = expr.bounds({a: (0, s - 1) for a, s in sizes.items()})
            moved = expr.substitute(starts) if expr.is_linear else None
            assert moved is not None
            spans.append(Span(moved - expr.const + low, high - low + 1))
        return tuple(spans)

    whole = tuple(Span(starts[a.name], sizes[a.name]) for a in op.domain)
    compute = Compute(op.name, whole, engine)
    reads = {a.tensor: a for a in op.reads}
    body: Node = Seq(
        (*(Move(a.tensor, "DDR", "L1", box(a), a.fill) for a in reads.values()), compute)
    )
    for access in reads.values():
        body = Place(access.tensor, "L1", box(access), 2, body)
    for name, trips, kind, axis_kind in reversed(loops):
        if axis_kind is AxisKind.REDUCE:
            body = Loop(name, trips, kind, body)
    out = graph.tensors[op.write.tensor]
    body = Seq((body, Move(out.name, "L1", "DDR", box(op.write))))
    body = Place(
        out.name, "L1", box(op.write), 1, body,
        out.dtype.accumulator if op.reduce else None,
        Init.IDENTITY if op.reduce else Init.UNDEFINED,
    )  # fmt: skip
    for name, trips, kind, axis_kind in reversed(loops):
        if axis_kind is not AxisKind.REDUCE:
            body = Loop(name, trips, kind, body)
    if cores > 1 and isinstance(body, Loop):
        body = Loop(body.var, body.trip, LoopKind.CORES, body.body, 1)
    return Schedule(graph, body, "test", 0)


def matmul_graph(m: int, n: int, k: int, dtype: DType = DType.F32) -> Graph:
    """c[m, n] = a[m, k] @ b[k, n]."""
    op = TensorOp(
        "mm",
        (Axis("i", m), Axis("j", n), Axis("k", k, AxisKind.REDUCE)),
        (Access("a", (var("i"), var("k"))), Access("b", (var("k"), var("j")))),
        Access("c", (var("i"), var("j"))),
        Apply(Fn.MUL, (Read(0), Read(1))),
        Reduce.ADD,
        ORIGIN,
    )
    return graph_of(
        op, (Tensor("a", (m, k), dtype), Tensor("b", (k, n), dtype), Tensor("c", (m, n), dtype))
    )


def conv_graph(
    channels: int, filters: int, size: int, kernel: int, stride: int = 1, pad: int = 0,
    dtype: DType = DType.F32, groups: int = 1,
) -> Graph:  # fmt: skip
    """y[f, h, w] = sum x[c, h*s+kh-p, w*s+kw-p] * w[f, c, kh, kw]; square, grouped."""
    out = (size + 2 * pad - kernel) // stride + 1
    cg, fg = channels // groups, filters // groups
    h = var("h") * stride + var("kh") - pad
    w = var("w") * stride + var("kw") - pad
    op = TensorOp(
        "conv",
        (Axis("g", groups), Axis("f", fg), Axis("h", out), Axis("w", out),
         Axis("c", cg, AxisKind.REDUCE), Axis("kh", kernel, AxisKind.REDUCE),
         Axis("kw", kernel, AxisKind.REDUCE)),
        (Access("x", (var("g") * cg + var("c"), h, w), 0 if pad else None),
         Access("w", (var("g") * fg + var("f"), var("c"), var("kh"), var("kw")))),
        Access("y", (var("g") * fg + var("f"), var("h"), var("w"))),
        Apply(Fn.MUL, (Read(0), Read(1))),
        Reduce.ADD,
        ORIGIN,
    )  # fmt: skip
    return graph_of(
        op,
        (Tensor("x", (channels, size, size), dtype),
         Tensor("w", (filters, cg, kernel, kernel), dtype),
         Tensor("y", (filters, out, out), dtype)),
    )  # fmt: skip


def elementwise_graph(
    body: Scalar, dtypes: tuple[DType, ...], out: DType, shape: tuple[int, ...] = (33,)
) -> Graph:
    """z[i..] = body(x0[i..], x1[i..], ...)."""
    axes = tuple(Axis(f"i{k}", extent) for k, extent in enumerate(shape))
    index = tuple(var(a.name) for a in axes)
    reads = tuple(Access(f"x{k}", index) for k in range(len(dtypes)))
    op = TensorOp("ew", axes, reads, Access("z", index), body, None, ORIGIN)
    tensors = (*(Tensor(f"x{k}", shape, d) for k, d in enumerate(dtypes)), Tensor("z", shape, out))
    return graph_of(op, tensors)


def whole_tile(graph: Graph) -> Schedule:
    """Everything in one tile."""
    return tiled(graph, {})

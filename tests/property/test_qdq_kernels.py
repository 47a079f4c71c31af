"""Quantised clusters as C kernels on an integer accelerator, and the engines they run on."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qdq_oracle import Operand, Quantised, Result, express_cluster_of, feeds_of, qdq_model

from worker.compiler.cache import NullCache
from worker.compiler.cost.compute import compute_dtype, pick_engine
from worker.compiler.errors import Shortfall
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.op import TensorOp
from worker.compiler.ir.region import Cuts, is_view
from worker.compiler.ir.signature import canonicalize
from worker.compiler.judge.entrants import entrant
from worker.compiler.judge.units import Unit, UnitSolver
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import EngineKind
from worker.compiler.options import CompileOptions
from worker.compiler.package.build import build_library
from worker.compiler.package.emulator import Emulator
from worker.compiler.package.executable import level_specs

RNG = np.random.default_rng(23)


@pytest.fixture(autouse=True)
def _numbers_of_its_own(request: pytest.FixtureRequest) -> None:
    """A test draws the same numbers whichever tests ran before it in its process."""
    RNG.bit_generator.state = np.random.default_rng(
        [23, zlib.crc32(request.node.name.encode())]
    ).bit_generator.state


def integers(*shape: int, kind: type[np.generic] = np.int8) -> Any:
    limits = np.iinfo(kind)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(kind)


def activation(*shape: int, scale: float = 0.021, zero: int = 4) -> Quantised:
    return Quantised(integers(*shape), scale, zero)


def weights(*shape: int, axis: int) -> Quantised:
    scales = list(RNG.uniform(0.004, 0.02, shape[axis]).astype(np.float32))
    return Quantised(integers(*shape), scales, [0] * shape[axis], axis, True)


BIAS = RNG.uniform(-2, 2, 6).astype(np.float32)
RELU = ("Relu", ())
Case = tuple[str, list[Operand], list[Result], dict[str, Any]]
CASES: list[Case] = [
    ("Conv", [activation(1, 3, 6, 5), weights(6, 3, 3, 3, axis=0), BIAS], [Result(0.06, -9)],
     {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ("Conv", [Quantised(integers(1, 6, 5, 5, kind=np.uint8), 0.03, 130),
              weights(6, 1, 3, 3, axis=0)], [Result(0.06, 77, np.uint8)], {"group": 6}),
    ("Conv", [activation(1, 3, 4, 4), Quantised(integers(4, 3, 2, 2), [0.01, 0.02, 0.03, 0.01],
              [1, 2, -3, 0], 0, True)], [Result(0.1)], {}),
    ("ConvTranspose", [activation(1, 4, 3, 3), weights(4, 6, 2, 2, axis=1), BIAS], [Result(0.05)],
     {"strides": [2, 2]}),
    ("Gemm", [activation(3, 8), weights(6, 8, axis=0), BIAS], [Result(0.05)], {"transB": 1}),
    ("MatMul", [activation(2, 3, 8), activation(2, 8, 5)], [Result(0.2)], {}),
    ("Add", [activation(1, 3, 4, 4), activation(1, 3, 4, 4, scale=0.04)], [Result(0.05, 3)], {}),
    ("Mul", [activation(1, 3, 4), activation(1, 3, 1, zero=-128)], [Result(0.05, 3)], {}),
    ("LeakyRelu", [activation(60)], [Result(0.02)], {}),
    ("HardSwish", [activation(60)], [Result(0.02)], {}),
    ("Concat", [activation(2, 3), activation(2, 4, scale=0.03)], [Result(0.021, 4)], {"axis": 1}),
    ("Transpose", [activation(2, 3, 4)], [Result(0.03)], {"perm": [2, 0, 1]}),
    ("Pad", [activation(3, 4), np.array([1, 0, 0, 2])], [Result(0.03, 1)], {}),
    ("Pad", [activation(3, 4), np.array([1, 0, 0, 2]), np.float32(0.777)], [Result(0.03)], {}),
    ("Reshape", [activation(3, 4), np.array([2, 6])], [Result(0.03)], {}),
    ("MaxPool", [activation(1, 3, 6, 6)], [Result(0.03)],
     {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("AveragePool", [activation(1, 3, 5, 6)], [Result(0.018)],
     {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1]}),
    ("GlobalAveragePool", [activation(1, 3, 5, 6)], [Result(0.01)], {}),
]  # fmt: skip


@pytest.mark.parametrize("preset", ["dpu-zu", "stcp920-inferred"])
def test_kernels_agree_with_the_interpreter(preset: str, tmp_path: Path) -> None:
    """Every operator of every case, scheduled by naive, bit for bit."""
    machine = load_preset(preset)
    options = CompileOptions()
    solver = UnitSolver.create(machine, entrant("naive", options), options, NullCache())
    trials: list[tuple[TensorOp, Unit, dict[str, str], dict[str, Any]]] = []
    for op_type, operands, results, attributes in CASES:
        model = qdq_model(op_type, operands, results, attributes, RELU)
        expressed = express_cluster_of(model)
        graph, cuts = expressed.graph, Cuts.of(expressed.graph)
        arrays = {name: thunk() for name, thunk in expressed.constants.items()}
        arrays |= feeds_of(model, operands)
        arrays |= evaluate(graph, arrays)
        for op in graph.ops:
            if is_view(op, graph.tensors):
                continue
            canonical = canonicalize(cuts.piece((op.name,)))
            unit = solver.solve(canonical, op.name)
            assert not isinstance(unit, Shortfall), (op_type, unit)
            trials.append((op, unit, dict(canonical.tensor_of), arrays))
    units = {unit.kernel_name: unit for _, unit, _, _ in trials}
    assert len(units) > len(CASES)
    library = build_library({name: u.kernel for name, u in units.items()}, tmp_path)
    emulator = Emulator(library, level_specs(machine), [u.program for u in units.values()])
    written: dict[tuple[int, str], Any] = {}
    for op, unit, names, arrays in trials:
        buffers = [
            written.setdefault(
                (id(arrays), names[o.tensor]), np.zeros_like(arrays[names[o.tensor]])
            )
            if names[o.tensor] == op.write.tensor
            else np.ascontiguousarray(arrays[names[o.tensor]])
            for o in unit.program.operands
        ]
        emulator.call(unit.kernel_name, unit.program, [b.ctypes.data for b in buffers])
    for op, _, _, arrays in trials:
        found = written[id(arrays), op.write.tensor]
        np.testing.assert_array_equal(found, arrays[op.write.tensor], err_msg=op.name)


def test_an_accelerator_without_floats_has_an_engine_for_every_operator() -> None:
    """Integer sums run on the array; bodies that compute in float are priced by their tensors.

    A device does requantisation in fixed point: a 32-bit factor and a shift per channel.
    """
    machine = load_preset("dpu-zu")
    rates = {d for e in machine.engines for d in e.macs_per_cycle}
    assert not any(d.is_float for d in rates)
    for op_type, operands, results, attributes in CASES:
        graph = express_cluster_of(qdq_model(op_type, operands, results, attributes, RELU)).graph
        for op in graph.ops:
            assert pick_engine(op, machine, graph.tensors) is not None
            assert compute_dtype(op, graph.tensors) in rates, (op_type, op.name)


@pytest.mark.parametrize(
    ("op_type", "operands"),
    [
        ("Conv", [activation(1, 32, 6, 6), weights(32, 32, 3, 3, axis=0)]),
        ("ConvTranspose", [activation(1, 32, 6, 6), weights(32, 32, 2, 2, axis=1)]),
        ("Gemm", [activation(16, 64), weights(64, 32, axis=1)]),
        ("MatMul", [activation(2, 16, 64), activation(2, 64, 16)]),
    ],
)
def test_sums_run_on_the_array_and_rescaling_beside_it(
    op_type: str, operands: list[Operand]
) -> None:
    machine = load_preset("dpu-zu")
    expressed = express_cluster_of(qdq_model(op_type, operands, [Result(0.5)]))
    kinds = []
    for op in expressed.graph.ops:
        engine = pick_engine(op, machine, expressed.graph.tensors)
        assert engine is not None
        kinds.append(engine.kind)
        assert expressed.graph.tensors[op.write.tensor].dtype in (DType.I32, DType.I8)
    assert kinds == [EngineKind.MATRIX, EngineKind.VECTOR]

"""Laid-out regions down to numbers: every operator scheduled, lowered, coded, run, compared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kernel_toys import run_units
from layout_models import BLOCKED, NHWC, RegionBuilder, blocked_by, conv_relu_conv, values

from worker.compiler.cache import MemoryCache
from worker.compiler.cost.compute import contraction
from worker.compiler.errors import Shortfall
from worker.compiler.frontend.express import Expressed
from worker.compiler.ir.evaluate import evaluate, evaluate_op
from worker.compiler.ir.region import Cuts, is_view
from worker.compiler.ir.signature import canonicalize
from worker.compiler.judge.entrants import entrant
from worker.compiler.judge.units import UnitSolver
from worker.compiler.layout.lay_out import lay_out
from worker.compiler.machine import load_preset
from worker.compiler.machine.layout_policy import LayoutPolicy
from worker.compiler.options import CompileOptions


def residual() -> Expressed:
    """Padded and strided convolutions with bias, a residual sum, pools, channels joined."""
    region = RegionBuilder({"x": (1, 16, 8, 8)})
    for name, shape in (("w1", (32, 16, 3, 3)), ("w2", (32, 1, 3, 3)), ("w3", (32, 16, 1, 1))):
        region.constant(name, shape)
    region.constant("b1", (32,))
    region.add("Conv", ["x", "w1", "b1"], "a", pads=[1, 1, 1, 1], strides=[2, 2])
    region.add("Relu", ["a"], "b")
    region.add("Conv", ["b", "w2"], "c", group=32, pads=[1, 1, 1, 1])
    region.add("Conv", ["x", "w3"], "d", strides=[2, 2])
    region.add("Add", ["c", "d"], "e")
    region.add("Concat", ["e", "b"], "f", axis=1)
    region.add("MaxPool", ["f"], "g", kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    region.add("GlobalAveragePool", ["g"], "h")
    region.add("Flatten", ["h"], "y")
    return region.express(["g", "y"])


def upsampling() -> Expressed:
    """ConvTranspose in groups, a grouped convolution, an average with counted windows."""
    region = RegionBuilder({"x": (2, 16, 5, 5)})
    region.constant("w1", (16, 8, 2, 2))
    region.constant("w2", (8, 8, 3, 3))
    region.add("ConvTranspose", ["x", "w1"], "a", group=2, strides=[2, 2])
    region.add("Conv", ["a", "w2"], "b", group=2)
    region.add("AveragePool", ["b"], "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    return region.express(["y"])


def sequence() -> Expressed:
    """One spatial dimension; 3 channels cannot be blocked."""
    region = RegionBuilder({"x": (1, 3, 20)})
    region.constant("w1", (16, 3, 5))
    region.constant("w2", (16, 16, 3))
    region.add("Conv", ["x", "w1"], "a", pads=[2, 2])
    region.add("Sigmoid", ["a"], "s")
    region.add("Mul", ["a", "s"], "b")
    region.add("Conv", ["b", "w2"], "c")
    region.add("MaxPool", ["c"], "y", kernel_shape=[2], strides=[2])
    return region.express(["y"])


CASES: tuple[tuple[Callable[[], Expressed], LayoutPolicy], ...] = tuple(
    (make, policy)
    for make in (conv_relu_conv, residual, upsampling, sequence)
    for policy in (NHWC, BLOCKED, blocked_by(4))
)


@pytest.mark.parametrize("preset", ["a100", "stcp920"])
def test_every_operator_runs(preset: str) -> None:
    machine = load_preset(preset)
    options = CompileOptions()
    solver = UnitSolver.create(machine, entrant("naive", options), options, MemoryCache())
    units, wanted, labels = [], [], []
    for number, (make, policy) in enumerate(CASES):
        laid = lay_out(make(), policy).expressed
        graph = laid.graph
        arrays = {**values(laid, number), **{n: f() for n, f in laid.constants.items()}}
        arrays = evaluate(graph, arrays) | arrays
        cuts = Cuts.of(graph)
        for op in graph.ops:
            if is_view(op, graph.tensors):
                continue
            canonical = canonicalize(cuts.piece((op.name,)))
            unit = solver.solve(canonical, op.name)
            assert not isinstance(unit, Shortfall), (op.name, unit)
            names = dict(canonical.tensor_of)
            piece = canonical.graph
            given = {n: arrays[names[n]] for n in (*piece.inputs, *piece.constants)}
            units.append((unit.schedule, unit.program, given))
            (only,) = piece.ops
            target = piece.tensors[only.write.tensor]
            # Pieces of a concatenation leave the rest of their tensor as it was: 0xFF, a NaN.
            blank = np.full(target.shape, np.nan, target.dtype.numpy)
            wanted.append({target.name: evaluate_op(only, piece.tensors, given, blank)})
            labels.append(f"{policy.activations} {op.name}")
    assert len(units) > 60
    for label, want, got in zip(labels, wanted, run_units(units, machine), strict=True):
        for name, array in want.items():
            scale = max(1.0, float(np.nanmax(np.abs(array))))
            np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-6 * scale, err_msg=label)


@pytest.mark.parametrize(("make", "policy"), CASES)
def test_roles_of_contractions_survive(make: Callable[[], Expressed], policy: LayoutPolicy) -> None:
    before = make()
    after = lay_out(before, policy).expressed.graph
    found = 0
    for op in before.graph.ops:
        old, new = contraction(op), contraction(after.op(op.name))
        assert (old is None) == (new is None)
        if old is None or new is None:
            continue
        found += 1
        moved = after.op(op.name)
        for role in ("rows", "columns", "depth", "batch"):
            axes = [op.domain[k].name for k in getattr(old, role)]
            digits = [moved.domain[k].name.partition(".")[0] for k in getattr(new, role)]
            assert sorted(set(digits)) == sorted(axes)
    assert found >= 1

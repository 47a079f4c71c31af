"""The oracle's integer division, and samples that hold NaN."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx_models import repeated_layers, saved

from worker.compiler.cache import MemoryCache
from worker.compiler.frontend.limits import Limits
from worker.compiler.ir.evaluate import _trunc_div
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.compiler.units import Unit
from worker.ports import open_ports
from worker.verification.sampling import check_unit

INT8 = st.integers(-128, 127)


@given(INT8, INT8)
@example(-128, 3)
@example(-128, -3)
@example(-128, 127)
@example(-128, -128)
@example(-128, 1)
def test_integer_division_truncates_toward_zero(a: int, b: int) -> None:
    got = int(_trunc_div(np.array([a], np.int8), np.array([b], np.int8))[0])
    if b == 0:
        assert got == 0
    elif (a, b) == (-128, -1):
        assert got == -128  # 128 wraps
    else:
        assert got == int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
def test_the_most_negative_integer_divides_in_every_width(dtype: type[np.signedinteger]) -> None:
    low = np.iinfo(dtype).min
    got = _trunc_div(np.array([low, low, low], dtype), np.array([7, -7, 2], dtype))
    assert got.dtype == dtype
    assert got.tolist() == [-(-int(low) // 7), -int(low) // 7, int(low) // 2]


class Silent:
    def stage(self, name: str, state: str) -> None: ...

    def units(self, solved: int, cached: int, total: int) -> None: ...


def relu_unit(folder: Path) -> Unit:
    machine, options = load_preset("a100"), CompileOptions()
    ports = open_ports(machine, options, MemoryCache(), Silent())
    path = saved(repeated_layers(1), folder)
    compiled = compile_model(path, "m", machine, options, ports, Limits())
    (unit,) = [u for u in compiled.units if len(u.schedule.graph.inputs) == 1
               and not u.schedule.graph.constants]  # fmt: skip
    return unit


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1.0])
def test_a_kernel_that_writes_something_else_is_noticed(tmp_path: Path, wrong: float) -> None:
    unit = relu_unit(tmp_path)
    (source,) = unit.schedule.graph.inputs
    out = unit.schedule.graph.ops[-1].write.tensor
    x = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    right = {source: x, out: np.maximum(x, 0)}
    label, _, error, bound = check_unit(unit, right, 0, ("layer0/relu",))
    assert label.endswith("layer0/relu")
    assert error <= bound
    damaged = {source: x, out: np.full_like(x, wrong)}
    _, _, error, bound = check_unit(replace(unit), damaged, 0, ("layer0/relu",))
    assert error > bound

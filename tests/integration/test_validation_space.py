"""The brute force: hand-counted cycles, bounds that hold, the best of a plain enumeration."""

from __future__ import annotations

from itertools import permutations, product
from math import ceil

import numpy as np
import pytest
from registers import with_registers
from toy_schedules import machine as toy_machine

from worker.compiler.cost.compute import pick_engine
from worker.compiler.errors import VerifyError
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.machine import load_machine
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.interpret import interpret
from worker.compiler.schedule.verify import verify
from worker.validation.best import best_mapping, simulated
from worker.validation.estimate import Copies
from worker.validation.figures import Conv, Copy, Gemm, Operator, Unit
from worker.validation.measure import operator_figure
from worker.validation.operators import graph_of, moved_bytes, operations, out_size
from worker.validation.space import Mapping, Space, cuts

GEMM = Gemm(m=6, n=8, k=4, dtype=DType.F32)
CONV = Conv(
    batch=2, groups=2, in_channels=2, out_channels=2, size=4, kernel=3, pad=1, dtype=DType.F32
)
STRIDED = Conv(batch=1, in_channels=2, out_channels=3, size=7, kernel=3, stride=2, dtype=DType.F32)
COPY = Copy(elements=96, dtype=DType.F32)
WORKS = {"gemm": GEMM, "conv": CONV, "strided": STRIDED, "copy": COPY}


def space_of(work: Operator, machine: Machine) -> Space:
    graph = graph_of(work)
    engine = pick_engine(graph.ops[0], machine, graph.tensors)
    assert engine is not None
    return Space(graph, machine, engine)


def _run(space: Space, mapping: Mapping, machine: Machine) -> int | None:
    """Cycles; None where the buffers do not fit, and for no other reason."""
    try:
        return simulated(space, mapping, machine).cycles
    except VerifyError as error:
        assert error.rule == "capacity"
    except AssertionError as error:
        assert "does not fit" in str(error)
    return None


def test_cuts_are_the_stated_ones() -> None:
    for extent in range(1, 70):
        numbers = [base * 2**i for base in (1, 3) for i in range(8)]
        said = {ceil(extent / n) for n in numbers if n <= extent}
        said |= {n for n in numbers if extent % n == 0}
        assert list(cuts(extent)) == sorted(said, reverse=True)


@pytest.mark.parametrize("name", WORKS)
def test_operators_compute_what_numpy_computes(name: str) -> None:
    work = WORKS[name]
    graph = graph_of(work)
    rng = np.random.default_rng(5)
    given = {
        n: rng.integers(-4, 5, graph.tensors[n].shape).astype(np.float32) for n in graph.inputs
    }
    (found,) = evaluate(graph, given).values()
    match work:
        case Gemm():
            expected = given["a"] @ given["b"]
        case Copy():
            expected = given["x"]
        case Conv():
            pad, out = work.pad, out_size(work)
            x = np.pad(given["x"], ((0, 0), (0, 0), (0, 0), (pad, pad), (pad, pad)))
            expected = np.zeros(graph.tensors["y"].shape, np.float32)
            for p, q in product(range(out), repeat=2):
                rows = slice(p * work.stride, p * work.stride + work.kernel)
                columns = slice(q * work.stride, q * work.stride + work.kernel)
                window = x[:, :, :, rows, columns]
                expected[..., p, q] = np.einsum("ngcrs,gmcrs->ngm", window, given["w"])
    np.testing.assert_array_equal(found, expected)


def test_operations_and_bytes_by_hand() -> None:
    assert operations(GEMM) == 2 * 6 * 8 * 4
    assert operations(CONV) == 2 * (2 * 2 * 2 * 4 * 4) * (2 * 3 * 3)
    assert operations(COPY) == 0
    assert moved_bytes(graph_of(COPY)) == 2 * 96 * 4
    assert moved_bytes(graph_of(GEMM)) == 4 * (6 * 4 + 4 * 8 + 6 * 8)


def test_alexnet_has_the_published_multiply_accumulates() -> None:
    """Chen et al.: 421.7, 895.8, 598.1, 448.6, 299.0 million for four images."""
    layers = [
        (1, 3, 96, 227, 11, 4, 0), (2, 48, 128, 27, 5, 1, 2), (1, 256, 384, 13, 3, 1, 1),
        (2, 192, 192, 13, 3, 1, 1), (2, 192, 128, 13, 3, 1, 1),
    ]  # fmt: skip
    found = [
        operations(
            Conv(batch=4, groups=g, in_channels=c, out_channels=m, size=s, kernel=k, stride=t,
                 pad=p, dtype=DType.I16)
        ) / 2e6
        for g, c, m, s, k, t, p in layers
    ]  # fmt: skip
    assert found == pytest.approx([421.7, 895.8, 598.1, 448.6, 299.0], abs=0.06)


@pytest.mark.parametrize(("cores", "registers"), [(1, 0), (3, 0), (3, 256)])
@pytest.mark.parametrize("name", WORKS)
def test_every_mapping_is_legal_and_slower_than_its_bound(
    name: str, cores: int, registers: int
) -> None:
    """A sample of the space: each verifies, computes the operator, and keeps above its bound."""
    machine = toy_machine(num_cores=cores, l1_bytes=640)
    if registers:
        machine = with_registers(machine, registers)
    space = space_of(WORKS[name], machine)
    mappings = space.mappings()
    assert len({str(m) for m in mappings}) == len(mappings)
    graph = graph_of(WORKS[name])
    rng = np.random.default_rng(7)
    given = {
        n: rng.integers(-4, 5, graph.tensors[n].shape).astype(np.float32) for n in graph.inputs
    }
    (expected,) = evaluate(graph, given).values()
    for mapping in mappings[:: max(1, len(mappings) // 30)]:
        schedule = space.schedule(mapping)
        verify(schedule, machine)
        (found,) = interpret(schedule, given).values()
        np.testing.assert_array_equal(found, expected)
        assert simulated(space, mapping, machine).cycles >= mapping.bound, mapping


@pytest.mark.parametrize("work", [GEMM, STRIDED, COPY], ids=["gemm", "strided", "copy"])
def test_the_best_is_that_of_plain_enumeration(work: Operator) -> None:
    """Own loops over all tiles, orders and copies; whatever the tiling library says fits."""
    machine = toy_machine(num_cores=1, l1_bytes=480)
    space = space_of(work, machine)
    graph = graph_of(work)
    (op,) = graph.ops
    kinds = {a.name: a.kind for a in op.domain}
    taps = {"r", "s"}
    sizes = [(a.extent,) if a.name in taps else cuts(a.extent) for a in op.domain]
    runs: list[int] = []
    for tile in product(*sizes):
        loops = [
            a.name for a, size in zip(op.domain, tile, strict=True)
            if size < a.extent and kinds[a.name] != "reduce"
        ]  # fmt: skip
        named = tuple((a.name, size) for a, size in zip(op.domain, tile, strict=True))
        for order, copies in product(permutations(loops), Copies):
            mapping = Mapping(named, (), order, copies, 0.0, 0.0)
            if (run := _run(space, mapping, machine)) is not None:
                runs.append(run)
    best = best_mapping(graph, machine, 10**6)
    assert best is not None
    assert best.cycles == min(runs) + machine.launch_latency_cycles
    assert best.floor == best.cycles


def test_cycles_of_a_mapping_by_hand() -> None:
    """An 8 x 8 x 8 product in one piece on the toy: fetch both, compute, store.

    Each operand is 8 x 8 x 4 = 256 bytes at 16 bytes a cycle = 16 cycles, seen 8 cycles later; one
    engine brings both.  512 multiply-accumulates at 16 a cycle and 4 to start are 36; the store
    takes 16, seen 8 later: 16 + 16 + 8 + 36 + 16 + 8 = 100.
    """
    machine = toy_machine(num_cores=1)
    graph = graph_of(Gemm(m=8, n=8, k=8, dtype=DType.F32))
    whole = Mapping((("m", 8), ("n", 8), ("k", 8)), (), (), Copies.ONE, 0.0, 0.0)
    space = space_of(Gemm(m=8, n=8, k=8, dtype=DType.F32), machine)
    assert simulated(space, whole, machine).cycles == 100
    assert [t.size_bytes for t in graph.tensors.values()] == [256, 256, 256]


def test_the_floor_is_no_higher_than_any_mapping_that_was_left_out() -> None:
    machine = toy_machine(num_cores=2, l1_bytes=480)
    graph = graph_of(GEMM)
    few, all_of_them = best_mapping(graph, machine, 3), best_mapping(graph, machine, 10**6)
    assert few is not None
    assert all_of_them is not None
    assert few.tried <= 3 < few.space == all_of_them.space
    assert few.floor <= all_of_them.cycles <= few.cycles


def test_nothing_fits() -> None:
    assert best_mapping(graph_of(GEMM), toy_machine(num_cores=1, l1_bytes=8), 5) is None


def test_a_cache_lowers_what_must_cross_home() -> None:
    """32 x 32 x 32 in tiles of 8 x 8 x 32, rows outside: the left operand of 4096 bytes comes once,
    the right one four times.  Behind a cache both need to cross the home memory once only.
    The result's 4096 bytes take the same port."""
    with_cache = {"name": "m", "inherits": "a100", "num_cores": 1, "levels": [
        {"name": "SMEM", "instances": 1}, {"name": "REG", "instances": 1},
        {"name": "DRAM", "read_bytes_per_cycle": 0.1, "write_bytes_per_cycle": 0.1,
         "sustained_fraction": 1},
    ]}  # fmt: skip
    without = {
        **with_cache,
        "levels": [*with_cache["levels"], {"name": "L2", "remove": True}],  # type: ignore[misc]
    }
    bounds = [
        mapping.bound
        for spec in (with_cache, without)
        for mapping in space_of(
            Gemm(m=32, n=32, k=32, dtype=DType.F32), load_machine(spec)
        ).mappings()
        if mapping.tile == (("m", 8), ("n", 8), ("k", 32))
        and mapping.order == ("m", "n")
        and mapping.copies is Copies.ONE
    ]
    assert bounds == [(2 + 1) * 4096 / 0.1, (5 + 1) * 4096 / 0.1]


def test_units_of_one_run() -> None:
    machine = toy_machine()  # 1 GHz
    assert operator_figure(Unit.MS, GEMM, 2e6, machine) == pytest.approx(2.0)
    assert operator_figure(Unit.CYCLES, GEMM, 2e6, machine) == 2e6
    assert operator_figure(Unit.TOPS, GEMM, 384, machine) == pytest.approx(1e-3)
    assert operator_figure(Unit.TB_PER_S, COPY, 768, machine) == pytest.approx(1e-3)

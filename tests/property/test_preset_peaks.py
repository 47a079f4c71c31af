"""No engine of a preset does more in a number format than its chip is said to.

PEAKS: what is published, in tera-operations per second of the whole chip (a MAC is two), by engine
and format, with where it stands.  A rate without a row must be tagged as a guess, and is no faster
than the chip is in this format, or in any where nothing is published of it.  FP32 of which nothing
is published is made of narrower products: no more than a quarter of the 16-bit peak, or a ninth of
the 8-bit one (decision 0041).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kernel_toys import matmul_graph
from naive_schedules import naive_schedule

from worker.compiler.cost.compute import contracted_points
from worker.compiler.ir.dtype import DType
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import canonical_document, load_preset, preset_document, preset_names
from worker.compiler.machine.machine import EngineKind, Machine
from worker.simulator.run import simulate_unit

ROUNDING = 1.03
"""Figures have two or three digits, and clocks are rounded: 11 TFLOPS are 11.28 at 1377 MHz."""

V100 = "NVIDIA V100 data sheet and whitepaper"
GA100, GA102, GH100 = (f"NVIDIA {chip} whitepaper" for chip in ("GA100", "GA102", "GH100"))
XAVIER = "WikiChip and NVIDIA on Jetson AGX Xavier, at 1377 MHz"
MI50 = "AMD MI50 data sheet; integers at the rate of FP32"
HOPPER: dict[str, dict[str, tuple[float, str]]] = {
    "TC": {"f16": (989, GH100), "bf16": (989, GH100), "i8": (1979, GH100), "u8": (1979, GH100)},
    "CUDA": {
        "f32": (67, GH100), "f16": (134, GH100), "bf16": (134, GH100), "f64": (34, GH100),
        "i8": (134, GH100 + ": four DP4A lanes of INT32"), "u8": (134, GH100 + ": as int8"),
        "i32": (33.5, GH100),
    },
}  # fmt: skip
VELA = "Vela architecture features: 2 cores at 1 GHz"
PEAKS: dict[str, dict[str, dict[str, tuple[float, str]]]] = {
    "a100": {
        "TC": {"f16": (312, GA100), "bf16": (312, GA100), "i8": (624, GA100), "u8": (624, GA100)},
        "CUDA": {
            "f32": (19.5, GA100), "f16": (78, GA100), "bf16": (39, GA100), "f64": (9.7, GA100),
            "i8": (78, GA100 + ": four DP4A lanes of INT32"), "u8": (78, GA100 + ": as int8"),
            "i32": (19.5, GA100),
        },
    },
    "h100": HOPPER,
    "h200": HOPPER,
    "rtx3090": {
        "TC": {
            "f16": (71, GA102 + ": FP32 sums"), "bf16": (71, GA102), "i8": (284, GA102),
            "u8": (284, GA102),
        },
        "CUDA": {
            "f32": (35.6, GA102), "f16": (35.6, GA102), "bf16": (35.6, GA102),
            "f64": (0.556, GA102), "i32": (17.8, GA102),
            "i8": (71.2, GA102 + ": four DP4A lanes of INT32"), "u8": (71.2, GA102 + ": as int8"),
        },
    },
    "v100": {
        "TC": {"f16": (125, V100)},
        "CUDA": {
            "f32": (15.7, V100), "f16": (31.4, V100), "f64": (7.8, V100),
            "i8": (62, V100 + ": DP4A"), "u8": (62, V100 + ": DP4A"), "i32": (15.7, V100),
        },
    },
    "xavier": {
        "TC": {"f16": (11, XAVIER), "i8": (22, XAVIER), "u8": (22, XAVIER)},
        "CUDA": {
            "f32": (1.4, XAVIER), "f16": (2.8, XAVIER + ": twice FP32"),
            "i8": (5.6, XAVIER + ": four DP4A lanes"), "u8": (5.6, XAVIER + ": as int8"),
            "i32": (1.4, XAVIER),
        },
    },
    "mi50": {
        "SIMD": {"f16": (26.8, MI50), "f32": (13.4, MI50), "i8": (53.6, MI50), "u8": (53.6, MI50)},
        "VALU": {"f32": (13.4, MI50), "f16": (26.8, MI50), "f64": (6.7, MI50), "i32": (13.4, MI50)},
    },
    "ascend910": {
        "CUBE": {
            "f16": (256, "Hot Chips 31"), "i8": (512, "Hot Chips 31"), "u8": (512, "as int8"),
        },
        "VEC": {
            dtype: (32 * 2048 / bits * 2 * 1e9 / 1e12, "2048-bit vectors, 32 cores, 1 GHz")
            for dtype, bits in (
                ("f16", 16), ("f32", 32), ("i8", 8), ("u8", 8), ("i16", 16), ("i32", 32),
            )
        },
    },
    "stcp920": {
        "MME": {"f16": (128, "vendor"), "i8": (256, "vendor"), "u8": (256, "as int8")},
    },
    "goya": {
        "GEMM": {
            "i8": (123, "15 000 ResNet-50 images/s, at least"), "u8": (123, "as int8"),
            "i16": (61.5, "half of int8"),
        },
        "TPC": {
            dtype: (8 * lanes * 2 * 1.5e9 / 1e12, "TPC guide: lanes of 2048 bit; clock guessed")
            for dtype, lanes in {"f32": 64, "i32": 64, "i16": 128, "i8": 256, "u8": 256}.items()
        },
    },
    "ipu-gc2": {
        "AMP": {"f16": (124.5, "Graphcore"), "f32": (31.1, "Graphcore")},
        "VEC": {
            "f32": (7.8, "64-bit vectors, 1216 tiles"), "f16": (15.6, "64-bit vectors, 1216 tiles"),
        },
    },
    "ipu-gc200": {
        "AMP": {"f16": (250, "Graphcore"), "f32": (62.5, "Graphcore")},
        "VEC": {
            "f32": (7.8, "64-bit vectors, 1472 tiles"), "f16": (15.7, "64-bit vectors, 1472 tiles"),
        },
    },
    "kapla-16x16": {"PE": {"i16": (16.4, "TANGRAM: 16 384 PEs at 500 MHz")}},
    "kapla-edge": {"PE": {"i16": (0.256, "256 PEs at 500 MHz")}},
    "eyeriss": {"PE": {"i16": (0.0672, "168 PEs at 200 MHz: 33.6 GMAC/s")}},
    "tpuv1": {
        "MXU": {
            "i8": (92, "ISCA 2017"), "u8": (92, "ISCA 2017"),
            "i16": (23, "ISCA 2017: a quarter"),
        },
    },
    "dpu-zu": {"DPU": {"i8": (2.46, "PG338: 2 x B4096 at 300 MHz")}},
    "dpu-u250": {"DPU": {"i8": (9.8, "BYOC's set-up, structure guessed")}},
    "ethos-u65": {
        "MAC": {"i8": (1.024, VELA), "u8": (1.024, VELA), "i16": (0.512, VELA + ": half")},
        "ELEM": {
            "i8": (0.032, VELA + ": 0.125 cycles"), "u8": (0.032, VELA + ": 0.125 cycles"),
            "i32": (0.008, VELA + ": 0.5 cycles"),
        },
    },
    "simba": {
        "MAC": {"i8": (144.4, "MICRO 2019: 36 x 4.01 TOPS"), "u8": (144.4, "as int8")},
    },
    "nvdla-large": {
        "CONV": {"i8": (4.096, "nv_large: 2048 MACs at 1 GHz"), "u8": (4.096, "as int8")},
        "SDP": {"i8": (0.032, "nv_large: 16 per cycle"), "u8": (0.032, "nv_large: 16 per cycle")},
    },
}  # fmt: skip
PEAKS["stcp920-inferred"] = PEAKS["stcp920"]
RATES = [
    (name, engine.name, dtype)
    for name in preset_names()
    for engine in load_preset(name).engines
    for dtype in engine.macs_per_cycle
]
SUMMABLE = [row for row in RATES if row[2] is not DType.BOOL]


def tera_ops(machine: Machine, macs: float, cycles: float) -> float:
    """2 `macs` in `cycles`."""
    return 2 * macs / (cycles / machine.clock_hz) / 1e12


def peak_of(name: str, engine: str, dtype: DType) -> float:
    """The published peak; of a guess without one, the chip's in this format, else in any.

    FP32 is an exception: 24 bits of significand are two words of a 16-bit chip, so four products
    (three without the lowest), and three of an 8-bit chip, nine products.
    """
    table = PEAKS[name]
    if str(dtype) in table.get(engine, {}):
        return table[engine][str(dtype)][0]
    if same := published(name, dtype):
        return max(same)
    if dtype is DType.F32:
        if words := published(name, DType.F16, DType.BF16, DType.I16):
            return max(words) / 4
        return max(published(name, DType.I8, DType.U8)) / 9
    return max(published(name, *DType))


def published(name: str, *dtypes: DType) -> list[float]:
    """What the table has of a chip in some formats, on any engine."""
    return [
        rows[str(dtype)][0] for rows in PEAKS[name].values() for dtype in dtypes
        if str(dtype) in rows
    ]  # fmt: skip


def test_the_table_names_what_presets_have() -> None:
    named = {(n, e, d) for n, engines in PEAKS.items() for e, rows in engines.items() for d in rows}
    assert named <= {(name, engine, str(dtype)) for name, engine, dtype in RATES}
    assert set(PEAKS) == set(preset_names())


def test_what_a_guess_is_held_against() -> None:
    """By hand: a quarter of 128 and of 16.4, a ninth of 144.4, else what is published."""
    assert peak_of("stcp920", "MME", DType.F32) == 32
    assert peak_of("kapla-16x16", "PE", DType.F32) == 4.1
    assert peak_of("simba", "MAC", DType.F32) == pytest.approx(16.04, abs=0.01)
    assert peak_of("v100", "TC", DType.F32) == 15.7
    assert peak_of("v100", "TC", DType.F16) == 125
    assert peak_of("simba", "PPU", DType.I32) == 144.4


@pytest.mark.parametrize(("name", "engine", "dtype"), RATES)
def test_rates_are_published_or_marked_as_guesses(name: str, engine: str, dtype: DType) -> None:
    document: dict[str, Any] = canonical_document(preset_document(name))
    (spec,) = [e for e in document["engines"] if e["name"] == engine]
    is_guess = spec["macs_per_cycle"][str(dtype)]["tag"] == "G"
    is_published = str(dtype) in PEAKS[name].get(engine, {})
    assert is_published or is_guess
    machine = load_preset(name)
    rate = machine.engine(engine).macs_per_cycle[dtype] * machine.num_cores
    assert tera_ops(machine, rate, 1) <= ROUNDING * peak_of(name, engine, dtype)


@pytest.mark.parametrize(("name", "engine", "dtype"), SUMMABLE)
def test_no_simulated_product_beats_the_published_peak(
    name: str, engine: str, dtype: DType
) -> None:
    """Neither whole, on all cores, nor while its engine is busy, on one."""
    machine = load_preset(name)
    others = (EngineKind.DMA_IN, EngineKind.DMA_OUT)
    only = tuple(e for e in machine.engines if e.name == engine or e.kind in others)
    machine = replace(machine, engines=only)
    graph = matmul_graph(64, 96, 128, dtype)
    schedule = naive_schedule(graph, machine)
    points = contracted_points(graph.ops)
    sim = simulate_unit(lower_unit(schedule, machine, name), machine, contractions=points)
    (use,) = [row for row in sim.engines if row.engine == engine]
    assert sim.macs >= 64 * 96 * 128
    limit = ROUNDING * peak_of(name, engine, dtype)
    assert tera_ops(machine, sim.macs, sim.cycles) <= limit
    assert tera_ops(machine, sim.macs * machine.num_cores, use.busy_cycles) <= limit

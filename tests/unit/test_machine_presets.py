"""Shipped presets: all load, their numbers are those of the tables, guesses are listed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import onnx
import pytest

from worker.compiler.ir.dtype import DType
from worker.compiler.machine import (
    canonical_document,
    digest,
    lint_document,
    load_machine,
    load_preset,
    parse_document,
    preset_document,
    preset_names,
    spec_json_schema,
)
from worker.compiler.machine.machine import EngineKind, Machine, Managed
from worker.compiler.machine.presets import known_ops, op_groups

ALL = preset_names()
INTEGER_ONLY = {"tpuv1", "dpu-zu", "dpu-u250", "ethos-u65", "nvdla-large"}
FP32_ARRAYS = {"ipu-gc2", "ipu-gc200", "mi50"}
"""Whose matrix engine has FP32 by the vendor's figures."""
FP32_GUESSED = {"kapla-16x16", "kapla-edge", "eyeriss", "simba", "stcp920", "stcp920-inferred"}
"""Of which no FP32 figure is published: multi-word products on the array, a stated guess."""
NO_INT8_ARRAY = {"ipu-gc2", "ipu-gc200", "v100"}
KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30


def test_the_promised_presets_are_shipped() -> None:
    assert set(ALL) == {
        "stcp920", "stcp920-inferred", "goya", "ascend910", "ipu-gc2", "ipu-gc200", "kapla-16x16",
        "kapla-edge", "eyeriss", "tpuv1", "v100", "a100", "h100", "h200", "rtx3090", "mi50",
        "xavier", "dpu-zu", "dpu-u250", "ethos-u65", "simba", "nvdla-large",
    }  # fmt: skip


@pytest.mark.parametrize("name", ALL)
class TestEveryPreset:
    def test_loads_without_findings(self, name: str) -> None:
        assert lint_document(preset_document(name)) == ()
        assert load_preset(name).name == name
        assert preset_document(name)["description"]

    def test_has_the_engines_every_strategy_relies_on(self, name: str) -> None:
        machine = load_preset(name)
        for kind in EngineKind:
            if kind is not EngineKind.SCALAR:
                assert machine.engines_of(kind), kind
        filled = {e.memory for e in machine.engines_of(EngineKind.DMA_IN)}
        drained = {e.memory for e in machine.engines_of(EngineKind.DMA_OUT)}
        assert filled == drained == {level.name for level in machine.scratchpads}

    def test_float_where_it_makes_sense_and_index_types_everywhere(self, name: str) -> None:
        machine = load_preset(name)
        (matrix,) = machine.engines_of(EngineKind.MATRIX)
        (vector,) = machine.engines_of(EngineKind.VECTOR)
        assert (DType.F32 in vector.macs_per_cycle) == (name not in INTEGER_ONLY)
        assert (DType.F32 in matrix.macs_per_cycle) == (name in FP32_ARRAYS | FP32_GUESSED)
        assert _is_guess(machine, matrix.name, DType.F32) == (name in FP32_GUESSED)
        assert (DType.I8 in matrix.macs_per_cycle) == (name not in NO_INT8_ARRAY)
        assert DType.I8 in vector.macs_per_cycle
        assert vector.special_ops_per_cycle > 0
        assert {DType.I64, DType.I32, DType.BOOL} <= set(vector.macs_per_cycle)
        assert set(machine.targets[0].capabilities.dtypes) <= {
            *matrix.macs_per_cycle,
            *vector.macs_per_cycle,
        }

    def test_every_number_carries_a_tag_and_every_guess_is_listed(self, name: str) -> None:
        document = canonical_document(preset_document(name))
        numbers = dict(_numbers(document, ""))
        untagged = [
            pointer
            for pointer, value in numbers.items()
            if not isinstance(value, dict)
            and pointer != "/schema_version"
            and "/constant_inputs/" not in pointer  # positions of inputs, no quantities
        ]
        assert untagged == []
        guessed = {p for p, v in numbers.items() if isinstance(v, dict) and v.get("tag") == "G"}
        listed = {g.pointer for g in load_preset(name).guesses}
        assert guessed <= listed
        free = (
            "feed_bytes_per_cycle", "drain_bytes_per_cycle", "dataflow", "setup_cycles",
            "outstanding_bytes", "engine_signal_cycles",
            "burst_bytes", "sustained_fraction", "engine_ports",
            "bus_energy_pj_per_byte",
        )  # fmt: skip
        assert all("generic energy table" in g.note or g.pointer.endswith(free)
                   for g in load_preset(name).guesses if g.pointer not in guessed)  # fmt: skip

    def test_is_valid_against_the_exported_schema(self, name: str) -> None:
        validator = jsonschema_rs.validator_for(spec_json_schema())
        errors = [e.message for e in validator.iter_errors(preset_document(name))]
        assert errors == []

    def test_energies_are_filled_in(self, name: str) -> None:
        machine = load_preset(name)
        assert all(level.read_energy_pj_per_byte > 0 for level in machine.levels)
        for engine in machine.engines:
            if engine.macs_per_cycle:
                assert engine.op_energy_pj is not None
                assert set(engine.op_energy_pj) == set(engine.macs_per_cycle)


def _is_guess(machine: Machine, engine: str, dtype: DType) -> bool:
    """Whether the rate is listed among the guesses of every report."""
    position = [e.name for e in machine.engines].index(engine)
    pointer = f"/engines/{position}/macs_per_cycle/{dtype}"
    return pointer in {guess.pointer for guess in machine.guesses}


def _numbers(value: Any, at: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        if "value" in value:
            return [(at, value)]
        return [row for key, item in value.items() for row in _numbers(item, f"{at}/{key}")]
    if isinstance(value, list):
        return [row for k, item in enumerate(value) for row in _numbers(item, f"{at}/{k}")]
    return [(at, value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


TABLE = [
    # preset, cores, clusters, clock, {level: (capacity, instances)}, {dtype: MACs per core}
    ("stcp920", 32, 4, 1e9, {"DDR": (16 * GiB, 1), "LLB": (8 * MiB, 4), "L1": (64 * KiB, 32)},
     {DType.F16: 2048, DType.I8: 4096}),
    ("stcp920-inferred", 32, 4, 1e9, {"L1": (1 * MiB, 32)}, {DType.F16: 2048}),
    ("goya", 8, 1, 1.5e9, {"SRAM": (0x32A0000, 1), "LB": (80 * KiB, 8)}, {DType.I8: 2048}),
    ("ascend910", 32, 1, 1e9, {"L2": (32 * MiB, 1), "LB": (1280 * KiB, 32)},
     {DType.F16: 4096, DType.I8: 8192}),
    ("ipu-gc2", 1216, 1, 1.6e9, {"SRAM": (256 * KiB, 1216)}, {DType.F32: 8, DType.F16: 32}),
    ("ipu-gc200", 1472, 1, 1.33e9, {"SRAM": (624 * KiB, 1472)}, {DType.F32: 16, DType.F16: 64}),
    ("kapla-16x16", 256, 1, 5e8, {"GBUF": (32 * KiB, 256), "REGF": (4 * KiB, 256)},
     {DType.I16: 64}),
    ("kapla-edge", 1, 1, 5e8, {"GBUF": (64 * KiB, 1)}, {DType.I16: 256}),
    ("eyeriss", 1, 1, 2e8, {"GLB": (108 * KiB, 1), "SPAD": (168 * 261 * 2, 1)}, {DType.I16: 168}),
    ("tpuv1", 1, 1, 7e8, {"DDR": (8 * GiB, 1), "UB": (24 * MiB, 1), "ACC": (4 * MiB, 1)},
     {DType.I8: 65536}),
    ("v100", 80, 1, 1.53e9, {"L2": (6 * MiB, 1), "SMEM": (96 * KiB, 80)}, {DType.F16: 512}),
    ("a100", 108, 1, 1.41e9, {"DRAM": (40 * GiB, 1), "L2": (40 * MiB, 1), "SMEM": (164 * KiB, 108)},
     {DType.F16: 1024, DType.I8: 2048}),
    ("h100", 132, 1, 1.83e9,
     {"DRAM": (80 * GiB, 1), "L2": (50 * MiB, 1), "SMEM": (228 * KiB, 132)},
     {DType.F16: 2048, DType.I8: 4096}),
    ("rtx3090", 82, 1, 1.695e9,
     {"DRAM": (24 * GiB, 1), "L2": (6 * MiB, 1), "SMEM": (100 * KiB, 82)},
     {DType.F16: 256, DType.I8: 1024}),
    ("h200", 132, 1, 1.83e9, {"L2": (50 * MiB, 1), "SMEM": (228 * KiB, 132)},
     {DType.F16: 2048, DType.I8: 4096}),
    ("mi50", 60, 1, 1.746e9, {"L2": (4 * MiB, 1), "SMEM": (64 * KiB, 60)}, {DType.F16: 128}),
    ("xavier", 8, 1, 1.377e9, {"L2": (512 * KiB, 1), "SMEM": (96 * KiB, 8)}, {DType.F16: 512}),
    ("dpu-zu", 2, 1, 3e8, {"BRAM": (255 * 4608, 2)}, {DType.I8: 2048}),
    ("dpu-u250", 8, 1, 3e8, {"DDR": (64 * GiB, 1)}, {DType.I8: 2048}),
    ("ethos-u65", 2, 1, 1e9, {"SRAM": (512 * KiB, 1), "SHRAM": (48 * KiB, 2)}, {DType.I8: 256}),
    ("simba", 576, 36, 2e9, {"GLB": (64 * KiB, 36), "PEBUF": (43 * KiB, 576)}, {DType.I8: 64}),
    ("nvdla-large", 1, 1, 1e9, {"CBUF": (512 * KiB, 1)}, {DType.I8: 2048}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "cores", "clusters", "clock_hz", "levels", "macs"), TABLE, ids=[r[0] for r in TABLE]
)
def test_sizes_and_rates(
    name: str,
    cores: int,
    clusters: int,
    clock_hz: float,
    levels: dict[str, tuple[int, int]],
    macs: dict[DType, int],
) -> None:
    machine = load_preset(name)
    assert (machine.num_cores, machine.num_clusters, machine.clock_hz) == (
        cores, clusters, clock_hz,
    )  # fmt: skip
    for level_name, expected in levels.items():
        level = machine.level(level_name)
        assert (level.capacity_bytes, level.instances) == expected
    (matrix,) = machine.engines_of(EngineKind.MATRIX)
    for dtype, rate in macs.items():
        assert matrix.macs_per_cycle[dtype] == rate


@pytest.mark.parametrize(
    ("name", "gigabytes_per_s", "sustained"),
    [
        ("stcp920", 136, 0.85), ("goya", 40, 1), ("ascend910", 1200, 0.85), ("ipu-gc2", 16, 0.85),
        ("ipu-gc200", 20, 1), ("kapla-16x16", 25.6, 1), ("kapla-edge", 6.4, 1),
        ("tpuv1", 34, 1), ("v100", 900, 790 / 900), ("a100", 1555, 0.85),
        ("h200", 4800, 0.921), ("mi50", 1024, 0.85), ("xavier", 137, 0.85),
        ("dpu-zu", 19.2, 0.85), ("dpu-u250", 76.8, 0.85), ("ethos-u65", 12, 1),
        ("nvdla-large", 32, 1), ("h100", 3352, 0.913), ("rtx3090", 936, 0.85),
    ],
)  # fmt: skip
def test_off_chip_bandwidth(name: str, gigabytes_per_s: float, sustained: float) -> None:
    """Peak as published, and what is kept up of it."""
    machine = load_preset(name)
    found = machine.home.read_bytes_per_cycle * machine.clock_hz / 1e9
    assert found == pytest.approx(gigabytes_per_s * sustained, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "dtype", "tera_ops"),
    [
        ("stcp920", DType.I8, 256), ("stcp920", DType.F16, 128), ("ascend910", DType.F16, 256),
        ("ipu-gc2", DType.F16, 124.5), ("ipu-gc200", DType.F32, 62.5), ("tpuv1", DType.I8, 92),
        ("v100", DType.F16, 125), ("a100", DType.F16, 312), ("a100", DType.I8, 624),
        ("h200", DType.F16, 989), ("mi50", DType.I8, 53.6), ("xavier", DType.F16, 11),
        ("h100", DType.F16, 989), ("h100", DType.I8, 1979), ("rtx3090", DType.F16, 71),
        ("rtx3090", DType.I8, 284), ("dpu-zu", DType.I8, 2.46), ("dpu-u250", DType.I8, 9.8),
        ("simba", DType.I8, 127.8),
    ],
)  # fmt: skip
def test_peak_rate(name: str, dtype: DType, tera_ops: float) -> None:
    machine = load_preset(name)
    (matrix,) = machine.engines_of(EngineKind.MATRIX)
    peak = 2 * matrix.macs_per_cycle[dtype] * machine.num_cores * machine.clock_hz / 1e12
    # Simba's published package figure is below its MACs x 2 GHz; the others round to powers of two.
    assert peak == pytest.approx(tera_ops, rel=0.2 if name == "simba" else 0.05)


def test_gpus_cross_a_cache_and_keep_registers_out_of_the_plan() -> None:
    for name in ("v100", "a100", "h100", "h200", "rtx3090", "mi50", "xavier"):
        machine = load_preset(name)
        assert [m.managed for m in machine.levels] == [
            Managed.SCRATCHPAD, Managed.CACHE, Managed.SCRATCHPAD, Managed.REGISTER,
        ]  # fmt: skip
        assert machine.route("DRAM", "SMEM") == ("DRAM", "L2", "SMEM")


def test_xavier_shares_memory_with_its_host() -> None:
    assert load_preset("xavier").host.shared_memory
    assert not load_preset("a100").host.shared_memory


def test_byoc_targets_offer_what_the_paper_says() -> None:
    zynq, alveo = (load_preset(n).targets[0].capabilities for n in ("dpu-zu", "dpu-u250"))
    for refused in ("Slice", "Split", "NonMaxSuppression"):
        assert zynq.support(refused) is None
        assert alveo.support(refused) is None
    conv = alveo.support("Conv")
    assert conv is not None
    assert ("depthwise", 0, 0) in conv.limits
    conv = zynq.support("Conv")
    assert conv is not None
    assert ("kernel_h", 1, 16) in conv.limits
    assert ("stride_w", 1, 4) in conv.limits
    xavier = load_preset("xavier").targets[0].capabilities
    assert xavier.support("If") is None
    assert xavier.support("Range") is None
    assert xavier.support("Conv") is not None
    assert load_preset("ethos-u65").targets[0].capabilities.max_rank == 4


def test_gpus_and_ascend_gather_scatters_at_known_places() -> None:
    """Compared with run-time places they are slower than the host: decision 0020."""
    taken = set()
    for name in preset_names():
        capabilities = load_preset(name).targets[0].capabilities
        found = capabilities.support("ScatterND")
        if found is not None:
            assert found.constant_inputs == (1,)
            assert capabilities.support("GridSample") is not None
            taken.add(name)
        assert capabilities.support("TopK") is None
        assert capabilities.support("LSTM") is None
    assert taken == {"a100", "v100", "h100", "h200", "rtx3090", "mi50", "ascend910"}


def test_an_op_listed_on_its_own_overrides_its_group() -> None:
    document = {
        "name": "m", "inherits": "a100",
        "capabilities": {"exclude": ["Erf"], "ops": [
            {"op_type": "Conv", "dtypes": ["f16"], "limits": {"group": {"min": 1, "max": 1}}},
        ]},
    }  # fmt: skip
    capabilities = load_machine(document).targets[0].capabilities
    assert capabilities.support("Erf") is None
    conv = capabilities.support("Conv")
    assert conv is not None
    assert conv.dtypes == (DType.F16,)
    assert conv.limits == (("group", 1, 1),)


def test_op_groups_name_real_operators() -> None:
    real = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""}
    assert known_ops() <= real | {"Upsample"}
    for members in op_groups().values():
        assert set(members) <= known_ops()
    assert "TopK" not in op_groups()["broad"]
    assert {"ArgMax", "GatherND", "DynamicQuantizeLinear"} <= set(op_groups()["broad"])
    assert {"Conv", "Einsum", "RMSNormalization", "Resize", "Where"} <= set(op_groups()["broad"])


def test_the_schema_refuses_what_the_lint_refuses() -> None:
    validator = jsonschema_rs.validator_for(spec_json_schema())
    document = canonical_document(preset_document("a100"))
    assert validator.is_valid(document)
    for pointer, value in (
        ("clock_hz", 0), ("num_cores", "many"), ("levels", []), ("unknown", 1),
        ("clock_hz", {"value": 1e9, "tag": "?"}), ("clock_hz", {"value": -1, "tag": "K"}),
    ):  # fmt: skip
        assert not validator.is_valid({**document, pointer: value}), pointer
    edit = {"name": "m", "inherits": "a100", "levels": [{"name": "REG", "remove": True}]}
    assert validator.is_valid(edit)
    assert not validator.is_valid({**edit, "levels": [{"capacity_bytes": 4}]})
    for low, fits in ((None, True), (3.0, True), (-1.0, False), ("x", False)):
        power = {"name": "m", "inherits": "a100", "static_power_w": {"value": 4, "low": low}}
        assert validator.is_valid(power) == fits == (not lint_document(power)), low
    assert not validator.is_valid({"name": "m", "clock_hz": 1e9})


def test_importing_the_machine_loads_neither_numpy_nor_onnx() -> None:
    code = (
        "import sys, json; from worker.compiler.machine import load_preset, digest;"
        "digest(load_preset('a100'));"
        "print(json.dumps([m for m in ('numpy', 'onnx', 'onnxruntime') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_digest_does_not_depend_on_the_process() -> None:
    code = (
        "from worker.compiler.machine import *;"
        "print(*(digest(load_preset(n)) for n in preset_names()))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(p for p in sys.path if p)},
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert outputs == {" ".join(digest(load_preset(n)) for n in ALL)}


def test_the_example_of_the_page_is_accepted() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "machine.md"
    text = page.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    document = parse_document(text)
    assert lint_document(document) == ()
    assert load_machine(document).level("L1").capacity_bytes == 2 * MiB

"""What is varied: fields as users write them, and the documents that come of it."""

from __future__ import annotations

from typing import Any

import pytest

from worker.compiler.errors import OptionError
from worker.compiler.machine import canonical_document, load_machine, preset_document
from worker.explore.fields import MOST_SPECS, choices, document_of, parse_field

CHIP = canonical_document(preset_document("kapla-16x16"))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("GBUF.capacity_bytes=8KiB,64KiB", [(8192,), (65536,)]),
        ("GBUF.capacity_bytes=x0.5,x1,x1,x2", [(16384,), (32768,), (65536,)]),
        ("GBUF.capacity_bytes=4KiB..30KiB", [(4096,), (8192,), (16384,)]),
        ("GBUF.capacity_bytes=4KiB..8KiB,1M", [(4096,), (8192,), (1_000_000,)]),
        ("clock_hz=1.5G,2e8", [(1_500_000_000,), (200_000_000,)]),
        ("DRAM.read_bytes_per_cycle=x0.75", [(38.4,)]),
        ("PE.array.1=16", [(16,)]),
        ("num_cores+GBUF.instances+REGF.instances=x0.5,x1", [(128, 128, 128), (256, 256, 256)]),
        (
            "GBUF.capacity_bytes+NOC.bytes_per_cycle=x1..x4",
            [(32768, 16), (65536, 32), (131072, 64)],
        ),
        ("/levels/GBUF/capacity_bytes=x1,64KiB", [(32768,), (65536,)]),
        ("/levels/1/capacity_bytes+NOC.bytes_per_cycle=x2", [(65536, 32)]),
        ("/clock_hz=2e8", [(200_000_000,)]),
    ],
)
def test_values_of_a_field(text: str, values: list[tuple[float, ...]]) -> None:
    field = parse_field(text, CHIP)
    assert list(field.values) == values
    assert field.names == tuple(text.partition("=")[0].split("+"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("GBUF.capacity_bytes", "is no FIELD=VALUE"),
        ("GBUF.capacity_bytes=", "is no FIELD=VALUE"),
        ("GBUF.capacity_bytes=big", "has 'big', which is no value"),
        ("GBUF.capacity_bytes=0", "which is no value"),
        ("GBUF.capacity_bytes=-4", "which is no value"),
        ("GBUF.capacity_bytes=1e999", "which is no value"),
        ("GBUF.capacity_bytes=1..1e306", "has more than 1000 values"),
        ("GBUF.size=4", "has no 'size'"),
        ("GBUF.managed=4", "is no number"),
        ("PE.array.7=4", "has no '7'"),
        ("PE.array=4", "is no number"),
        ("L7.capacity_bytes=4", "names no part 'L7'"),
        ("launch_latency_cycles=4", "is nothing to explore"),
        ("host.flops_per_s=4", "names no part 'host'"),
        ("engine_signal_cycles=4", "is not in the hardware document"),
        ("GBUF.capacity_bytes+GBUF.capacity_bytes=4", "names a field twice"),
        ("PE.op_energy_pj.i8=4", "changes nothing that is explored"),
        ("REGF.read_energy_pj_per_byte=4", "changes nothing that is explored"),
        ("/levels/REGF/read_energy_pj_per_byte=4", "changes nothing that is explored"),
        ("/levels/L7/capacity_bytes=4", "names no part 'L7'"),
        ("/levels/9/capacity_bytes=4", "names no part '9'"),
        ("/levels/GBUF=4", "is no number"),
        ("/levels/GBUF/size=4", "has no 'size'"),
        ("/host/flops_per_s=4", "is nothing to explore"),
        ("/launch_latency_cycles=4", "is nothing to explore"),
        ("/=4", "is nothing to explore"),
    ],
)
def test_what_cannot_be_varied_is_refused(text: str, why: str) -> None:
    with pytest.raises(OptionError, match=why.replace("(", r"\(")) as found:
        parse_field(text, CHIP)
    assert found.value.code == "TW-OPT-001"
    assert found.value.remedy


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("launch_latency_cycles=4", ("launch_latency_cycles",)),
        ("/host/flops_per_s=4", ("host", "flops_per_s")),
        ("PE.op_energy_pj.i8=4", ("engines", 0, "op_energy_pj", "i8")),
        ("/engines/PE/op_energy_pj/i8=4", ("engines", 0, "op_energy_pj", "i8")),
    ],
)
def test_whoever_simulates_may_vary_any_number(text: str, way: tuple[str | int, ...]) -> None:
    field = parse_field(text, CHIP, is_simulated=True)
    assert field.ways == (way,)
    changed = document_of(CHIP, [field], (0,))
    assert _differences(CHIP, changed) == {"/" + "/".join(map(str, way))}
    with pytest.raises(OptionError):
        parse_field(text, CHIP)
    with pytest.raises(OptionError, match="is no number"):
        parse_field("/host/name=4", CHIP, is_simulated=True)


def test_every_combination_once() -> None:
    fields = [parse_field("clock_hz=x1,x2", CHIP), parse_field("GBUF.capacity_bytes=4,5,6", CHIP)]
    assert list(choices(fields)) == [(a, b) for a in (0, 1) for b in (0, 1, 2)]
    many = parse_field(f"clock_hz={','.join(map(str, range(1, 1001)))}", CHIP)
    other = parse_field(f"NOC.bytes_per_cycle={','.join(map(str, range(1, 102)))}", CHIP)
    with pytest.raises(OptionError, match=f"101000 specs are more than {MOST_SPECS}"):
        list(choices([many, other]))
    with pytest.raises(OptionError, match="clock_hz: is varied twice"):
        list(choices([many, many]))


def test_only_what_is_named_changes() -> None:
    fields = [
        parse_field("GBUF.capacity_bytes+DRAM.latency_cycles=x0.5,x2", CHIP),
        parse_field("PE.array.0=4,16", CHIP),
    ]
    changed = document_of(CHIP, fields, (1, 0))
    before, after = load_machine(CHIP), load_machine(changed)
    assert after.level("GBUF").capacity_bytes == 2 * before.level("GBUF").capacity_bytes
    assert after.home.latency_cycles == 2 * before.home.latency_cycles
    assert after.engine("PE").array == (4, 8)
    assert _differences(CHIP, changed) == {
        "/engines/0/array/0", "/levels/0/latency_cycles", "/levels/1/capacity_bytes",
    }  # fmt: skip


def _differences(one: Any, other: Any, at: str = "") -> set[str]:
    if isinstance(one, dict) and isinstance(other, dict) and "tag" not in one:
        assert one.keys() == other.keys()
        return {d for key in one for d in _differences(one[key], other[key], f"{at}/{key}")}
    if isinstance(one, list) and isinstance(other, list):
        assert len(one) == len(other)
        return {d for k in range(len(one)) for d in _differences(one[k], other[k], f"{at}/{k}")}
    return set() if one == other else {at}

"""Region streams: what damage is refused, and what the command line says of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from region_bundles import bundled, members
from typer.testing import CliRunner, Result

from service.cli.main import app
from worker.compiler import package
from worker.compiler.codegen.region_driver import Driver, DriverCall, generate_region
from worker.compiler.errors import InputError, VerifyError
from worker.compiler.isa.program import INSTRUCTION, UnitProgram
from worker.compiler.package.region_code import EntryRole, RegionCode
from worker.compiler.package.stream import decode_stream, encode_stream


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return dict(members(bundled("view", tmp_path_factory.mktemp("view"))))


@pytest.fixture
def stream(files: dict[str, bytes]) -> bytes:
    return files["regions/0/stream.bin"]


def sealed(data: bytes) -> bytes:
    """The bytes with a right checksum and length, so that what lies behind them is looked at."""
    sized = data[:16] + len(data).to_bytes(8, "little") + data[24:]
    return sized[:12] + crc32(sized[16:]).to_bytes(4, "little") + sized[16:]


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, b"TWPROG05", "magic number"),
        (8, b"\x02\0\0\0", "version 2, this reader knows 1"),
        (12, b"\0\0\0\0", "does not match its checksum"),
        (60, b"X", "does not match its checksum"),
    ],
)
def test_damage_is_refused(stream: bytes, position: int, value: bytes, message: str) -> None:
    broken = stream[:position] + value + stream[position + len(value) :]
    with pytest.raises(InputError, match=message) as caught:
        decode_stream(broken)
    assert caught.value.code == "TW-RUN-001"


@pytest.mark.parametrize("length", [0, 7, 8, 55, 56, 57, 300, -1])
def test_truncation_is_refused_with_and_without_a_right_header(stream: bytes, length: int) -> None:
    short = stream[:length]
    for data in (short, sealed(short) if len(short) >= 56 else short):
        with pytest.raises(InputError) as caught:
            decode_stream(data)
        assert caught.value.code == "TW-RUN-001"
    with pytest.raises(InputError):
        decode_stream(sealed(stream + b"\0" * 8))


def with_entry(code: RegionCode, number: int, **changes: Any) -> RegionCode:
    entries = list(code.entries)
    entries[number] = replace(entries[number], **changes)
    return replace(code, entries=tuple(entries))


def with_call(code: RegionCode, **changes: Any) -> RegionCode:
    return replace(code, calls=(replace(code.calls[0], **changes), *code.calls[1:]))


def with_rows(code: RegionCode, field: str, value: int) -> RegionCode:
    unit = code.units[0]
    rows = unit.instructions.copy()
    rows[field][0] = value
    return with_unit(code, replace(unit, instructions=rows))


def with_unit(code: RegionCode, unit: UnitProgram) -> RegionCode:
    return replace(code, units=(unit, *code.units[1:]))


WRONG = {
    "entry 0 has 5 bytes": lambda c: with_entry(c, 0, size_bytes=5),
    "entry 0 lies at address": lambda c: with_entry(c, 0, address=(1 << 63) - 1),
    "shares the storage of entry 9": lambda c: with_entry(c, 1, alias_of=9),
    "shares the storage of entry 1": lambda c: with_entry(c, 1, alias_of=1),
    "runs unit 7 of 2": lambda c: with_call(c, unit=7),
    "names entry 99": lambda c: with_call(c, entries=(0, 99)),
    "has 1 entries for 2 operands": lambda c: with_call(c, entries=(0,)),
    "gives entry 2": lambda c: with_call(c, entries=(0, 2)),
    "not a C identifier": lambda c: replace(c, function="a b"),
    "opcode 77": lambda c: with_rows(c, "opcode", 77),
    "stream 99": lambda c: with_rows(c, "stream", 99),
    "node -1": lambda c: with_rows(c, "node", -1),
    "src 50": lambda c: with_rows(c, "src", 50),
    "dst -2": lambda c: with_rows(c, "dst", -2),
    "resource 999": lambda c: with_rows(c, "resource", 999),
    "bytes -4": lambda c: with_rows(c, "bytes", -4),
    "wait token": lambda c: with_unit(
        c, replace(c.units[0], wait_token=c.units[0].wait_token + 10**6)
    ),
    "signal offsets decrease": lambda c: with_unit(
        c, replace(c.units[0], signal_ptr=_swapped(c.units[0].signal_ptr))
    ),
    "wait offsets do not match": lambda c: with_unit(
        c, replace(c.units[0], wait_ptr=c.units[0].wait_ptr + np.int32(1))
    ),
}  # fmt: skip


def _swapped(pointer: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    changed = pointer.copy()
    changed[1] = changed[-1] + 1
    return changed


@pytest.mark.parametrize("message", WRONG)
def test_ids_outside_their_tables_are_refused(stream: bytes, message: str) -> None:
    broken = encode_stream(WRONG[message](decode_stream(stream)))
    with pytest.raises(InputError, match=message) as caught:
        decode_stream(broken)
    assert caught.value.code == "TW-RUN-001"


def test_views_share_storage_and_say_so(stream: bytes) -> None:
    code = decode_stream(stream)
    by_name = {entry.name: k for k, entry in enumerate(code.entries)}
    assert code.entries[by_name["f"]].alias_of == by_name["r"]
    assert code.entries[by_name["f"]].address == code.entries[by_name["r"]].address
    assert [entry.role for entry in code.entries] == [
        EntryRole.INPUT, EntryRole.INTERMEDIATE, EntryRole.INTERMEDIATE, EntryRole.OUTPUT,
    ]  # fmt: skip


def test_a_driver_call_outside_the_table_is_our_bug() -> None:
    driver = Driver("tw_region_0", "npu", ("a",), (DriverCall("tw_unit", (0, 1), ("n",)),))
    with pytest.raises(VerifyError, match="names entry 1 of 1"):
        generate_region(driver)


def disassemble(*words: object) -> Result:
    return CliRunner().invoke(app, ["disassemble", *map(str, words)])


def test_one_region_can_be_picked(tmp_path: Path) -> None:
    bundle = bundled("loop", tmp_path)
    everything = disassemble(bundle, "--json")
    assert everything.exit_code == 0, everything.output
    rows = json.loads(everything.stdout)["items"]
    assert [row["folder"] for row in rows] == ["regions/0", "regions/1", "bodies/0/regions/0"]
    for asked, folder in (("1", "regions/1"), ("bodies/0/regions/0", "bodies/0/regions/0")):
        (row,) = json.loads(disassemble(bundle, "--region", asked, "--json").stdout)["items"]
        assert row["folder"] == folder
        assert row in rows
    cut = disassemble(bundle, "--region", 0, "--limit", 1)
    assert "# 1 of " in cut.stdout


@pytest.mark.parametrize(
    ("make", "words", "code", "text"),
    [
        (None, [], "TW-CLI-001", "there is no such file"),
        (b"nonsense", [], "TW-RUN-001", "magic number"),
        (b"nonsense", ["--region", "0"], "TW-CLI-001", "is no bundle"),
    ],
)
def test_what_cannot_be_disassembled_is_refused(
    tmp_path: Path, make: bytes | None, words: list[str], code: str, text: str
) -> None:
    path = tmp_path / "s.bin"
    if make is not None:
        path.write_bytes(make)
    result = disassemble(path, *words)
    assert result.exit_code == 3
    assert code in result.stderr
    assert text in result.stderr


def test_a_region_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    result = disassemble(bundled("view", tmp_path), "--region", "8")
    assert result.exit_code == 3
    assert "has no region 8; it has regions/0" in result.stderr


def test_instructions_are_as_documented() -> None:
    """Every field stands where FORMATS.md says, in its width, and none is left out."""
    page = (Path(package.__file__).parent / "FORMATS.md").read_text(encoding="utf-8")
    size, _, rest = page.partition("\nInstruction, ")[2].partition(" bytes:\n")
    rows = re.findall(
        r"^\| (\d+) \| (?:(\d) x )?([ui])(\d+) \|", rest.partition("\nA MULTICAST")[0], re.MULTILINE
    )
    fields = INSTRUCTION.fields or {}
    written = [(offset, dtype) for dtype, offset, *_ in fields.values()]
    said = [
        (int(at), np.dtype((f"<{kind}{int(bits) // 8}", (int(count),) if count else ())))
        for at, count, kind, bits in rows
    ]
    assert written == said
    assert INSTRUCTION.itemsize == int(size)


def test_the_bytes_are_as_documented(stream: bytes) -> None:
    """A second reader, made from FORMATS.md: tables, calls, and where the programs stand."""
    code = decode_stream(stream)

    def u32(at: int) -> int:
        return int.from_bytes(stream[at : at + 4], "little")

    def u64(at: int) -> int:
        return int.from_bytes(stream[at : at + 8], "little")

    assert (u64(16), u32(24), u32(52)) == (len(stream), code.index, 0)
    at, strings = 56, []
    for _ in range(u32(36)):
        strings.append(stream[at + 4 : at + 4 + u32(at)].decode())
        at += 4 + u32(at)
    assert (strings[u32(28)], strings[u32(32)]) == (code.target, code.function)
    dtypes = [
        "f64",
        "f32",
        "f16",
        "bf16",
        "i64",
        "i32",
        "i16",
        "i8",
        "u64",
        "u32",
        "u16",
        "u8",
        "bool",
    ]
    assert u32(40) == len(code.entries)
    for entry in code.entries:
        rank = int.from_bytes(stream[at + 6 : at + 8], "little")
        alias = 0xFFFFFFFF if entry.alias_of is None else entry.alias_of
        assert strings[u32(at)] == entry.name
        assert (dtypes[stream[at + 4]], stream[at + 5]) == (entry.dtype, int(entry.role))
        assert (u32(at + 8), u64(at + 16), u64(at + 24)) == (alias, entry.address, entry.size_bytes)
        assert tuple(u64(at + 32 + 8 * d) for d in range(rank)) == entry.shape
        at += 32 + 8 * rank
    assert tuple(strings[u32(at + 4 * k)] for k in range(u32(44))) == code.kernels
    at += 4 * u32(44)
    for call in code.calls:
        assert (u32(at), strings[u32(at + 4)]) == (call.unit, call.op_type)
        assert u64(at + 16) == call.launch_cycles
        count, nodes = u32(at + 8), u32(at + 12)
        ids = [u32(at + 24 + 4 * k) for k in range(count + nodes)]
        assert tuple(ids[:count]) == call.entries
        assert tuple(strings[k] for k in ids[count:]) == call.onnx_nodes
        at += 24 + 4 * (count + nodes)
    assert at + 8 + u64(at) == len(stream)
    assert stream[at + 8 : at + 16] == b"TWPROG06"

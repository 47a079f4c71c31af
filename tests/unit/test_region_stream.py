"""Region streams: what damage is refused, and what the command line says of them."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from region_bundles import bundled, members
from sealed_streams import sealed
from typer.testing import CliRunner, Result

from service.cli.main import app
from worker.compiler.codegen.region_driver import Driver, DriverCall, generate_region
from worker.compiler.errors import InputError, VerifyError
from worker.compiler.isa.binary import PROGRAM_MAGIC
from worker.compiler.isa.program import UnitProgram
from worker.compiler.package.build import find_compiler
from worker.compiler.package.formats import formats_page
from worker.compiler.package.region_code import EntryRole, RegionCode
from worker.compiler.package.stream.codec import decode_stream, encode_stream
from worker.compiler.package.stream.header import (
    stream_header,
    stream_operations,
    stream_tables,
)
from worker.compiler.package.stream.records import DIRECTORY, HEADER, TABLES
from worker.compiler.package.stream.text import parse_region, print_region


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return dict(members(bundled("view", tmp_path_factory.mktemp("view"))))


@pytest.fixture
def stream(files: dict[str, bytes]) -> bytes:
    return files["regions/0/stream.bin"]


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, b"TWPROG05", "magic number"),
        (8, b"\x01\0\0\0", "version 1, this reader knows 3"),
        (12, b"\0\0\0\0", "does not match its checksum"),
        (60, b"X", "does not match its checksum"),
    ],
)
def test_damage_is_refused(stream: bytes, position: int, value: bytes, message: str) -> None:
    broken = stream[:position] + value + stream[position + len(value) :]
    with pytest.raises(InputError, match=message) as caught:
        decode_stream(broken)
    assert caught.value.code == "TW-RUN-001"


@pytest.mark.parametrize("length", [0, 7, 8, 47, 48, 49, 300, 3000, -1])
def test_truncation_is_refused_with_and_without_a_right_header(stream: bytes, length: int) -> None:
    short = stream[:length]
    for data in (short, sealed(short) if len(short) >= 48 else short):
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


def test_the_page_has_the_tables_of_the_code() -> None:
    """FORMATS.md says of every record what encoder and header say."""
    page = formats_page()
    for mark, text in (("tables", stream_tables()), ("operations", stream_operations())):
        said = page.partition(f"<!-- {mark} -->\n")[2].partition(f"<!-- end of {mark} -->")[0]
        assert said == text
    program = f"magic `{PROGRAM_MAGIC.decode()}`"
    assert program in page


def test_the_header_is_c_with_the_offsets_of_the_encoder(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    """Compiled alone, with every field's offset asserted as numpy has it."""
    header = files["regions/stream.h"].decode()
    assert header == stream_header()
    lines = [header, "#include <stddef.h>"]
    for table in (HEADER, DIRECTORY, *TABLES):
        fields = table.dtype.fields or {}
        if len(fields) > 1:
            lines += [
                f'_Static_assert(offsetof(tw_stream_{table.name}, {name}) == {field[1]}, "{name}");'
                for name, field in fields.items()
            ]
    source = tmp_path / "offsets.c"
    source.write_text("\n".join(lines))
    command = [str(find_compiler()), "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    subprocess.run([*command, str(source)], check=True)
    assert not any(
        field[1] % table.dtype[name].base.itemsize
        for table in (HEADER, DIRECTORY, *TABLES)
        if table.name not in ("instructions", "loops", "strides")
        for name, field in (table.dtype.fields or {}).items()
    )


def test_the_bundle_has_its_page(files: dict[str, bytes]) -> None:
    assert files["FORMATS.md"].decode() == formats_page()


def test_every_flipped_bit_is_refused(stream: bytes) -> None:
    """Each byte once, with another bit in turn; those of the header with all bits."""
    data = bytearray(stream)
    for place in range(len(data)):
        for bit in range(8) if place < HEADER.dtype.itemsize else (place % 8,):
            data[place] ^= 1 << bit
            with pytest.raises(InputError, match=r"stream") as caught:
                decode_stream(bytes(data))
            assert caught.value.code == "TW-RUN-001"
            data[place] ^= 1 << bit


def test_text_parses_back_to_the_bytes(stream: bytes, tmp_path: Path) -> None:
    text = print_region(decode_stream(stream))
    assert encode_stream(parse_region(text)) == stream
    source, made = tmp_path / "region.txt", tmp_path / "stream.bin"
    source.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(app, ["assemble", str(source), "-o", str(made)])
    assert result.exit_code == 0, result.output
    assert made.read_bytes() == stream


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tilewright region 2", "tilewright region 1", "line 1: expected"),
        ("cores=108", 'cores="many"', "line 2"),
        ('op="coordinate"', 'op="ordinate"', "line .*ordinate"),
        ('task lines op="constant"', 'task liens op="constant"', "liens"),
        ("lines_count=3", "lines_count=4", "end of lines of expressions"),
        ("LOAD", "LAOD", "LAOD"),
        ("id=1", "id=7", "number 1 comes next"),
        ("buffer=1", "buffer=9", "buffer of scopes 9"),
    ],
)
def test_what_does_not_assemble_is_refused(
    stream: bytes, tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = print_region(decode_stream(stream))
    assert old in text
    source = tmp_path / "region.txt"
    source.write_text(text.replace(old, new, 1), encoding="utf-8")
    result = CliRunner().invoke(app, ["assemble", str(source), "-o", str(tmp_path / "s")])
    assert result.exit_code == 3, result.output
    assert "TW-RUN-001" in result.stderr
    assert re.search(message, result.stderr)
    assert not (tmp_path / "s").exists()

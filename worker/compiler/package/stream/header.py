"""`regions/stream.h`: the records of streams as C structures, and the page's tables of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from worker.compiler.package.stream.records import (
    DIRECTORY,
    ELEMENT_TYPES,
    FUNCTIONS,
    HEADER,
    NONE,
    REDUCTIONS,
    TABLES,
    Field,
    Op,
    Table,
)
from worker.compiler.package.stream.version import STREAM_VERSION

STREAM_HEADER_NAME = "stream.h"
_C_TYPE = {
    "u1": "uint8_t", "u2": "uint16_t", "u4": "uint32_t", "u8": "uint64_t", "i4": "int32_t",
    "i8": "int64_t", "f8": "double", "s": "uint32_t",
}  # fmt: skip


def stream_header() -> str:
    """C11 text; needs a little-endian machine.  Sizes are asserted where it is compiled."""
    lines = [
        f"/* Records of a region's stream (stream.bin), version {STREAM_VERSION}: FORMATS.md says"
        " what they mean.",
        " * Little endian; a loader of another byte order has to turn every field. */",
        "#ifndef TILEWRIGHT_STREAM_H", "#define TILEWRIGHT_STREAM_H", "",
        "#include <stdint.h>", "",
        f"#define TW_STREAM_VERSION {STREAM_VERSION}u", f"#define TW_STREAM_NONE 0x{NONE:X}u", "",
        *_enum("element_type", [str(dtype) for dtype in ELEMENT_TYPES]),
        *_enum("reduction", ["none", *map(str, REDUCTIONS)]),
        *_enum("table", [table.name for table in TABLES]),
        "enum tw_stream_op {",
        *(f"    TW_STREAM_OP_{op.name} = {int(op)}," for op in Op if op is not Op.APPLY),
        *(f"    TW_STREAM_OP_{str(fn).upper()} = {int(Op.APPLY) + k},"
          for k, fn in enumerate(FUNCTIONS)),
        "};", "",
        "#pragma pack(push, 1)",
    ]  # fmt: skip
    for table in (HEADER, DIRECTORY, *TABLES):
        if len(table.fields) > 1:
            lines += _struct(table)
    return "\n".join([*lines, "#pragma pack(pop)", "", "#endif", ""])


def _enum(name: str, words: list[str]) -> Iterator[str]:
    yield f"enum tw_stream_{name} {{"
    for k, word in enumerate(words):
        yield f"    TW_STREAM_{name.upper()}_{word.upper()} = {k},"
    yield "};"
    yield ""


def _struct(table: Table) -> Iterator[str]:
    name = f"tw_stream_{table.name}"
    yield "typedef struct {"
    for field in table.fields:
        count, kind = _parts(field)
        suffix = f"[{count}]" if count > 1 else ""
        note = f" /* {field.says.replace('`', '')} */" if field.says else ""
        yield f"    {_C_TYPE[kind]} {field.name}{suffix};{note}"
    yield f"}} {name};"
    yield f'_Static_assert(sizeof({name}) == {table.dtype.itemsize}, "{name}");'
    yield ""


def _parts(field: Field) -> tuple[int, str]:
    """(how many, type of one)"""
    if field.type == "sha256":
        return 32, "u1"
    if field.type == "s":
        return 1, "s"
    found = re.fullmatch(r"(\d*)([uif]\d)", field.type)
    assert found is not None, field
    return int(found[1] or 1), found[2]


def stream_tables() -> str:
    """The part of FORMATS.md that says what every record is, made from the same description."""
    lines: list[str] = []
    for table in (HEADER, DIRECTORY, *TABLES):
        number = f"{TABLES.index(table)}: " if table in TABLES else ""
        says = f": {table.says}" if table.says else ""
        lines += [f"**{number}`{table.name}`**, {table.dtype.itemsize} bytes{says}.", ""]
        if len(table.fields) == 1:
            kind = _shown(table.fields[0])
            lines += [f"Each one {kind}{f': {t}' if (t := table.fields[0].says) else ''}.", ""]
            continue
        offsets = table.dtype.fields
        assert offsets is not None
        lines += ["| at | type | field | |", "|---|---|---|---|"]
        for field in table.fields:
            at = offsets[field.name][1]
            lines.append(f"| {at} | {_shown(field)} | `{field.name}` | {field.says} |")
        lines.append("")
    return "\n".join(lines)


def stream_operations() -> str:
    """The part of FORMATS.md that numbers operations and types, from the same description."""
    ops = ", ".join(f"{int(op)} {op.name.lower()}" for op in Op if op is not Op.APPLY)
    functions = " ".join(f"{int(Op.APPLY) + k} {fn}" for k, fn in enumerate(FUNCTIONS))
    return f"Operations: {ops}. Functions: {functions}.\n"


def _shown(field: Field) -> str:
    count, kind = _parts(field)
    word = "str" if kind == "s" else f"{kind[0]}{8 * int(kind[1])}"
    return f"{count} x {word}" if count > 1 else word

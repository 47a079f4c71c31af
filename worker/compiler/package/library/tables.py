"""`tw_tables.c`: the tables of one library as C text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from worker.compiler.ir.dtype import DType
from worker.compiler.package.library.parts import LibraryModel, LibraryPart, LibraryValue

ONNX_TYPE = {
    DType.F32: 1, DType.U8: 2, DType.I8: 3, DType.U16: 4, DType.I16: 5, DType.I32: 6, DType.I64: 7,
    DType.BOOL: 9, DType.F16: 10, DType.F64: 11, DType.U32: 12, DType.U64: 13, DType.BF16: 16,
    DType.F8E4M3FN: 17, DType.F8E4M3FNUZ: 18, DType.F8E5M2: 19, DType.F8E5M2FNUZ: 20,
    DType.I4: 3, DType.I2: 3, DType.U4: 2, DType.U2: 2, DType.F4E2M1: 2,
}  # fmt: skip
"""ONNX's number of the type in which a value is stored."""
_PLAIN = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _.,:;=+-<>()[]|%#@/'*&^~!{}"
)


def tables_text(library: LibraryModel, weights_sha256: str) -> str:
    """C11 text of `tw_library_tables`.  Same library, same text."""
    lines = ['#include "tw_library.h"', '#include "tw_features.h"', ""]
    lines += [
        f"int {code.function}(tw_machine *m, unsigned char *const *entry);"
        for code in library.regions
    ]
    lines += ["extern const unsigned char tw_weights[];", ""]
    lines += _table("tw_tensor_row", "tensors", map(_tensor, *_columns(library)))
    for k, entries in enumerate(library.entries):
        lines += _table("int32_t", f"entries{k}", map(str, entries))
    lines += _table(
        "tw_region_row", "regions",
        (
            f"{{{code.function}, {len(code.entries)}, entries{k}}}"
            for k, code in enumerate(library.regions)
        ),
    )  # fmt: skip
    for k, part in enumerate(library.parts):
        lines += _values(part, k)
    lines += _table(
        "tw_part_row", "parts", (_part(part, k) for k, part in enumerate(library.parts))
    )
    levels, plans = library.levels, library.plans
    lines += _table("int64_t", "level_bytes", (str(p.arena_bytes) for p in plans))
    lines += _table("int64_t", "capacity_bytes", (str(v.capacity_bytes) for v in levels))
    lines += _table("int64_t", "instances", (str(v.instances) for v in levels))
    lines += _table("int64_t", "strides", (str(p.stride_bytes) for p in plans))
    most = max(map(len, library.entries), default=0)
    lines += [
        "const tw_tables tw_library_tables = {",
        f"    {c_string(library.name)}, {c_string(library.digest)},",
        f"    {len(library.tensors)}, {len(library.regions)}, {most}, {len(levels)},",
        f"    tensors, regions, parts, {_home(library)[1]},",
        "    level_bytes, capacity_bytes, instances, strides,",
        f"    tw_weights, {library.weight_bytes}, {c_string(weights_sha256)}, TW_FEATURES,",
        "};",
        "",
    ]
    return "\n".join(lines)


def c_string(text: str) -> str:
    """A C string literal of a text in UTF-8; whatever is not plain is an octal escape."""
    kept = (chr(b) if chr(b) in _PLAIN else f"\\{b:03o}" for b in text.encode())
    return f'"{"".join(kept)}"'


def _columns(library: LibraryModel) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """(address in a session's home arena, offset in the weights, root) of every tensor."""
    start, _ = _home(library)
    numbers = range(len(library.tensors))
    home = [max(library.tensors[k].address - start, 0) for k in numbers]
    held = [library.tensors[k].address if k in library.constants else -1 for k in numbers]
    return home, held, library.roots


def _home(library: LibraryModel) -> tuple[int, int]:
    """(first address, bytes) of what a session keeps in its home arena."""
    own = [t for k, t in enumerate(library.tensors) if library.roots[k] not in library.constants
           and k not in library.constants]  # fmt: skip
    start = min((t.address for t in own), default=0)
    return start, max((t.address + t.size_bytes for t in own), default=0) - start


def _tensor(address: int, constant: int, root: int) -> str:
    return f"{{{address}, {constant}, {root}}}"


def _values(part: LibraryPart, number: int) -> list[str]:
    values = (*part.inputs, *part.outputs)
    lines: list[str] = []
    for k, value in enumerate(values):
        if value.shape:
            lines += _table("int64_t", f"shape{number}_{k}", map(str, value.shape))
    rows = (
        _value(value, f"shape{number}_{k}" if value.shape else "0")
        for k, value in enumerate(values)
    )
    return lines + _table("tw_value_row", f"values{number}", rows)


def _value(value: LibraryValue, shape: str) -> str:
    width = value.dtype.size_bytes
    count = 1
    for extent in value.shape:
        count *= extent
    tensor = -1 if value.tensor is None else value.tensor
    return (
        f"{{{{{c_string(value.name)}, {ONNX_TYPE[value.dtype]}, {len(value.shape)}, {shape},"
        f" {count * width}, {width}}}, {tensor}, {int(value.is_direct)}}}"
    )


def _part(part: LibraryPart, number: int) -> str:
    refusal = "0" if part.refusal is None else c_string(part.refusal)
    return (
        f"{{{refusal}, {part.regions.start}, {len(part.regions)}, {len(part.inputs)},"
        f" {len(part.outputs)}, values{number}}}"
    )


def _table(kind: str, name: str, rows: Iterable[str]) -> list[str]:
    """A static table; C wants one row at least, which nothing reads where there is none."""
    found = [f"    {row}," for row in rows] or ["    {0}," if kind.startswith("tw_") else "    0,"]
    return [f"static const {kind} {name}[] = {{", *found, "};"]

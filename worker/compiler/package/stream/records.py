"""The tables of a stream: the one description that bytes, C header, text and FORMATS.md follow.

A stream is a header, a directory with one row per table, and the tables: arrays of records of one
size.  Fields lie one after another, little endian, each at a multiple of its own size (those of
`instructions`, `loops` and `strides` without gaps, as in `program.bin`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce
from worker.compiler.ir.scalar import Fn
from worker.compiler.isa.loops import LOOP, STRIDE
from worker.compiler.isa.program import INSTRUCTION, Opcode
from worker.compiler.package.stream.version import STREAM_VERSION

MAGIC = b"TWSTREAM"
CHECKED_FROM = 16
"""The checksum covers everything from this byte on."""
NONE = 0xFFFFFFFF
"""In a field of ids: none."""

ELEMENT_TYPES = tuple(DType)
FUNCTIONS = tuple(Fn)
REDUCTIONS = tuple(Reduce)


class Op(IntEnum):
    """What a line of an expression is.  `a`, `b`, `c` are earlier lines, counted from its own
    expression's first."""

    CONSTANT = 0
    """i64 `value`."""
    COUNTER = 1
    """i64: counter of frame number `value` of the leaf."""
    COORDINATE = 2
    """i64: coordinate along axis number `value` of the domain."""
    LOOKUP = 3
    """i64: what read number `value` yields at this point."""
    SCALE = 4
    """i64: a * value."""
    SUM = 5
    """i64: a + b."""
    QUOTIENT = 6
    """i64: floor(a / value)."""
    REST = 7
    """i64: a - value * floor(a / value)."""
    READ = 8
    """What read number `value` yields, as `type`."""
    LITERAL = 9
    """`value`: an integer, of a float the bits of its f64."""
    INDEX = 10
    """i64: expression number `value` of the unit."""
    CAST = 11
    """a as `type`."""
    SELECT = 12
    """b where a, else c."""
    APPLY = 16
    """16 + number of the function: of a, or of a and b."""


class LeafKind(IntEnum):
    MOVE = 0
    COMPUTE = 1


class FrameKind(IntEnum):
    TIME = 0
    CORES = 1
    INSIDE = 2


class Fill(IntEnum):
    """What a read outside of its tensor yields."""

    NONE = 0
    """It is never outside."""
    VALUE = 1
    """`fill`; memory is not read."""
    MEMORY = 2
    """What stands there: a move has written its fill."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record."""

    name: str
    type: str
    """numpy's, without byte order; with a count in front, several; `s`: a string's number."""
    says: str


@dataclass(frozen=True, slots=True)
class Table:
    """Records of one kind."""

    name: str
    says: str
    fields: tuple[Field, ...]
    dtype: np.dtype[np.void]


def _dtype(fields: tuple[Field, ...]) -> np.dtype[np.void]:
    return np.dtype([(f.name, _numpy(f.type)) for f in fields])


def _numpy(kind: str) -> npt.DTypeLike:
    if kind == "s":
        return "<u4"
    if kind == "sha256":
        return "u1", (32,)
    return kind if kind.endswith("1") else f"<{kind}"


def _table(name: str, says: str, *fields: tuple[str, str, str]) -> Table:
    made = tuple(Field(*each) for each in fields)
    return Table(name, says, made, _dtype(made))


def _of_program(name: str, says: str, dtype: np.dtype[np.void], words: dict[str, str]) -> Table:
    """A table of `program.bin`, as it lies there."""
    fields = []
    for field in dtype.names or ():
        base = dtype[field].base
        count = dtype[field].shape
        kind = (f"{count[0]}" if count else "") + base.str.lstrip("<|")
        fields.append(Field(field, kind, words[field]))
    return Table(name, says, tuple(fields), dtype)


def _list(name: str, of: str) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
    return (
        (f"{name}_first", "u4", f"{of}: the first"),
        (f"{name}_count", "u4", "how many"),
    )


_STEPS = {
    "stream": "stream", "resource": "ports", "src_offset": "source offset in bytes",
    "dst_offset": "destination offset in bytes", "iteration": "iteration",
}  # fmt: skip

TABLES = (
    _table("text", "UTF-8 of all strings", ("byte", "u1", "")),
    _table(
        "strings", "strings, in order",
        ("bytes", "u4", "length; its text follows that of the string before"),
    ),
    _table("numbers", "lists of integers", ("value", "i8", "")),
    _table(
        "levels", "memories; number 0 is home",
        ("name", "s", ""),
        ("instances", "u4", "instance of core c: c * instances / cores, rounded down"),
        ("capacity_bytes", "i8", "of one instance"),
    ),
    _table(
        "entries", "tensors in the home memory",
        ("name", "s", "of a constant: its tensor in weights.safetensors"),
        ("type", "u1", "element type"),
        ("role", "u1", "0 input, 1 constant, 2 intermediate, 3 output"),
        ("zero", "u2", "0"),
        *_list("shape", "extents, in `numbers`"),
        ("alias", "u4", "entry whose storage it shares, NONE for none"),
        ("zero2", "u4", "0"),
        ("address", "u8", "in the program's home arena"),
        ("size_bytes", "u8", ""),
        ("sha256", "sha256", "of a constant's bytes, else zeros"),
    ),
    _table(
        "calls", "launches, in order",
        ("unit", "u4", ""),
        ("op_type", "s", "ONNX operator it mainly serves"),
        *_list("entries", "entries, parallel to the unit's operands, in `numbers`"),
        *_list("nodes", "names of ONNX nodes, as strings in `numbers`"),
        ("launch_cycles", "u8", ""),
    ),
    _table(
        "units", "kernels; their rows follow one another in the tables below",
        ("kernel", "s", "name of the C function"),
        ("signature", "s", ""),
        ("operands", "u4", "rows in `operands`"),
        ("buffers", "u4", "rows in `buffers`"),
        ("streams", "u4", "rows in `streams`"),
        ("resources", "u4", "rows in `resources`"),
        ("leaves", "u4", "rows in `leaves`"),
        ("frames", "u4", "rows in `frames`"),
        ("spans", "u4", "rows in `spans`"),
        ("scopes", "u4", "rows in `scopes`"),
        ("dims", "u4", "rows in `dims`"),
        ("accesses", "u4", "rows in `accesses`"),
        ("expressions", "u4", "rows in `expressions`"),
        ("lines", "u4", "rows in `lines`"),
        ("groups", "u4", "rows in `groups`"),
        ("instructions", "u4", "rows in `instructions`; one more in the offsets"),
        ("waits", "u4", "rows in `wait_tokens`"),
        ("signals", "u4", "rows in `signal_tokens`"),
        ("loops", "u4", "rows in `loops`"),
        ("depth", "u4", "of the deepest nesting"),
        ("tokens", "u4", "tokens are below"),
    ),
    _table(
        "operands", "whole tensors that a call binds to entries",
        ("tensor", "s", ""),
        ("role", "u1", "0 input, 1 constant, 2 output, 3 scratch"),
        ("type", "u1", "element type"),
        ("zero", "u2", "0"),
        *_list("shape", "extents, in `numbers`"),
        ("size_bytes", "u8", ""),
    ),
    _table(
        "buffers", "places in the machine's memories",
        ("tensor", "s", ""),
        ("path", "s", "in the schedule tree"),
        ("level", "u4", "row of `levels`"),
        ("type", "u1", "element type"),
        ("zero", "3u1", "0"),
        *_list("extents", "of the tile, row-major, in `numbers`"),
        ("address", "i8", "in every instance"),
        ("slot_bytes", "i8", "of one copy; copies are adjacent"),
        ("copies", "u4", ""),
        ("blocks", "u4", "private blocks per instance"),
        ("block_stride", "u4", "cores between neighbouring blocks"),
        ("first_core", "u4", "within its instance, of block 0"),
    ),
    _table(
        "streams", "in-order queues",
        ("core", "u4", ""),
        ("engine", "s", ""),
    ),
    _table(
        "resources", "ports",
        ("level", "s", "memory or link"),
        ("instance", "u4", ""),
        ("direction", "s", "`read`, `write` or `link`"),
        ("half_duplex", "u1", "1: one port for both directions"),
        ("counted", "u1", "what passes: 0 bytes, 1 drawn, 2 returned"),
        ("zero", "u2", "0"),
        ("bytes_per_cycle", "f8", ""),
        ("sharers", "u4", "transfers that bring in the same bytes together"),
        ("count", "u4", "ports it stands for, `step` instances apart"),
        ("step", "u4", ""),
        ("zero2", "u4", "0"),
    ),
    _table(
        "leaves", "what an instruction carries out one iteration of; its `node` is the number here",
        ("path", "s", "in the schedule tree"),
        ("kind", "u1", "0 move, 1 compute"),
        ("reduce", "u1", "0 none, else 1 + number of the reduction"),
        ("order", "u1", "of a reduction: 0 sequence, 1 lanes, 2 product"),
        ("zero", "u1", "0"),
        *_list("frames", "loops around it, outermost first, in `frames`"),
        *_list("box", "of a move's tensor, of a compute's domain, in `spans`"),
        *_list("accesses", "reads, then the write, in `accesses`"),
        ("body", "u4", "of a compute: expression of one point; NONE: a move"),
        ("width", "u4", "of the order"),
        *_list("groups", "reduced axes, in `groups`"),
        ("run", "u4", "of lanes"),
        ("around", "u4", "of lanes"),
        ("core", "u4", "of the iteration whose counters are all 0"),
        ("zero2", "u4", "0"),
        ("work", "u8", "what a point counts in `macs`"),
    ),
    _table(
        "frames", "loops around a leaf",
        ("trip", "u8", ""),
        ("weight", "u8", "a step's part of `iteration`"),
        ("kind", "u4", "0 in time, 1 over cores, 2 inside the instruction"),
        ("stride", "u4", "cores that a step goes on by"),
    ),
    _table(
        "spans", "half-open ranges: start, start + extent, cut to 0, limit",
        ("start", "u4", "expression"),
        ("axis", "u1", "of a domain: 0 parallel, 1 reduce, 2 scan"),
        ("zero", "3u1", "0"),
        ("extent", "u8", ""),
        ("limit", "u8", ""),
    ),
    _table(
        "groups", "axes that a reduction goes through as one",
        ("axis", "u4", "number in the domain"),
        ("group", "u4", "axes of one group follow one another, the outermost first"),
    ),
    _table(
        "scopes", "values in buffers: entry after entry, each in the slot it is given",
        ("buffer", "u4", ""),
        ("identity", "u1", "1: an entry begins as `value`, else undefined"),
        ("zero", "3u1", "0"),
        ("value", "i8", "an integer, of a float the bits of its f64"),
        ("entry", "u4", "expression: which entry is open"),
        ("slot", "u4", "expression: block * copies + copy"),
        ("core", "u4", "expression: core whose instance it is in"),
        *_list("dims", "of the tile, in `dims`: coordinates of its first element"),
        ("zero2", "u4", "0"),
    ),
    _table(
        "dims", "dimensions",
        ("index", "u4", "expression, NONE: none"),
        ("zero", "u4", "0"),
        ("extent", "u8", ""),
    ),
    _table(
        "accesses", "where a leaf finds an operand",
        ("scope", "u4", "NONE: at home"),
        ("operand", "u4", "of the unit, where it is at home, else NONE"),
        ("type", "u1", "element type of the tensor"),
        ("staged", "u1", "1: transfers of its own bring it, or take it away"),
        ("outside", "u1", "of a read outside of the tensor: 0 never, 1 `fill`, 2 memory"),
        ("zero", "u1", "0"),
        *_list("dims", "of the tensor, in `dims`: where an element is; of a move no expressions"),
        ("zero2", "u4", "0"),
        ("fill", "i8", "an integer, of a float the bits of its f64; of a move's write as well"),
    ),
    _table("expressions", "each the value of its last line", *_list("lines", "in `lines`")),
    _table(
        "lines", "single assignments",
        ("op", "u1", "see below"),
        ("type", "u1", "element type of the result"),
        ("zero", "u2", "0"),
        ("a", "u4", "line"),
        ("b", "u4", "line"),
        ("c", "u4", "line"),
        ("value", "i8", ""),
    ),
    _of_program(
        "instructions", "in an order in which every wait is for what stands above", INSTRUCTION,
        {
            "opcode": ", ".join(f"{int(o)} {o.name}" for o in Opcode),
            "stream": "row of the unit's streams",
            "node": "leaf",
            "op": "operator of the unit, -1 for transfers",
            "bytes": "payload of a transfer",
            "macs": "multiply-accumulates or elementary operations",
            "cycles": "engine cycles: of a COMPUTE all, of a transfer the least",
            "drawn": "bytes that a COMPUTE's engine draws from its own memory; of a transfer what"
            " passes ports of home that count it",
            "returned": "bytes that it returns there; of a transfer what passes those of caches",
            "inside": "bytes that the lines of a COMPUTE's array carry: what crosses its edge, and"
            " what its cells take",
            "starved": "of a COMPUTE's cycles, those that only the ports of its own memory cost",
            "latency": "in cycles",
            "resource": "ports occupied, -1 unused",
            "src": "source buffer, -1: an operand in the home memory, or staged",
            "dst": "destination buffer, likewise",
            "src_offset": "source offset in bytes",
            "dst_offset": "destination offset in bytes",
            "iteration": "sum of counter * weight over the leaf's frames",
            "operand": "of a leaf that computes: the access that a transfer carries; else -1",
        },
    ),
    _table("wait_offsets", "waits of instruction i: from offset i up to i + 1", ("at", "i4", "")),
    _table("wait_tokens", "", ("token", "i4", "")),
    _table("signal_offsets", "likewise", ("at", "i4", "")),
    _table("signal_tokens", "", ("token", "i4", "")),
    _of_program(
        "loops", "rows that run several times, by where they begin, outer ones first", LOOP,
        {"first": "row", "end": "row behind the last", "trip": "times"},
    ),
    _of_program(
        "strides", "depth rows per instruction: what an iteration of each loop adds", STRIDE, _STEPS
    ),
    _table("wait_strides", "depth rows per wait", ("step", "i4", "")),
    _table("signal_strides", "depth rows per signal", ("step", "i4", "")),
)  # fmt: skip

HEADER = _table(
    "header", "",
    ("magic", "8u1", "`TWSTREAM`"),
    ("version", "u4", f"{STREAM_VERSION}"),
    ("checksum", "u4", "CRC-32 (zlib's) of all bytes from 16 to the end"),
    ("size_bytes", "u8", "of the whole stream"),
    ("region", "u4", "number of the region in its program"),
    ("target", "s", ""),
    ("function", "s", "name of the C function"),
    ("cores", "u4", "of the machine"),
    ("tables", "u4", "rows of the directory, which follows"),
    ("zero", "u4", "0"),
)  # fmt: skip
DIRECTORY = _table(
    "directory", "",
    ("table", "u4", "number of the table; all are there, in order"),
    ("record_bytes", "u4", ""),
    ("offset", "u8", "from the beginning of the stream; a multiple of 8"),
    ("count", "u8", "records"),
    ("sha256", "sha256", "of the table's bytes"),
)  # fmt: skip
TABLE_OF = {table.name: table for table in TABLES}
NUMBER_OF = {table.name: k for k, table in enumerate(TABLES)}
OF_UNIT = (
    "operands", "buffers", "streams", "resources", "leaves", "frames", "spans", "scopes",
    "dims", "accesses", "expressions", "lines", "groups", "instructions",
)  # fmt: skip
"""Tables whose rows a row of `units` counts under their own name."""
TASKS = (
    "leaves", "frames", "spans", "groups", "scopes", "dims", "accesses", "expressions", "lines",
)  # fmt: skip
"""Tables that say what leaves do."""

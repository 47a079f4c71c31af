"""From a region in ONNX's quantised form to the NPU's instructions.

Every QuantizeLinear ends a cluster: DequantizeLinear, a core, perhaps an activation.  A cluster is
one instruction; what is no such cluster is refused with its node.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vendor_npu.tables import FUNCTIONS, Function, table, with_constant
from worker.compiler.package.region_graph import Entry, Node
from worker.compiler.package.serializers import Region, Unserializable

IN, OUT, CONV, POOL, ADD, MEAN, FLAT, MUL, TABLE = range(1, 10)
_BACK = 2
"""In place of groups: FLAT goes from a row to channels behind each other."""
_SAME = 2.0**-21
"""Relative difference up to which a bias's scale is input's times weights', rounded to f32."""


@dataclass(slots=True)
class _Image:
    constants: bytearray = field(default_factory=bytearray)
    ports: list[tuple[str, int, bool]] = field(default_factory=list)
    top: int = 0
    """Of the tensors, counted from the end of the constants."""

    def constant(self, data: bytes) -> int:
        self.constants += b"\0" * (-len(self.constants) % 8)
        at = len(self.constants)
        self.constants += data
        return at

    def tensor(self, size: int) -> int:
        at = self.top
        self.top += -(-size // 64) * 64
        return at


@dataclass(frozen=True, slots=True)
class _Held:
    """A tensor in the NPU's memory."""

    at: int
    h: int
    w: int
    c: int
    is_last: bool = True
    """Channels come last, as the array and the pools take them; else as the outside has them."""
    is_both: bool = False
    """These are the same: one channel, one place, or tokens of channels."""

    @property
    def row(self) -> _Held:
        """The same bytes, whatever their order."""
        return _Held(self.at, 1, 1, self.h * self.w * self.c)


def encode(region: Region) -> bytes:
    """Bytes of the region's image.

    Raises:
        Unserializable: a node that the NPU has no instruction for.
    """
    return _Encoder(region).run()


class _Encoder:
    def __init__(self, region: Region) -> None:
        self._graph = region.graph
        self._value = region.value
        self._made_by = {
            out: node for node in region.graph.nodes for out in node.outputs if out is not None
        }
        self._image = _Image()
        self._held: dict[int, _Held] = {}
        self._turned: dict[int, _Held] = {}
        """The same in the other order."""
        self._later: list[tuple[int, dict[str, int]]] = []

    def run(self) -> bytes:
        graph, image = self._graph, self._image
        names = "\0".join(graph.entries[k].name for k in (*graph.inputs, *graph.outputs)) + "\0"
        image.constant(names.encode())
        for k in graph.inputs:
            entry = graph.entries[k]
            self._held[k] = held = replace(self._new(entry), is_last=False)
            self._step(IN, held.row, held.row, src=self._port(entry, False), dst=held.at)
        for node in graph.nodes:
            if node.op_type == "QuantizeLinear":
                self._cluster(node)
        for k in graph.outputs:
            if k not in self._held:
                raise Unserializable(f"{graph.entries[k].name} is no integer of the region's")
            held = self._ordered(k, is_last=False)
            port = self._port(graph.entries[k], True)
            self._step(OUT, held.row, held.row, src=held.at, dst=port)
        return self._packed(len(names.encode()))

    def _packed(self, name_bytes: int) -> bytes:
        image = self._image
        image.constants += b"\0" * (-len(image.constants) % 64)
        base = len(image.constants)
        head = struct.pack(
            "<4s7i", b"VNPU", 1, len(self._later), len(image.ports), base, base + image.top,
            name_bytes, 0,
        )  # fmt: skip
        ports = b"".join(struct.pack("<2i", size, is_out) for _, size, is_out in image.ports)
        steps = b"".join(_packed_step(op, words, base) for op, words in self._later)
        return head + ports + steps + bytes(image.constants)

    def _port(self, entry: Entry, is_out: bool) -> int:
        self._image.ports.append((entry.name, math.prod(entry.shape), is_out))
        return len(self._image.ports) - 1

    def _new(self, entry: Entry) -> _Held:
        if entry.dtype != "i8" or not entry.shape or entry.shape[0] != 1:
            raise Unserializable(
                f"{entry.name} is {entry.dtype}{list(entry.shape)}, not i8[1, ...]"
            )
        if len(entry.shape) not in (2, 3, 4):
            raise Unserializable(f"{entry.name} has rank {len(entry.shape)}, not 2 to 4")
        if len(entry.shape) == 3:
            _, w, c = entry.shape
            return _Held(self._image.tensor(c * w), 1, w, c, is_both=True)
        _, c, h, w = (*entry.shape, 1, 1)[:4]
        return _Held(self._image.tensor(c * h * w), h, w, c, is_both=c == 1 or h * w == 1)

    def _ordered(self, k: int, *, is_last: bool) -> _Held:
        """A tensor in the order asked for: as it is, or turned once."""
        held = self._held[k]
        if held.is_both or held.is_last == is_last:
            return held
        if k not in self._turned:
            at = self._image.tensor(held.h * held.w * held.c)
            self._turned[k] = turned = replace(held, at=at, is_last=is_last)
            ends = (turned, turned) if is_last else (turned, turned.row)
            groups = _BACK if is_last else 1
            self._step(FLAT, *ends, src=held.at, dst=at, groups=groups)
        return self._turned[k]

    def _step(self, op: int, source: _Held, target: _Held, **words: int) -> None:
        sizes = {
            "h": source.h, "w": source.w, "c": source.c, "oh": target.h, "ow": target.w,
            "k": target.c,
        }  # fmt: skip
        self._later.append((op, {**sizes, **words}))

    def _entry(self, k: int | None) -> Entry:
        assert k is not None
        return self._graph.entries[k]

    def _source(self, node: Node, number: int) -> tuple[int, Entry]:
        """The integer behind a float operand: its id and entry."""
        made = self._made_by.get(node.inputs[number] or 0)
        if node.inputs[number] is None or made is None or made.op_type != "DequantizeLinear":
            raise Unserializable(f"operand {number} is not dequantised", node.name)
        k = made.inputs[0]
        assert k is not None
        return k, self._entry(k)

    def _data(self, node: Node, number: int, *, is_last: bool | None = True) -> tuple[_Held, Entry]:
        """An operand in the order asked for; None: in its own."""
        k, entry = self._source(node, number)
        if k not in self._held:
            raise Unserializable(f"operand {number} is not in the NPU's memory", node.name)
        held = self._held[k] if is_last is None else self._ordered(k, is_last=is_last)
        return held, entry

    def _cluster(self, last: Node) -> None:
        out = last.outputs[0]
        assert out is not None
        entry = self._entry(out)
        scale, zero = _pair(entry, last)
        low, high = -128, 127
        core = self._core(last)
        if core.op_type in ("Relu", "Clip"):
            floor, ceiling = self._limits(core)
            low = max(low, _steps(floor, scale, zero))
            high = min(high, _steps(ceiling, scale, zero))
            core = self._core(core)
        target = self._new(entry)
        self._held[out] = target
        ends = {"zout": zero, "lo": low, "hi": high, "dst": target.at}
        match core.op_type:
            case "Conv" | "Gemm" | "MatMul":
                self._contract(core, target, scale, ends)
            case "Add" | "Mul":
                is_last = self._pairwise(core, target, (scale, zero), ends)
                self._held[out] = replace(target, is_last=is_last)
            case "Concat":
                self._concat(core, target, (scale, zero), ends)
            case op_type if op_type in FUNCTIONS:
                source, x = self._data(core, 0, is_last=None)
                self._held[out] = replace(target, is_last=source.is_last)
                function = FUNCTIONS[op_type]
                self._table(core, function, source, x, target, (scale, zero), ends)
            case "MaxPool":
                source, x = self._data(core, 0)
                self._require_same(x, entry, core, low == -128 and high == 127)
                words = self._window(core, source, target)
                self._step(POOL, source, target, src=source.at, **words, **ends)
            case "GlobalAveragePool":
                source, x = self._data(core, 0)
                x_scale, x_zero = _pair(x, core)
                factor = np.float64(x_scale) / (source.h * source.w) / np.float64(scale)
                at = self._factors(np.array([factor]), core)
                self._step(MEAN, source, target, src=source.at, factor=at, zin=x_zero, **ends)
            case "Flatten" | "Reshape":
                source, x = self._data(core, 0, is_last=False)
                self._require_same(x, entry, core, True)
                self._held[out] = replace(target, at=source.at, is_last=False)
            case _:
                raise Unserializable(f"there is no instruction for {core.op_type}", core.name)

    def _core(self, node: Node) -> Node:
        made = self._made_by.get(node.inputs[0] if node.inputs[0] is not None else -1)
        if made is None:
            raise Unserializable("it quantises what comes from outside", node.name)
        return made

    def _limits(self, node: Node) -> tuple[float, float]:
        if node.op_type == "Relu":
            return 0.0, math.inf
        found = [-math.inf, math.inf]
        for k, number in enumerate(node.inputs[1:3]):
            if number is None:
                continue
            stored = self._entry(number).stored
            if stored is None:
                raise Unserializable("limits that are no constants", node.name)
            found[k] = float(self._value(stored))
        return found[0], found[1]

    def _require_same(self, x: Entry, y: Entry, node: Node, is_plain: bool) -> None:
        if _pair(x, node) != _pair(y, node) or not is_plain:
            raise Unserializable(f"{node.op_type} that changes its quantisation", node.name)

    def _window(
        self, node: Node, source: _Held, target: _Held, usual: tuple[int, ...] = (1, 1)
    ) -> dict[str, int]:
        """Extents, strides, pads and dilations; `usual`: the kernel's where it is not said."""
        told: dict[str, Any] = {a.name: a.value for a in node.attributes}
        shape = told.get("kernel_shape", usual)
        pads, strides = told.get("pads", (0, 0, 0, 0)), told.get("strides", (1, 1))
        dilations = told.get("dilations", (1, 1))
        rule = told.get("auto_pad", "NOTSET")
        if rule.startswith("SAME"):
            reach = [(e - 1) * d + 1 for e, d in zip(shape, dilations, strict=True)]
            moved = [(o - 1) * s for o, s in zip((target.h, target.w), strides, strict=True)]
            short = [
                max(0, m + r - have)
                for m, r, have in zip(moved, reach, (source.h, source.w), strict=True)
            ]
            pads = tuple((s + (rule == "SAME_LOWER")) // 2 for s in short)
        words = {
            "kh": shape[0], "kw": shape[1], "sh": strides[0], "sw": strides[1], "pt": pads[0],
            "pl": pads[1], "dh": dilations[0], "dw": dilations[1],
        }  # fmt: skip
        if max(words.values()) > 255:
            raise Unserializable("a window beyond 255", node.name)
        return words

    def _factors(self, values: Any, node: Node) -> int:
        """Mantissas of 24 bits and shifts: the f32 nearest to each factor, whole."""
        rows = []
        for value in values.astype(np.float32).tolist():
            mantissa, exponent = math.frexp(value)
            if not (0.0 < value < 2.0**30 and exponent > -100):
                raise Unserializable(f"a factor of {value}", node.name)
            rows.append(struct.pack("<2i", int(mantissa * (1 << 24)), 24 - exponent))
        return self._image.constant(b"".join(rows))

    def _contract(self, node: Node, target: _Held, scale: float, ends: dict[str, int]) -> None:
        source, x = self._data(node, 0)
        _, w = self._source(node, 1)
        told = {a.name: a.value for a in node.attributes}
        held = w.quantization
        if w.stored is None or held is None or any(held.zero_point_values or ()):
            raise Unserializable("weights that are no constants, or have a zero point", node.name)
        weights = np.asarray(self._value(w.stored))
        words, groups = {"kh": 1, "kw": 1, "sh": 1, "sw": 1, "dh": 1, "dw": 1}, 1
        if node.op_type == "Gemm":
            if told.get("transA", 0) or (told.get("alpha", 1.0), told.get("beta", 1.0)) != (1, 1):
                raise Unserializable("a Gemm that is scaled or turned", node.name)
            weights = weights if told.get("transB", 0) else weights.T
        elif node.op_type == "MatMul":
            if weights.ndim != 2:
                raise Unserializable("a MatMul by more than a matrix", node.name)
            weights = weights.T
        else:
            words = self._window(node, source, target, weights.shape[2:])
            groups = int(told.get("group", 1))
            weights = weights.transpose(0, 2, 3, 1)
        x_scale, x_zero = _pair(x, node)
        scales = np.asarray(held.scale_values, np.float64) * np.float64(x_scale)
        bias = np.zeros(target.c, np.int32)
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            _, b = self._source(node, 2)
            grid = None if b.quantization is None else b.quantization.scale_values
            near = grid is not None and np.allclose(grid, scales, rtol=_SAME, atol=0)
            if b.stored is None or not near:
                raise Unserializable("a bias off the grid of its sum", node.name)
            bias = np.broadcast_to(np.asarray(self._value(b.stored)).reshape(-1), target.c)
        factors = np.broadcast_to(scales / np.float64(scale), target.c)
        self._step(
            CONV, source, target, src=source.at,
            src2=self._image.constant(np.ascontiguousarray(weights, np.int8).tobytes()),
            bias=self._image.constant(bias.astype("<i4").tobytes()),
            factor=self._factors(factors, node), zin=x_zero, groups=groups, **words, **ends,
        )  # fmt: skip

    def _table(
        self, node: Node, function: Function, source: _Held, x: Entry, target: _Held,
        given: tuple[float, int], ends: dict[str, int],
    ) -> None:  # fmt: skip
        told = {a.name: a.value for a in node.attributes}
        entries = table(function, told, _pair(x, node), given, ends["lo"], ends["hi"])
        at = self._image.constant(entries)
        self._step(TABLE, source, target, src=source.at, factor=at, **ends)

    def _concat(
        self, node: Node, target: _Held, given: tuple[float, int], ends: dict[str, int]
    ) -> None:
        """Channels beside channels, each input by a table of its own."""
        if {a.name: a.value for a in node.attributes}.get("axis") not in (1, -3):
            raise Unserializable("a Concat of anything but channels", node.name)
        channel = 0
        for number in range(len(node.inputs)):
            source, x = self._data(node, number)
            place = {**ends, "dst": target.at + channel}
            self._table(node, FUNCTIONS["Concat"], source, x, target, given, place)
            channel += source.c

    def _by_constant(
        self, node: Node, target: _Held, given: tuple[float, int], ends: dict[str, int]
    ) -> _Held | None:
        """The other operand, where one is a number: then a table does it."""
        for number in (0, 1):
            _, entry = self._source(node, number)
            if entry.stored is None or math.prod(entry.shape) != 1:
                continue
            scale, zero = _pair(entry, node)
            steps = int(np.asarray(self._value(entry.stored)).reshape(())) - zero
            function = with_constant(node.op_type, float(np.float32(steps) * np.float32(scale)))
            source, x = self._data(node, 1 - number, is_last=None)
            self._table(node, function, source, x, target, given, ends)
            return source
        return None

    def _pairwise(
        self, node: Node, target: _Held, given: tuple[float, int], ends: dict[str, int]
    ) -> bool:
        """Whether channels of the result come last: where both operands have an order, it has."""
        alone = self._by_constant(node, target, given, ends)
        if alone is not None:
            return alone.is_last
        scale, _ = given
        (left, a), (right, b) = (self._data(node, k, is_last=None) for k in (0, 1))
        if left.is_last != right.is_last:
            (left, a), (right, b) = self._data(node, 0), self._data(node, 1)
        if (left.h, left.w, left.c) != (right.h, right.w, right.c):
            raise Unserializable(f"{node.op_type} that broadcasts", node.name)
        (a_scale, a_zero), (b_scale, b_zero) = _pair(a, node), _pair(b, node)
        scales = self._image.constant(struct.pack("<3fb3x", a_scale, b_scale, scale, b_zero))
        self._step(
            ADD if node.op_type == "Add" else MUL, left, target, src=left.at, src2=right.at,
            factor=scales, zin=a_zero, **ends,
        )  # fmt: skip
        return left.is_last


def _pair(entry: Entry, node: Node) -> tuple[float, int]:
    """Scale and zero point of a whole tensor."""
    held = entry.quantization
    if held is None or held.scale_values is None or len(held.scale_values) != 1:
        raise Unserializable(f"{entry.name} has no single constant scale", node.name)
    zeros = held.zero_point_values or (0,)
    return held.scale_values[0], zeros[0]


def _steps(value: float, scale: float, zero: int) -> int:
    if math.isinf(value):
        return 127 if value > 0 else -128
    return int(np.clip(np.rint(value / scale) + zero, -128, 127))


_PLACES = ("src", "src2", "bias", "factor", "dst", "h", "w", "c", "oh", "ow", "k")
_TENSORS = {IN: ("dst",), OUT: ("src",), ADD: ("src", "src2", "dst"), MUL: ("src", "src2", "dst")}


def _packed_step(op: int, words: dict[str, int], base: int) -> bytes:
    """One instruction; tensors lie behind the constants."""
    moved = {n: words[n] + base for n in _TENSORS.get(op, ("src", "dst"))}
    w = {**words, **moved}
    return struct.pack(
        "<12i8B4bi", op,
        *(w.get(n, 0) for n in _PLACES),
        *(w.get(n, 0) for n in ("kh", "kw", "sh", "sw", "pt", "pl", "dh", "dw")),
        *(w.get(n, 0) for n in ("zin", "zout", "lo", "hi")), w.get("groups", 1),
    )  # fmt: skip

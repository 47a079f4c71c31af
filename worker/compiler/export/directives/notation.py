"""KAPLA's directives as values, and as text.

A layer is told from the inside out: first the box that one instruction of the engine works on, then
memory by memory what a buffer holds (`tensor`), how buffers stand side by side (`stack`), and how
what they hold steps on (`update`, later ones outer).  Lines that begin with # are remarks.

    layer conv(n=4, k=64, y=56, x=56, c=64, r=3, s=3)
    at mme
      tensor x(n=1, y=4, x=56, c=16, r=3, s=3)
      tensor w(k=64, c=16, r=3, s=3)
      tensor o(n=1, k=64, y=4, x=56)
      update(c+=16)
    at L1
      tensor w(k=64, c=64, r=3, s=3)
      tensor o(n=1, k=64, y=4, x=56) copies=2 as f32
      tensor x(n=1, y=4, x=56, c=64, r=3, s=3) copies=2
      stack(y+=28, 2)
      update(y+=4)
      update(n+=1)

Source: KAPLA, section III-B.  Where we deviate: dimensions are the operator's axes, so that a
window needs no second name for what it slides over (the elements of `x` along its rows are those
that four rows `y` and three taps `r` touch); `copies`, `as` and `every` say what a buffer is
beside its size, which the paper leaves to the machine: buffering depth, the format of sums, and
the distance in core numbers between neighbours of a stack where it is not the number of cores
inside; a share factor has no form, for trees have no buffer that others hold parts of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NoReturn, TypeAlias

from worker.compiler.errors import Finding, InputError
from worker.compiler.ir.dtype import DType

Sizes: TypeAlias = "tuple[tuple[str, int], ...]"
"""(axis, steps), in the operator's order."""

MOST_LINES = 4096
_NAME = r"[^\s(),=+#]+"
_INT = r"\d{1,18}"
_CALL = re.compile(
    rf"(tensor|layer)\s+({_NAME})\s*\((.*)\)((?:\s+copies={_INT})?)((?:\s+as\s+\w+)?)"
)
_STACK = re.compile(
    rf"stack\(\s*({_NAME})\s*\+=\s*({_INT})\s*,\s*({_INT})\s*\)(?:\s+every=({_INT}))?"
)
_UPDATE = re.compile(rf"update\(\s*({_NAME})\s*\+=\s*({_INT})\s*\)")
_AT = re.compile(rf"at\s+({_NAME})")
_SIZE = re.compile(rf"({_NAME})=({_INT})")


@dataclass(frozen=True, slots=True)
class Tensor:
    """What one buffer holds of a tensor: along which axes how many steps."""

    name: str
    sizes: Sizes
    copies: int = 1
    dtype: DType | None = None
    """Of what is stored, where it is not the tensor's."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Buffers side by side, each further by `shift` steps of an axis."""

    axis: str
    shift: int
    repl: int
    every: int
    """Distance in core numbers."""


@dataclass(frozen=True, slots=True)
class Update:
    """One loop in time over an axis."""

    axis: str
    step: int


@dataclass(frozen=True, slots=True)
class Level:
    """One memory, or the engine (innermost)."""

    name: str
    tensors: tuple[Tensor, ...]
    stacks: tuple[Stack, ...] = ()
    """Inner to outer."""
    updates: tuple[Update, ...] = ()
    """Inner to outer, outside of the stacks."""


@dataclass(frozen=True, slots=True)
class Directives:
    """One layer, from the inside out."""

    op: str
    axes: Sizes
    """Of more than one step."""
    levels: tuple[Level, ...]


def print_directives(
    directives: Directives, remarks: Mapping[tuple[str, str], str] = MappingProxyType({})
) -> str:
    """As text; `parse_directives` gives the same value again.

    `remarks`: by (level, tensor), what stands behind a tensor's line.
    """
    lines = [f"layer {directives.op}({_sizes(directives.axes)})"]
    inside = 1
    for level in directives.levels:
        lines.append(f"at {level.name}")
        for tensor in level.tensors:
            line = f"  tensor {tensor.name}({_sizes(tensor.sizes)})"
            line += f" copies={tensor.copies}" if tensor.copies > 1 else ""
            line += f" as {tensor.dtype}" if tensor.dtype else ""
            remark = remarks.get((level.name, tensor.name))
            lines.append(line if remark is None else f"{line}  # {remark}")
        for stack in level.stacks:
            every = f" every={stack.every}" if stack.every != inside else ""
            lines.append(f"  stack({stack.axis}+={stack.shift}, {stack.repl}){every}")
            inside = stack.every * stack.repl
        lines += [f"  update({update.axis}+={update.step})" for update in level.updates]
    return "\n".join(lines) + "\n"


def _sizes(sizes: Sizes) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes)


def parse_directives(text: str) -> Directives:
    """The value of a text.

    Raises:
        InputError: TW-DIRECTIVE-001, a line that is none; its number is the finding's pointer.
    """
    lines = list(_lines(text))
    if not lines:
        refuse(1, "nothing is written here", "a text begins with `layer NAME(axis=extent, ..)`")
    number, line = lines[0]
    head = _CALL.fullmatch(line)
    if head is None or head[1] != "layer" or head[4] or head[5]:
        refuse(number, line, "a text begins with `layer NAME(axis=extent, ..)`")
    axes = _parsed(head[3], number, line)
    levels: list[_Open] = []
    inside = 1
    for number, line in lines[1:]:
        if found := _AT.fullmatch(line):
            levels.append(_Open(found[1]))
        elif not levels:
            refuse(number, line, "`at MEMORY` comes first")
        elif (found := _CALL.fullmatch(line)) and found[1] == "tensor":
            levels[-1].tensors.append(_tensor(found, number, line))
        elif found := _STACK.fullmatch(line):
            if levels[-1].updates:
                refuse(number, line, "stacks stand before updates: all buffers step on together")
            stack = Stack(found[1], int(found[2]), int(found[3]), int(found[4] or inside))
            if not stack.shift or not stack.repl or not stack.every:
                refuse(number, line, "a stack shifts by one step at least, and has buffers")
            levels[-1].stacks.append(stack)
            inside = stack.every * stack.repl
        elif found := _UPDATE.fullmatch(line):
            if not int(found[2]):
                refuse(number, line, "an update goes on by one step at least")
            levels[-1].updates.append(Update(found[1], int(found[2])))
        else:
            refuse(number, line, "a line is `at`, `tensor`, `stack` or `update`")
    return Directives(head[2], axes, tuple(x.closed() for x in levels))


@dataclass(slots=True)
class _Open:
    """A level while it is read."""

    name: str
    tensors: list[Tensor] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)

    def closed(self) -> Level:
        return Level(self.name, tuple(self.tensors), tuple(self.stacks), tuple(self.updates))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """(number, what stands there) of lines that say something."""
    for number, line in enumerate(text.splitlines(), 1):
        if number > MOST_LINES:
            refuse(number, line[:80], f"a layer has at most {MOST_LINES} lines")
        said = line.partition("#")[0].strip()
        if said:
            yield number, said


def _tensor(found: re.Match[str], number: int, line: str) -> Tensor:
    word = found[5].split()[-1] if found[5] else None
    if word is not None and word not in {str(dtype) for dtype in DType}:
        refuse(number, line, f"{word} is no number format")
    copies = int(found[4].partition("=")[2] or 1)
    if not copies:
        refuse(number, line, "a buffer has one copy at least")
    dtype = None if word is None else DType(word)
    return Tensor(found[2], _parsed(found[3], number, line), copies, dtype)


def _parsed(text: str, number: int, line: str) -> Sizes:
    sizes: list[tuple[str, int]] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        found = _SIZE.fullmatch(part)
        if found is None or not int(found[2]) or found[1] in dict(sizes):
            refuse(number, line, f"`{part}` is no axis with its number of steps, or a second one")
        sizes.append((found[1], int(found[2])))
    return tuple(sizes)


def refuse(number: int | None, line: str, why: str) -> NoReturn:
    """Say what is wrong with a line of directives, or (None) with all of them."""
    pointer = None if number is None else f"line {number}"
    message = "directives that do not say a schedule"
    raise InputError(
        "TW-DIRECTIVE-001", message,
        findings=(Finding("TW-DIRECTIVE-001", f"{line}: {why}", pointer=pointer),),
    )  # fmt: skip

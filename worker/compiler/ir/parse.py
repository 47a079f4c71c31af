"""Parsing what text.py prints: graphs, affine expressions and scalar bodies.

A hand-written recursive descent over one token stream; errors name line and token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from worker.compiler.errors import VerifyError
from worker.compiler.ir.affine import Affine, Lookup, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import (
    Access,
    Origin,
    Reduce,
    Tensor,
    TensorOp,
)
from worker.compiler.ir.scalar import Apply, Cast, Const, Fn, Index, Read, Scalar, Select

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_MOST_DIGITS = 40
"""Of an integer: constants of 64 bits have 20."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<number>-?(?:inf|\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![A-Za-z0-9_]))
    |(?P<name>[A-Za-z_][A-Za-z0-9_.]*)
    |(?P<mark>//|[-+*%@$()\[\]{},:=]))""",
    re.VERBOSE,
)


@dataclass(slots=True)
class Tokens:
    """A cursor over one line's tokens."""

    text: str
    line: int = 0
    items: list[tuple[str, str]] = field(default_factory=list)
    at: int = 0

    def __post_init__(self) -> None:
        position = 0
        stripped = self.text.rstrip()
        end, token, found = len(stripped), _TOKEN.match, self.items.append
        while position < end:
            match = token(stripped, position)
            if match is None:
                raise self.error(f"cannot read {stripped[position : position + 12]!r}")
            kind = match.lastgroup or ""
            found((kind, match[kind]))
            position = match.end()

    def error(self, message: str) -> VerifyError:
        return VerifyError("parse", f"line {self.line}", "grammar", message)

    def peek(self) -> str:
        return self.items[self.at][1] if self.at < len(self.items) else ""

    def next(self) -> tuple[str, str]:
        if self.at >= len(self.items):
            raise self.error("unexpected end of line")
        self.at += 1
        return self.items[self.at - 1]

    def take(self, text: str) -> bool:
        if self.peek() == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise self.error(f"expected {text!r}, found {self.peek()!r}")

    def name(self) -> str:
        kind, text = self.next()
        if kind == "string":
            return str(json.loads(text))
        if kind != "name" and text != "inf":
            raise self.error(f"expected a name, found {text!r}")
        return text

    def one_of(self, kind: type[E]) -> E:
        """The member of an enumeration that the next name is the value of."""
        return self.member(kind, self.name())

    def member(self, kind: type[E], value: str) -> E:
        """The member of an enumeration with that value."""
        try:
            return kind(value)
        except ValueError:
            raise self.error(f"{value!r} is no {kind.__name__}") from None

    def integer(self) -> int:
        kind, text = self.next()
        if kind != "number" or not _is_whole(text):
            raise self.error(f"expected an integer, found {text[:_MOST_DIGITS]!r}")
        return self._int(text)

    def number(self) -> float | int:
        kind, text = self.next()
        if kind != "number":
            raise self.error(f"expected a number, found {text[:_MOST_DIGITS]!r}")
        return self._int(text) if _is_whole(text) else float(text)

    def _int(self, text: str) -> int:
        if len(text) > _MOST_DIGITS:
            raise self.error(f"a number of {len(text)} digits, at most {_MOST_DIGITS}")
        return int(text)

    def listed(self, opening: str, closing: str, item: Callable[[], T]) -> tuple[T, ...]:
        self.expect(opening)
        found: list[T] = []
        while not self.take(closing):
            if found:
                self.expect(",")
            found.append(item())
        return tuple(found)


def _is_whole(number: str) -> bool:
    return number.removeprefix("-").isdecimal()


def parse_affine(tokens: Tokens) -> Affine:
    """term (+ term)*; term = [INT *] atom | INT; atom = NAME | (expr)//INT | (expr)%INT | @INT."""
    total = _term(tokens)
    while tokens.take("+"):
        total = total + _term(tokens)
    return total


def _term(tokens: Tokens) -> Affine:
    kind, _ = tokens.items[tokens.at] if tokens.at < len(tokens.items) else ("", "")
    if kind == "number":
        value = tokens.integer()
        if tokens.take("*"):
            return _atom(tokens) * value
        return Affine((), value)
    return _atom(tokens)


def _atom(tokens: Tokens) -> Affine:
    if tokens.take("@"):
        return Affine(((Lookup(tokens.integer()), 1),), 0)
    if tokens.take("("):
        inner = parse_affine(tokens)
        tokens.expect(")")
        if tokens.take("//"):
            return inner.floordiv(tokens.integer())
        tokens.expect("%")
        return inner.mod(tokens.integer())
    return var(tokens.name())


def parse_scalar(tokens: Tokens) -> Scalar:
    """The inverse of `print_scalar`."""
    if tokens.take("$"):
        return Read(tokens.integer())
    kind, text = tokens.items[tokens.at] if tokens.at < len(tokens.items) else ("", "")
    if kind == "number":
        value = tokens.number()
        tokens.expect(":")
        dtype = tokens.one_of(DType)
        return Const(float(value) if dtype.is_float else value, dtype)
    text = tokens.name()
    if text == "index":
        tokens.expect("(")
        affine = parse_affine(tokens)
        tokens.expect(")")
        return Index(affine)
    args = tokens.listed("(", ")", lambda: parse_scalar(tokens))
    if text == "select" and len(args) == 3:
        return Select(*args)
    if text.startswith("cast_") and len(args) == 1:
        return Cast(tokens.member(DType, text.removeprefix("cast_")), args[0])
    if text not in set(Fn):
        raise tokens.error(f"unknown function {text!r}")
    return Apply(Fn(text), args)


def _parse_access(tokens: Tokens) -> Access:
    tensor = tokens.name()
    index = tokens.listed("[", "]", lambda: parse_affine(tokens))
    fill = None
    if tokens.take("fill"):
        tokens.expect("=")
        fill = tokens.number()
    return Access(tensor, index, fill)


def _parse_axis(tokens: Tokens) -> Axis:
    name = tokens.name()
    tokens.expect(":")
    extent = tokens.integer()
    tokens.expect(":")
    return Axis(name, extent, tokens.one_of(AxisKind))


def _parse_origin(tokens: Tokens) -> Origin:
    if not tokens.take("from"):
        return Origin((), "")
    op_type = tokens.name()
    return Origin(tokens.listed("{", "}", tokens.name), op_type)


def _parse_op(tokens: Tokens, reads: list[Access]) -> TensorOp:
    name = tokens.name()
    domain = tokens.listed("(", ")", lambda: _parse_axis(tokens))
    tokens.expect("write")
    write = _parse_access(tokens)
    reduce = None
    if tokens.take("reduce"):
        tokens.expect("=")
        reduce = tokens.one_of(Reduce)
    tokens.expect("=")
    body = parse_scalar(tokens)
    instruction = tokens.name() if tokens.take("by") else ""
    origin = _parse_origin(tokens)
    return TensorOp(name, domain, tuple(reads), write, body, reduce, origin, instruction)


def parse_graph(text: str) -> Graph:
    """Parse what `print_graph` wrote.

    Raises:
        VerifyError: a grammar error (rule `grammar`), or whatever `Graph.build` refuses.
    """
    tensors: list[Tensor] = []
    roles: dict[str, list[str]] = {"input": [], "const": [], "tensor": [], "output": []}
    ops: list[TensorOp] = []
    lines = [(k, t) for k, t in enumerate(text.splitlines(), 1) if t.strip()]
    position = 0
    while position < len(lines):
        number, line = lines[position]
        position += 1
        tokens = Tokens(line, number)
        word = tokens.name()
        if word in ("input", "const", "tensor"):
            name = tokens.name()
            tokens.expect(":")
            dtype = tokens.one_of(DType)
            tensors.append(Tensor(name, tokens.listed("[", "]", tokens.integer), dtype))
            roles[word].append(name)
        elif word == "output":
            roles["output"].append(tokens.name())
        elif word == "op":
            reads: list[Access] = []
            while position < len(lines) and lines[position][1].startswith("  read "):
                inner = Tokens(lines[position][1], lines[position][0])
                inner.expect("read")
                reads.append(_parse_access(inner))
                position += 1
            ops.append(_parse_op(tokens, reads))
        else:
            raise tokens.error(f"unknown line {word!r}")
    return Graph.build(
        tuple(ops),
        tuple(tensors),
        tuple(roles["input"]),
        tuple(roles["output"]),
        tuple(roles["const"]),
    )

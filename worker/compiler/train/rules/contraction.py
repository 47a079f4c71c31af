"""Einsum: the gradient of an operand is the contraction of all else, the result's gradient too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_letters

import onnx_ir

from worker.compiler.frontend.equation import MalformedEquationError, read_equation
from worker.compiler.train.emit import dims
from worker.compiler.train.rules.site import Derivative, NoRule, Site


def _terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Letters of every operand and of the result, dots given letters of their own.

    Raises:
        NoRule: it says nothing, an index stands twice in an operand, or there are not letters
            enough.
    """
    try:
        said = read_equation(equation, ranks)
    except MalformedEquationError as error:
        raise NoRule(str(error)) from error
    free = iter(c for c in ascii_letters if c not in equation)
    letter: dict[str, str] = {}
    for index in said.indices:
        found = next(free, "") if index.isdecimal() else index
        if not found:
            raise NoRule(f"equation {equation!r} has too many indices")
        letter[index] = found
    terms = ["".join(letter[i] for i in own) for own in said.operands]
    twice = next((term for term in terms if len(set(term)) != len(term)), None)
    if twice is not None:
        raise NoRule(f"{twice!r} of equation {equation!r} reads a diagonal")
    return terms, "".join(letter[i] for i in said.result)


def _einsum(site: Site) -> Mapping[int, onnx_ir.Value]:
    """An index that the operand alone has is repeated; one of extent 1 that others have longer is
    summed again."""
    count = len(site.node.inputs)
    terms, result = _terms(site.text("equation", ""), [len(site.shape(k)) for k in range(count)])

    def of(index: int) -> onnx_ir.Value:
        term, shape = terms[index], site.shape(index)
        others = [k for k in range(count) if k != index]
        known = set(result).union(*(terms[k] for k in others))
        kept = "".join(c for c in term if c in known)
        made = _contracted(site, [(terms[k], site.x(k)) for k in others], result, kept)
        extents = iter(dims(made))
        whole = tuple(_extents(term, known, extents))
        made = site.emit.reshape(made, whole)
        wide = tuple(max(a, b) for a, b in zip(whole, shape, strict=True))
        return site.emit.unbroadcast(site.emit.expand(made, wide), shape)

    return site.like(of)


def _contracted(
    site: Site, others: Sequence[tuple[str, onnx_ir.Value]], result: str, kept: str
) -> onnx_ir.Value:
    """The gradient and `others`, by the indices that are kept; a scalar is no operand of Einsum."""
    operands = [(result, site.grad), *others] if result else others
    if not operands:
        return site.grad
    equation = ",".join(term for term, _ in operands)
    made = site.emit.op("Einsum", *(value for _, value in operands), equation=f"{equation}->{kept}")
    return made if result else site.emit.op("Mul", made, site.grad)


def _extents(term: str, known: set[str], found: Iterator[int]) -> Iterator[int]:
    return (next(found) if letter in known else 1 for letter in term)


RULES = {"Einsum": Derivative(_einsum)}

"""Einsum: the gradient of an operand is the contraction of all else, the result's gradient too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_letters

import onnx_ir

from worker.compiler.train.emit import dims
from worker.compiler.train.rules.site import Derivative, NoRule, Site

_DOTS = "..."


def _terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Letters of every operand and of the result, dots given letters of their own from the right.

    Raises:
        NoRule: an index stands twice in an operand, or there are not letters enough.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    words = left.split(",")
    if not arrow:
        letters = left.replace(_DOTS, "").replace(",", "")
        once = sorted(c for c in set(letters) if letters.count(c) == 1)
        right = (_DOTS if _DOTS in left else "") + "".join(once)
    free = [c for c in ascii_letters if c not in equation]
    hidden = [rank - len(word.replace(_DOTS, "")) for word, rank in zip(words, ranks, strict=True)]
    dots = free[: max(hidden)]
    if len(dots) < max(hidden):
        raise NoRule(f"equation {equation!r} has too many indices")
    terms = [
        word.replace(_DOTS, "".join(dots[len(dots) - count :]))
        for word, count in zip(words, hidden, strict=True)
    ]
    twice = next((term for term in terms if len(set(term)) != len(term)), None)
    if twice is not None:
        raise NoRule(f"{twice!r} of equation {equation!r} reads a diagonal")
    return terms, right.replace(_DOTS, "".join(dots))


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

"""One check of one claim, ready to run, and what could not be turned into a check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from worker.conformance.sample import Array


class Form(StrEnum):
    """How an operator meets its number format."""

    NATIVE = "native"
    """The ONNX operator on tensors of the type."""
    QDQ = "qdq"
    """Float operator between dequantisations and a quantisation: one integer operator."""
    PATTERN = "pattern"
    """Several operators that a pattern of the target takes as one."""
    PATTERN_QDQ = "pattern qdq"
    """The same between dequantisations and a quantisation."""


class Expectation(StrEnum):
    PLACED = "placed"
    """Claimed: on the target, and right."""
    IF_CLAIMED = "if claimed"
    """A shape the document says nothing about: where its rules admit it, as PLACED."""
    REFUSED = "refused"
    """Outside one limit: on the host, for that reason."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model of one operator (or one composite) with inputs and what must happen to it."""

    target: str
    op_type: str
    """Or the name of the pattern."""
    dtype: str
    label: str
    """What is special about it; with the fields above unique."""
    form: Form
    expectation: Expectation
    model: bytes
    """Serialised ONNX model."""
    feeds: Mapping[str, Array]
    nodes: tuple[str, ...]
    """Names of the nodes whose place is judged."""
    reason_code: str = ""
    """Of a refusal."""
    reason_word: str = ""
    """What the sentence of a refusal must name."""
    twin: bytes = b""
    """The same model in f32, for formats in which ONNX Runtime has no kernels."""


@dataclass(frozen=True, slots=True)
class Untested:
    """A claim, or an end of one, that no case exercises, and why."""

    target: str
    op_type: str
    claim: str
    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """A claim that is false before anything runs: no operator could ever meet it."""

    target: str
    op_type: str
    dtype: str
    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class Suite:
    """All checks of a machine in a fixed order."""

    cases: tuple[Case, ...]
    broken: tuple[Broken, ...]
    untested: tuple[Untested, ...]

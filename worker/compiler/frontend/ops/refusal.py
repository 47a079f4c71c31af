"""The signal by which a family says that it cannot express a node.

It never leaves the front end: `express.rejection` turns it into a `Rejection` value.
"""

from __future__ import annotations

from worker.compiler.rejection import ReasonCode, Rejection


class Refusal(Exception):  # control flow inside frontend only, caught in express.py
    """Carries the Rejection."""

    def __init__(self, code: ReasonCode, sentence: str) -> None:
        super().__init__(sentence)
        self.rejection = Rejection(code, sentence)


def unsupported_attribute(sentence: str) -> Refusal:
    """An attribute value outside what the algebra can say."""
    return Refusal(ReasonCode.UNSUPPORTED_ATTRIBUTE, sentence)


def shape_mismatch(sentence: str) -> Refusal:
    """Operand shapes that the operator's definition forbids."""
    return Refusal(ReasonCode.SHAPE_MISMATCH, sentence)


def data_dependent(sentence: str) -> Refusal:
    """A parameter that must be known at compile time is not."""
    return Refusal(ReasonCode.DATA_DEPENDENT, sentence)

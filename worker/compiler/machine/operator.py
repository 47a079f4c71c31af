"""Operators of a vendor's own domains: how they are called, and what a document declares of them.

Everywhere rules name such an operator by domain and op type, `com.acme::FusedConvRelu6`; operators
of the standard have no domain in front.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SEPARATOR = "::"
_NAME = re.compile(r"^([A-Za-z_][A-Za-z0-9_.-]{0,127})::([A-Za-z_][A-Za-z0-9_.]{0,127})$")
STANDARD = frozenset({"ai.onnx", "ai.onnx.ml"})
"""Domains of which ONNX says what operators mean."""


@dataclass(frozen=True, slots=True)
class DeclaredOperator:
    """What a hardware document says an operator of a foreign domain computes."""

    name: str
    """`domain::op type`."""
    definition: str
    """An ONNX function as text; its body is of operators of the standard, or declared ones."""
    pointer: str = ""
    """Where the definition stands in the user's document."""


def foreign_name(domain: str, op_type: str) -> str:
    """What rules call an operator of a foreign domain."""
    return f"{domain}{SEPARATOR}{op_type}"


def split_foreign(name: str) -> tuple[str, str] | None:
    """(domain, op type) of the name of a foreign operator; None: it names none."""
    found = _NAME.match(name)
    if found is None or found[1] in STANDARD:
        return None
    return found[1], found[2]


def is_foreign(name: str) -> bool:
    """Whether `name` is that of an operator of a foreign domain."""
    return split_foreign(name) is not None

"""Text of a hardware document -> plain mapping: YAML or JSON, read defensively.

YAML is read with plain scalars only (no tags that build objects), numbers such as `1e9` are
numbers, a key given twice is refused, and neither size nor nesting nor alias expansion may explode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import Any

import yaml

from worker.compiler.errors import SpecError

MAX_TEXT_CHARS = 1 << 17
MAX_ITEMS = 100_000
MAX_DEPTH = 32


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and reads `1e9` as a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = str(key_node.value)
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} is given twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9_]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def parse_document(text: str) -> dict[str, Any]:
    """Read one hardware document.

    Raises:
        SpecError: TW-SPEC-004, with line and column where the text breaks off.
    """
    if len(text) > MAX_TEXT_CHARS:
        raise SpecError(
            "TW-SPEC-004", "the hardware document is too long",
            limit=MAX_TEXT_CHARS, actual=len(text),
        )  # fmt: skip
    try:
        document = _read_json(text) if text.lstrip().startswith("{") else _read_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SpecError("TW-SPEC-004", f"{error.problem}{where}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SpecError("TW-SPEC-004", f"the document cannot be read: {reason}") from error
    if not isinstance(document, dict):
        kind = "empty" if document is None else f"a {type(document).__name__}"
        raise SpecError(
            "TW-SPEC-004", f"a hardware document must be a mapping of fields; this one is {kind}",
            pointer="",
        )  # fmt: skip
    _check_size(document)
    return document


def _read_yaml(text: str) -> object:
    """Events first: they come without recursion, so deep nesting is refused early and cheaply."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                line = 1 + event.start_mark.line if event.start_mark else 0
                raise ValueError(f"nested deeper than {MAX_DEPTH} levels at line {line}")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return yaml.load(text, Loader=_Loader)


def _read_json(text: str) -> object:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                raise ValueError(f"key {key!r} is given twice")
            seen[key] = value
        return seen

    try:
        return json.loads(text, object_pairs_hook=no_duplicates)
    except json.JSONDecodeError as error:
        # A YAML flow mapping also starts with a brace and need not be JSON.
        try:
            return _read_yaml(text)
        except yaml.YAMLError:
            raise ValueError(f"{error.msg} at line {error.lineno}, column {error.colno}") from error


def _check_size(document: dict[str, Any]) -> None:
    """Walk as if aliases were copied, and give up early: a small text may describe a huge tree."""
    stack: list[tuple[object, int]] = [(document, 0)]
    count = 0
    while stack:
        value, depth = stack.pop()
        count += 1
        if count > MAX_ITEMS or depth > MAX_DEPTH:
            raise SpecError(
                "TW-SPEC-004", "the hardware document is too large or nested too deeply",
                limit=f"{MAX_ITEMS} values, {MAX_DEPTH} levels",
            )  # fmt: skip
        if isinstance(value, dict):
            stack.extend((v, depth + 1) for v in value.values())
        elif isinstance(value, list):
            stack.extend((v, depth + 1) for v in value)

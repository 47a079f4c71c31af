"""Text of a hardware document -> plain mapping: YAML or JSON, read defensively.

YAML is read with plain scalars only (no tags that build objects), numbers such as `1e9` are
numbers, a key given twice is refused, and neither size nor nesting nor alias expansion may explode.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import yaml

from worker.compiler.errors import SpecError

MAX_TEXT_CHARS = 1 << 17
MAX_ITEMS = 100_000
MAX_DEPTH = 32


if TYPE_CHECKING:
    from yaml import SafeLoader as _Fastest
else:
    # libyaml's parser where PyYAML has it: the presets take 0.06 s with it and 0.35 s without
    _Fastest = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Fastest):
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


def parse_document(text: str, what: str = "hardware document") -> dict[str, Any]:
    """Read one hardware document; `what` names another one that is read as defensively.

    Raises:
        SpecError: TW-SPEC-004, with line and column where the text breaks off.
    """
    if len(text) > MAX_TEXT_CHARS:
        raise SpecError(
            "TW-SPEC-004", f"the {what} is too long",
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
            "TW-SPEC-004", f"a {what} must be a mapping of fields; this one is {kind}",
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
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_expansion(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _check_expansion(root: yaml.Node) -> None:
    """Count what the document would be with every alias and merge written out, before it is.

    A composed graph holds an anchored node once however often it is named, so this is linear in
    the text: sizes are added up from the leaves.  A merge (`<<`) copies the pairs of what it names,
    and merges of merges multiply.

    Raises:
        ValueError: more than MAX_ITEMS values, or a node that holds itself.
    """
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()
    stack: list[tuple[yaml.Node, bool]] = [(root, False)]
    while stack:
        node, is_leaving = stack.pop()
        children = _children(node)
        if is_leaving:
            open_nodes.discard(id(node))
            sizes[id(node)] = size = 1 + sum(sizes[id(child)] for child in children)
            if size > MAX_ITEMS:
                line = node.start_mark.line + 1
                raise ValueError(
                    f"it has more than {MAX_ITEMS} values once aliases and merges at line {line}"
                    " are written out"
                )
        elif id(node) in open_nodes:
            raise ValueError(f"the node at line {node.start_mark.line + 1} holds itself")
        elif id(node) not in sizes:
            open_nodes.add(id(node))
            stack.append((node, True))
            stack += [(child, False) for child in children if id(child) not in sizes]


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


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
    for value in values_of(document):
        if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
            raise SpecError("TW-SPEC-004", "a text of the document holds half a surrogate pair")
        if isinstance(value, float) and not math.isfinite(value):
            raise SpecError("TW-SPEC-004", f"{value} is not a number a machine can have")


def values_of(document: Mapping[str, object]) -> Iterator[object]:
    """Every key and value of a document, as if aliases were copied: a small text may describe a
    huge tree, so it gives up early.

    Raises:
        SpecError: TW-SPEC-004, it is too large, or nested too deeply.
    """
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
        yield value
        if isinstance(value, Mapping):
            stack.extend((k, depth) for k in value)
            stack.extend((v, depth + 1) for v in value.values())
        elif isinstance(value, list):
            stack.extend((v, depth + 1) for v in value)

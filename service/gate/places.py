"""Where in a text a JSON pointer points: the line that an editor or an annotation shows."""

from __future__ import annotations

import yaml

_NAMES = ("name", "op_type")
"""What tells items of a list apart in a spec."""


def line_of(text: str, pointer: str) -> int:
    """Line of what a pointer names, counted from 1; of its nearest parent where it is not there.

    The text has been read before (`parse_document`): it is no bomb.  A text that is no YAML is 1.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return 1
    line = 1
    for part in pointer.split("/")[1:]:
        if node is None:
            break
        part = part.replace("~1", "/").replace("~0", "~")
        found = _stepped(node, part)
        if found is None:
            break
        line, node = found
    return line


def _stepped(node: yaml.Node, part: str) -> tuple[int, yaml.Node] | None:
    """(line of the key or item, the value)"""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == part:
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode):
        by_number = part.isdigit() and int(part) < len(node.value)
        items = [node.value[int(part)]] if by_number else _called(node, part)
        if items:
            return items[0].start_mark.line + 1, items[0]
    return None


def _called(node: yaml.SequenceNode, name: str) -> list[yaml.Node]:
    """Items with a name of their own, as comparisons of specs point at them."""
    return [
        item
        for item in node.value
        if isinstance(item, yaml.MappingNode)
        and any(k.value in _NAMES and v.value == name for k, v in item.value)
    ]

"""What one export consists of: files for the peer, kernels that went in, kernels that did not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from worker.compiler.export.nest import LoopNest, Refusal
from worker.compiler.machine.machine import MemoryLevel


@dataclass(frozen=True, slots=True)
class Exported:
    """One kernel in a peer's terms."""

    nest: LoopNest
    name: str
    """What the peer's files call it."""
    caveats: tuple[str, ...] = ()
    """What the peer will count otherwise, and why."""


@dataclass(frozen=True, slots=True)
class Export:
    """Everything that one writer gives."""

    files: tuple[tuple[str, str], ...]
    """(relative path, text), sorted by path."""
    exported: tuple[Exported, ...]
    refused: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class Tagged:
    """A YAML mapping of a named kind: `!Memory {..}`."""

    tag: str
    fields: Mapping[str, Any]


class _Dumper(yaml.SafeDumper):
    """Leaf sequences on one line, as the peers' own files have them."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_leaves(self, data: list[Any]) -> yaml.Node:
        flow = all(not isinstance(x, (list, dict, Tagged)) for x in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)

    def represent_tagged(self, data: Tagged) -> yaml.Node:
        return self.represent_mapping(f"!{data.tag}", dict(data.fields))


_Dumper.add_representer(list, _Dumper.represent_leaves)
_Dumper.add_representer(Tagged, _Dumper.represent_tagged)


def yaml_text(document: Mapping[str, Any] | list[Any], *comments: str) -> str:
    """YAML with keys in the given order, behind comment lines."""
    head = "".join(f"# {line}\n" for line in comments)
    return head + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=100)


def origin(nest: LoopNest) -> str:
    """Which operator of which kernel a file is about, as one printable line: names in it are
    somebody else's, and must not end the comment that they stand in."""
    text = f"{nest.op} of {nest.name}: {', '.join(nest.nodes)}"
    return "".join(c if c.isprintable() else "?" for c in text)


def plain_name(text: str) -> str:
    """A name of letters, digits and underscores that does not start with a digit."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return f"_{name}" if name[:1].isdigit() else name


def bits_per_cycle(bytes_per_cycle: float) -> int:
    """A port's width in whole bits, rounded down; at least one."""
    return max(1, int(bytes_per_cycle * 8))


def read_pj(level: MemoryLevel, bits: int) -> float:
    """Energy of reading `bits` from a memory."""
    return round(level.read_energy_pj_per_byte * bits / 8, 9)


def write_pj(level: MemoryLevel, bits: int) -> float:
    """Energy of writing `bits` into a memory."""
    return round(level.write_energy_pj_per_byte * bits / 8, 9)

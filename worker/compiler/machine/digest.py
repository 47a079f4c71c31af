"""Digest of a machine: equal for equal behaviour and reports, whatever the machine is called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256

from worker.compiler.machine.machine import Machine


def digest(machine: Machine) -> str:
    """Give the sha256 (hex) over every field of `machine` but its name."""
    document = _plain(machine)
    assert isinstance(document, dict)
    del document["name"]
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()


def _plain(value: object) -> object:
    """Reduce to JSON values; floats keep their shortest exact spelling."""
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value

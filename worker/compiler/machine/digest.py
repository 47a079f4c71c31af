"""A machine as a document, and its digest: equal for equal behaviour and reports, whatever the
machine is called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

import msgspec

from worker.compiler.machine.machine import (
    AcceleratorTarget,
    Capabilities,
    Engine,
    Host,
    Link,
    Machine,
    MemoryLevel,
)


def digest(machine: Machine) -> str:
    """Give the sha256 (hex) over every field of `machine` but its name."""
    return document_digest(machine_document(machine))


def machine_document(machine: Machine) -> dict[str, object]:
    """Every field of `machine` as JSON values: what its digest is made of, and its name."""
    document = _plain(machine)
    assert isinstance(document, dict)
    return document


def document_digest(document: Mapping[str, object]) -> str:
    """The digest of the machine that `machine_document` gave."""
    kept = {name: value for name, value in document.items() if name != "name"}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()


def machine_of(document: Mapping[str, Any]) -> Machine:
    """What `machine_document` gave, as far as kernels depend on it.

    Capabilities and rules of targets, which decide where operators run, are left out.

    Raises:
        ValueError, TypeError, KeyError: it is no such document.
    """
    targets = tuple(
        AcceleratorTarget(
            msgspec.convert(target["name"], str),
            Capabilities((), (), 0),
            engines=msgspec.convert(target["engines"], tuple[str, ...]),
        )
        for target in document["targets"]
    )
    return Machine(
        name=msgspec.convert(document["name"], str),
        clock_hz=msgspec.convert(document["clock_hz"], float),
        num_cores=msgspec.convert(document["num_cores"], int),
        num_clusters=msgspec.convert(document["num_clusters"], int),
        levels=msgspec.convert(document["levels"], tuple[MemoryLevel, ...]),
        engines=msgspec.convert(document["engines"], tuple[Engine, ...]),
        links=msgspec.convert(document["links"], tuple[Link, ...]),
        host=msgspec.convert(document["host"], Host),
        targets=targets,
        launch_latency_cycles=msgspec.convert(document["launch_latency_cycles"], int),
        signal_cycles=msgspec.convert(document["signal_cycles"], int),
        engine_signal_cycles=msgspec.convert(document.get("engine_signal_cycles", 0), int),
        launch_gap_cycles=msgspec.convert(document["launch_gap_cycles"], int | None),
    )


def _plain(value: object) -> object:
    """Reduce to JSON values; floats keep their shortest exact spelling."""
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value

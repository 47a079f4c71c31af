"""The file of `--write-baseline`: documents of every pair, to be committed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from service.gate.git import NoBaseline
from service.gate.runs import Outcome
from service.gate.selection import Pair
from worker.compiler.errors import Finding, InputError

VERSION = 1


class _Toolchain(msgspec.Struct):
    strategies: dict[str, Any] = {}


class _Moved(msgspec.Struct):
    read: int
    write: int


class _Summary(msgspec.Struct):
    latency_s: float
    energy_pj: float | None = None
    traffic_bytes: dict[str, _Moved] = {}
    peak_bytes: dict[str, int] = {}


class _Hardware(msgspec.Struct):
    clock_hz: float


class _Model(msgspec.Struct):
    sha256: str


class _Report(msgspec.Struct):
    """What rules look at, beside what the comparison checks itself."""

    toolchain: _Toolchain
    summary: _Summary
    hardware: _Hardware
    model: _Model
    strategies: list[dict[str, Any]]
    layers: list[dict[str, Any]]


class _Entry(msgspec.Struct):
    model: str
    hardware: str
    documents: dict[str, Any]


class _File(msgspec.Struct):
    schema_version: int
    pairs: list[_Entry]


def write_baseline(
    path: Path, pairs: Sequence[Pair], heads: Mapping[tuple[str, str], Outcome]
) -> None:
    """Write the results of every pair; equal results give equal bytes.

    Raises:
        InputError: TW-GATE-002, a pair does not compile; nothing is written.
    """
    failing = [
        Finding("TW-GATE-002", f"{pair.label}: {problem.get('code')} {problem.get('detail')}")
        for pair in pairs
        if (problem := heads[pair.key].problem) is not None
    ]
    if failing:
        raise InputError("TW-GATE-002", failing[0].message, findings=tuple(failing))
    entries = [
        {"model": p.model, "hardware": p.hardware, "documents": heads[p.key].documents}
        for p in pairs
    ]
    text = json.dumps({"schema_version": VERSION, "pairs": entries}, indent=1, sort_keys=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def read_baseline(path: Path, name: str) -> dict[tuple[str, str], Outcome]:
    """The outcomes of a file, by pair.

    Raises:
        NoBaseline: it is none, or of another version.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise NoBaseline(f"{name} is no baseline: {error}") from error
    if found.schema_version != VERSION:
        raise NoBaseline(f"{name} has version {found.schema_version}, this release reads {VERSION}")
    for entry in found.pairs:
        try:
            msgspec.convert(entry.documents.get("report"), _Report)
        except msgspec.ValidationError as error:
            said = f"the report of {entry.model} on {entry.hardware}: {error}"
            raise NoBaseline(f"{name} is no baseline: {said}") from error
    return {(e.model, e.hardware): Outcome(documents=e.documents) for e in found.pairs}

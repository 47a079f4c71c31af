"""Mutated bundles through `run` and `disassemble`.

Two sorts: damage (bytes, members), which digests must find; and tampering with every digest made
right again, which only a reader that checks what a member says can find.  Whatever runs must give
the results of the bundle as it was made, unless the numbers of the model itself were changed; and
nothing may be written outside the case's folder.
"""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hostile.child import Verdict
from benchmarks.hostile.command_line import invoke, verdict_of
from benchmarks.hostile.models import compiled
from benchmarks.hostile.protos import INTEGERS, TEXTS, Rng, flipped
from benchmarks.hostile.rivals import reference

Members = dict[str, bytes]
MANIFEST = "manifest.json"
NAMES = (
    "../../escape.c",
    "/tmp/escape.c",
    "kernels/../../escape.c",
    "a\\..\\b",
    "",
    ".",
    "x" * 300,
)
NUMBERS = re.compile(r"weights|host/|constants")
"""Members that hold the model's own numbers: other numbers, other results."""


@dataclass(frozen=True, slots=True)
class Base:
    """A good bundle with inputs and the results that belong to them."""

    members: Members
    feeds: dict[str, Any]
    expected: dict[str, Any]


@cache
def bases() -> tuple[Base, ...]:
    """The example compiled by each strategy."""
    from service.cli.demo import EXAMPLE

    made = []
    for strategy in ("naive", "graphturbo"):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            asked: dict[str, object] = {"strategy": strategy, "verify": "none"}
            verdict = compiled(EXAMPLE.read_bytes(), {"preset": "stcp920-inferred"}, asked, place)
            if verdict.kind != "accepted":
                raise RuntimeError(f"the example does not compile: {verdict}")
            with zipfile.ZipFile(place / "out" / "model.twb") as archive:
                members = {name: archive.read(name) for name in archive.namelist()}
            made.append(Base(members, *reference(EXAMPLE, 5)))
    return tuple(made)


def case(rng: Rng) -> tuple[str, Callable[[Path], Verdict]]:
    """One mutated bundle, and how to judge it."""
    base = bases()[int(rng.integers(len(bases())))]
    way = int(rng.integers(4))
    same_numbers = True
    if way == 0:
        raw, what = flipped(_zipped(base.members), rng)
    elif way == 1:
        raw, what = _members_moved(base.members, rng)
    else:
        members, name, what = _tampered(base.members, rng)
        raw, same_numbers = _zipped(_sealed(members)), not NUMBERS.search(name)
    verb = ("run", "run", "disassemble")[int(rng.integers(3))]

    def judge(folder: Path) -> Verdict:
        return _judge(raw, base, verb, folder, same_numbers=same_numbers)

    return f"{what}; {verb}", judge


def _judge(raw: bytes, base: Base, verb: str, folder: Path, *, same_numbers: bool) -> Verdict:
    bundle, given, made = (folder / name for name in ("bad.twb", "in.npz", "out.npz"))
    bundle.write_bytes(raw)
    np.savez(given, **base.feeds)
    before = set(os.listdir(folder.parent)) | set(os.listdir("/"))
    arguments = [verb, str(bundle)]
    if verb == "run":
        arguments += ["--input", str(given), "-o", str(made), "--data-dir", str(folder / "data")]
    else:
        arguments += ["--region", "0"]
    verdict = verdict_of(invoke(arguments))
    fresh = set(os.listdir(folder.parent)) | set(os.listdir("/"))
    escaped = sorted(name for name in fresh - before if "escape" in name)
    if escaped:
        return Verdict("wrong", "escaped", f"written outside the folder: {escaped}")
    if verdict.kind != "accepted" or verb != "run" or not same_numbers:
        return verdict
    with np.load(made) as archive:
        for name, want in base.expected.items():
            if name not in archive.files or not np.allclose(archive[name], want, 1e-3, 1e-4):
                return Verdict("wrong", "values", f"{name!r} is not what the bundle computed")
    return Verdict("accepted", "compared")


def _zipped(members: Members) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


def _members_moved(members: Members, rng: Rng) -> tuple[bytes, str]:
    """A member dropped, doubled, renamed or swapped with another."""
    names = list(members)
    name, other = (names[int(k)] for k in rng.integers(len(names), size=2))
    way = int(rng.integers(4))
    changed = dict(members)
    if way == 0:
        del changed[name]
    elif way == 1:
        changed[name], changed[other] = changed[other], changed[name]
    elif way == 2:
        changed[NAMES[int(rng.integers(len(NAMES)))]] = changed.pop(name)
    else:
        changed[f"{name}.more"] = b"x" * 1000
    return _zipped(changed), f"members moved, way {way}: {name}"


def _tampered(members: Members, rng: Rng) -> tuple[Members, str, str]:
    """Another content of one member: fields of JSON, words of C, bytes of the rest."""
    names = [name for name in members if name != "report.json" and "trace" not in name]
    name = names[int(rng.integers(len(names)))]
    if rng.integers(2):
        name = MANIFEST
    data = members[name]
    if name.endswith(".json"):
        data, what = _json_edited(data, rng)
    elif name.endswith((".c", ".h")):
        data, what = _c_edited(data, rng)
    else:
        data, what = flipped(data, rng)
    return {**members, name: data}, name, f"{name}: {what}"


def _json_edited(data: bytes, rng: Rng) -> tuple[bytes, str]:
    from benchmarks.hostile.specs import edit, places

    document = json.loads(data)
    found = places(document)
    place = found[int(rng.integers(len(found)))]
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    if isinstance(holder[place[-1]], str) and rng.integers(2):
        pool = (*NAMES, *TEXTS)
        holder[place[-1]] = pool[int(rng.integers(len(pool)))]
        what = "another text"
    elif isinstance(holder[place[-1]], int) and rng.integers(2):
        holder[place[-1]] = INTEGERS[int(rng.integers(len(INTEGERS)))]
        what = "another number"
    else:
        what = edit(holder, place[-1], rng)
    return json.dumps(document).encode(), f"/{'/'.join(map(str, place))} {what}"


def _c_edited(data: bytes, rng: Rng) -> tuple[bytes, str]:
    """C that computes something else, or writes a file where it should not."""
    text = data.decode()
    payload = (
        "__attribute__((constructor)) static void p(void) {"
        ' FILE *f = fopen("/tmp/escape", "w"); if (f) fclose(f); }'
    )
    way = int(rng.integers(3))
    if way == 0:
        return f"#include <stdio.h>\n{text}\n{payload}\n".encode(), "a constructor writes a file"
    digits = [match.start() for match in re.finditer(r"\b[1-9]\d*\b", text)]
    if way == 1 and digits:
        at = digits[int(rng.integers(len(digits)))]
        return (text[:at] + "7" + text[at:]).encode(), "a number changed"
    lines = text.split("\n")
    at = int(rng.integers(len(lines)))
    return "\n".join(lines[:at] + lines[at + 1 :]).encode(), f"line {at} dropped"


def _sealed(members: Members) -> Members:
    """The members with the manifest's digests and sizes of them made right again."""
    try:
        manifest = json.loads(members[MANIFEST])
        rows = manifest["members"]
        for row in rows if isinstance(rows, list) else []:
            data = members.get(row["name"])
            if data is not None:
                row["sha256"] = sha256(data).hexdigest()
                row["size_bytes"] = len(data)
    except (KeyError, TypeError, ValueError):
        return members
    return {**members, MANIFEST: json.dumps(manifest, sort_keys=True, indent=2).encode()}

"""Mutated hardware specs: read, linted, and, when they are accepted, compiled for.

Half the mutations edit the document, the others its text: aliases, merges, digits, nesting.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.hostile.child import Verdict
from benchmarks.hostile.command_line import invoke, verdict_of
from benchmarks.hostile.models import compiled
from benchmarks.hostile.protos import Rng, flipped
from worker.compiler.errors import CompilerError

VALUES: tuple[Any, ...] = (
    0, -1, 1, 3, 7, 2**31, 2**63, 2**64, 10**30, 0.0, 0.5, -1.5, 1e-300, 1e308, float("nan"),
    float("inf"), True, False, None, "", "x", "1e9", "-0", "\x1b[2J", "../../etc/passwd", [], {},
    [1], [[]], {"a": 1}, "é", "x" * 3000,
)  # fmt: skip


@cache
def bases() -> tuple[str, ...]:
    """The presets' documents and the example's, as text."""
    import worker.compiler.machine as room

    presets = sorted((Path(room.__file__).parent / "presets").glob("*.yaml"))
    example = Path(__file__).parents[2] / "examples" / "my_chip.yaml"
    return tuple(path.read_text(encoding="utf-8") for path in (*presets, example))


def case(rng: Rng) -> tuple[str, Callable[[Path], Verdict]]:
    """One mutated spec, and how to judge it."""
    base = bases()[int(rng.integers(len(bases())))]
    ways = (_edited, _edited, _edited, _edited, _bomb, _text)
    text, what = ways[int(rng.integers(len(ways)))](base, rng)
    strategy = ("naive", "graphturbo")[int(rng.integers(2))]

    def judge(folder: Path) -> Verdict:
        return _judge(text, strategy, folder)

    return what, judge


def _judge(text: bytes, strategy: str, folder: Path) -> Verdict:
    from service.cli.demo import EXAMPLE
    from service.orders.order import hardware_document
    from worker.job.hardware import resolve_machine

    path = folder / "chip.yaml"
    path.write_bytes(text)
    linted = verdict_of(invoke(["hardware", "lint", str(path)]))
    if linted.kind == "internal":
        return linted
    try:
        document = hardware_document(str(path))
        resolve_machine(document)
    except CompilerError as error:
        return Verdict("internal" if error.code.startswith("TW-INT") else "refused", error.code)
    return compiled(EXAMPLE.read_bytes(), document, {"strategy": strategy, "verify": "sample"},
                    folder)  # fmt: skip


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a document that holds a value."""
    children = node.items() if isinstance(node, dict) else enumerate(node)
    found: list[tuple[Any, ...]] = []
    for key, value in children:
        found.append((*path, key))
        if isinstance(value, dict | list):
            found += places(value, (*path, key))
    return found


def _edited(base: str, rng: Rng) -> tuple[bytes, str]:
    document = copy.deepcopy(yaml.safe_load(base))
    done = []
    for _ in range(int(rng.choice((1, 1, 1, 2, 4)))):
        found = places(document)
        place = found[int(rng.integers(len(found)))]
        holder = document
        for key in place[:-1]:
            holder = holder[key]
        done.append(f"/{'/'.join(map(str, place))} {edit(holder, place[-1], rng)}")
    as_json = rng.integers(3) == 0
    text = json.dumps(document) if as_json else yaml.safe_dump(document, allow_unicode=True)
    return text.encode("utf-8", "surrogatepass"), "; ".join(done)[:300]


def edit(holder: Any, key: Any, rng: Rng) -> str:
    way = int(rng.integers(6))
    value = holder[key]
    if way == 0:
        del holder[key]
        return "dropped"
    if way == 1 and isinstance(holder, list):
        holder.append(copy.deepcopy(value))
        return "twice"
    if way == 1:
        holder[f"{key}_"] = value
        return "under another name too"
    if way in (2, 3) and type(value) in (int, float):
        scale = (0, -1, 2, 3, 0.5, 1e-6, 1e6, 1e12)[int(rng.integers(8))]
        holder[key] = type(value)(value * scale)
        return f"times {scale}"
    holder[key] = VALUES[int(rng.integers(len(VALUES)))]
    return f"is {str(holder[key])[:20]!r}"


def _bomb(base: str, rng: Rng) -> tuple[bytes, str]:
    """Text whose reading is meant to be dear."""
    depth = int(rng.integers(3, 60))
    way = int(rng.integers(7))
    if way == 0:
        lines = ["a0: &a0 {x: 1}"] + [
            f"a{k}: &a{k} {{p: *a{k - 1}, q: *a{k - 1}, r: *a{k - 1}}}" for k in range(1, depth)
        ]
    elif way == 1:
        lines = ["a0: &a0 {x: 1}"] + [
            f"a{k}: &a{k} {{<<: [{', '.join([f'*a{k - 1}'] * 9)}]}}" for k in range(1, depth)
        ]
    elif way == 2:
        lines = [f"x: {'[' * depth * 40}"]
    elif way == 3:
        lines = [f"{base}\nname: {'9' * depth * 1000}"]
    elif way == 4:
        lines = ["a: &a [*a, *a]"]
    elif way == 5:
        lines = ["{" + f'"name": {"1" * depth * 2000}, "levels": ' + "[" * depth * 50]
    else:
        lines = [f"k{k}: {k}" for k in range(depth * 4000)]
    return "\n".join(lines).encode(), f"bomb {way} of {depth}"


def _text(base: str, rng: Rng) -> tuple[bytes, str]:
    """Bytes of the text flipped, lines swapped, dropped or doubled."""
    if rng.integers(2):
        return flipped(base.encode(), rng)
    lines = base.split("\n")
    here, there = (int(k) for k in rng.integers(len(lines), size=2))
    way = int(rng.integers(3))
    if way == 0:
        lines[here], lines[there] = lines[there], lines[here]
    elif way == 1:
        del lines[here]
    else:
        lines.insert(there, lines[here])
    return "\n".join(lines).encode(), f"lines {here} and {there}, way {way}"

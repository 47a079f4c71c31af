"""Tests, benchmarks and examples use public names only: what is private may change at any time."""

from __future__ import annotations

import ast
import re
from collections import namedtuple
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
PRODUCT = ("tilewright", "service", "worker")
USERS = ("tests", "benchmarks", "examples")
OF_TUPLES = frozenset(vars(namedtuple("Any", ())))
"""`_replace` and its like: public, underscored to keep out of the fields' way."""
IMPORTS = re.compile(r"\bimport\s[^\n;]*?(?<!\w)(_(?!_)\w*)|\bfrom\s+(?:[\w.]+\.)?(_(?!_)\w*)")


def nodes_of(source: str) -> list[ast.AST]:
    """All nodes of a file's tree."""
    return list(ast.walk(ast.parse(source)))


def is_private(name: str) -> bool:
    """Whether a name begins with an underscore and is no protocol's (`__len__`, `_repr_html_`)."""
    return re.fullmatch(r"_(?!_)\w*(?<!_)", name) is not None and name not in OF_TUPLES


def private_names(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """What a file defines for itself: functions, classes, variables, attributes."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return frozenset(filter(is_private, found))


def reached(nodes: Sequence[ast.AST], kept: frozenset[str]) -> Iterator[tuple[int, str]]:
    """(line, name) where a file imports any private name or takes one of `kept` from elsewhere.

    That is: as an attribute of anything but `self` and `cls` of a class that has it, or as a string
    that is such a name, ends a path in one, or is code that imports one: monkeypatch takes these.
    """
    own = private_names(nodes)
    not_names = {id(piece) for node in nodes for piece in pieces(node)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom | ast.Import):
            whole = [getattr(node, "module", "") or "", *(alias.name for alias in node.names)]
            names = [name for path in whole for name in path.split(".")]
            yield from ((node.lineno, name) for name in names if is_private(name))
        elif isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if node.attr in (kept - own if is_own else kept):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = "" if id(node) in not_names else node.value
            yield from ((node.lineno, name) for name in named(text, kept))


def pieces(node: ast.AST) -> Iterator[ast.AST]:
    """Texts that are no names but parts of longer ones."""
    if isinstance(node, ast.JoinedStr):
        yield from node.values
    elif isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
    elif getattr(getattr(node, "func", None), "attr", "") in ("endswith", "removesuffix"):
        yield from ast.iter_child_nodes(node)


def named(text: str, kept: frozenset[str]) -> Iterator[str]:
    """Private names in a string: alone, at the end of a path, imported by code."""
    if re.fullmatch(r"[\w.:]+", text) and (last := re.split(r"[.:]", text)[-1]) in kept:
        yield last
    yield from ("".join(found) for found in IMPORTS.findall(text))


def may_reach(source: str, kept: frozenset[str]) -> bool:
    """Whether a file has the letters of any: most do not, and parsing all takes seconds."""
    return not kept.isdisjoint(re.findall(r"\w+", source)) or IMPORTS.search(source) is not None


@cache
def kept_by_the_product() -> frozenset[str]:
    """Private names of all of the product's files."""
    paths = [path for top in PRODUCT for path in sorted((REPO / top).rglob("*.py"))]
    return frozenset[str]().union(*(private_names(nodes_of(p.read_text())) for p in paths))


@pytest.mark.parametrize("top", USERS)
def test_nobody_outside_uses_a_private_name(top: str) -> None:
    kept = kept_by_the_product()
    assert len(kept) > 500
    paths = sorted((REPO / top).rglob("*.py"))
    assert paths
    found = [
        f"{path.relative_to(REPO)}:{line}: {name}"
        for path in paths
        if (source := path.read_text()) and may_reach(source, kept)
        for line, name in reached(nodes_of(source), kept)
    ]
    assert not found, "test what is promised through a public name, or make the name public"


def parsed(source: str) -> list[ast.AST]:
    """`~` stands for the underscore, so that this file uses no private name."""
    return nodes_of(source.replace("~", "_"))


KEPT = private_names(parsed("~kept = 1"))
FAULTS = {
    "from": "from worker.thing import ~kept",
    "from, among others": "from worker.thing import (\n    others,\n    ~kept,\n)",
    "from, of a test": "from test_thing import ~helper",
    "module": "import worker.~kept.thing",
    "attribute": "from worker import thing\nthing.~kept()",
    "attribute of an object": "made().inner.~kept.size",
    "attribute that this file has too": "def ~kept(): ...\nthing.~kept",
    "attribute of the product's base class": "class A(Base):\n    def f(self): return self.~kept",
    "assignment": "thing.~kept = 4",
    "patch": "monkeypatch.setattr(thing, '~kept', 4)",
    "patch by path": "monkeypatch.setattr('worker.thing.~kept', 4)",
    "patch in a table": "FAULTS = {'none': (thing, '~kept', 4)}",
    "getattr": "getattr(thing, '~kept')",
    "dictionary": "vars(thing)['~kept']",
    "entry point": "runner('worker.thing:~kept')",
    "code": "run('-c', 'from worker.thing import other, ~kept')",
    "code that imports a private module": "run('-c', 'import os\\nfrom worker.~kept import thing')",
}  # fmt: skip


@pytest.mark.parametrize("source", FAULTS.values(), ids=FAULTS)
def test_a_use_of_a_private_name_is_found(source: str) -> None:
    assert may_reach(source.replace("~", "_"), KEPT)
    found = list(reached(parsed(source), KEPT))
    assert [name.removeprefix("_") for _, name in found] in (["kept"], ["helper"])


@pytest.mark.parametrize(
    "source",
    [
        "from __future__ import annotations",
        "from worker.thing import public as ~own",
        "class A:\n    def __init__(self): self.~kept = 1\n    def f(self): return self.~kept",
        "class A:\n    def ~kept(self): ...\n    def f(self): self.~kept()",
        "def ~kept(): ...\n~kept()",
        "row.~replace(size=3)",
        "result.~repr_html_()",
        "os.~exit(3)",
        "f'{name}~kept'",
        "name.removesuffix('~kept')",
        "name + '~kept'",
        "'a sentence with ~kept in it'",
    ],
)  # fmt: skip
def test_names_of_ones_own_and_of_protocols_are_not(source: str) -> None:
    assert not list(reached(parsed(source), KEPT))


def test_private_names_are_those_a_file_defines() -> None:
    source = """
_LIMIT: int = 3
def _function(_parameter): _local = 1
class _Class:
    __slots__ = ("a",)
    def __init__(self): self._attribute = 1
    def _method(self): ...
    def _repr_html_(self): ...
def _replace(): ...
"""
    found = {name.removeprefix("_") for name in private_names(parsed(source))}
    assert found == {"LIMIT", "function", "local", "Class", "attribute", "method"}

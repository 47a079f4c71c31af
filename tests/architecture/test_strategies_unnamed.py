"""Nothing outside a strategy's own folder names it, so that any team's strategy is like ours.

A strategy is known by its descriptor alone: what can schedule every operator says so there
(`is_last_resort`), and what reports say of it is registered there.  Entry points in pyproject.toml,
documents, tests, benchmarks and migrations name strategies.  Papers are cited by their names.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent.parent
FOLDER = REPO / "worker" / "compiler" / "strategies"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/descriptor.py"))
MIGRATIONS = {"service/store/stored_options.py"}
"""Lifts options that 0.1.0 stored; there a strategy's option was everybody's."""
CITED = re.compile(r"Source:|section|figure|Algorithm|paper")
"""What the paragraph of a citation has."""


def files() -> Iterator[Path]:
    for top in ("tilewright", "service", "worker"):
        for path in sorted((REPO / top).rglob("*")):
            if path.suffix in {".py", ".html", ".css", ".js", ".tmpl", ".h"} and not any(
                path.is_relative_to(FOLDER / name) for name in NAMES
            ):
                yield path


def docstrings(tree: ast.Module) -> set[ast.expr]:
    """Strings that stand as statements: docstrings of modules, classes, functions and fields."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def identifiers(node: ast.AST) -> Iterator[str]:
    for name in ("id", "attr", "arg", "name", "asname", "module"):
        value = getattr(node, name, None)
        if isinstance(value, str):
            yield value


def prose(source: str, tree: ast.Module) -> Iterator[str]:
    """Paragraphs of docstrings, and comments."""
    for node in docstrings(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.split(r"\n\s*\n", node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def guilty(source: str, name: str) -> list[str]:
    """Where Python code names a strategy: code, strings, and text that is no citation."""
    tree = ast.parse(source)
    texts = docstrings(tree)
    word = re.compile(rf"\b{name}\b", re.IGNORECASE)
    found = [
        one
        for node in ast.walk(tree)
        for one in identifiers(node)
        if name in one.lower().replace("_", "")
    ]
    found += [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node not in texts and name in node.value.lower()
    ]
    for text in prose(source, tree):
        if any(hit == name or not CITED.search(text) for hit in word.findall(text)):
            found.append(text.strip())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_nothing_outside_its_folder_names_a_strategy(name: str) -> None:
    found: dict[str, list[str]] = {}
    for path in files():
        place, source = str(path.relative_to(REPO)), path.read_text(encoding="utf-8")
        if place in MIGRATIONS or name not in source.lower().replace("_", ""):
            continue  # reading the text is cheap, parsing it is not
        hits = (
            guilty(source, name)
            if path.suffix == ".py"
            else re.findall(name, source, re.IGNORECASE)
        )
        if hits:
            found[place] = hits
    assert not found


def test_strategies_are_found() -> None:
    assert {"graphturbo", "naive"} <= set(NAMES)
    assert all((REPO / place).is_file() for place in MIGRATIONS)


@pytest.mark.parametrize(
    "code",
    [
        "from worker.compiler.strategies.welder.strategy import WELDER",
        "if strategy == 'welder': pass",
        "def print_welder(): ...",
        "f(stage=f'by welder {x}')",
        "# as welder does",
        '"""Before Welder groups it."""',
        'x = 1\n"""Of the welder."""',
        '"""Source: Welder, section 3; see `welder`."""',
    ],
)
def test_any_way_to_name_one_is_seen(code: str) -> None:
    assert guilty(code, "welder")


def test_a_paper_may_be_cited() -> None:
    assert not guilty('"""Tiles.\n\nSource: Welder, section 4.2 (tiles meet)."""\nx = 1', "welder")

"""Every setting, option, request field and parameter of a verb is read by what acts on it.

A name counts as read when code other than its definition, its parser or its copying into a key or
a report takes it as an attribute (settings, options) or by that name from a request.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import typer

from service.api.routes.cache import PruneRequest
from service.api.schemas.base import RequestModel
from service.api.schemas.job import JobRequest
from service.api.schemas.model import UploadRequest
from service.api.schemas.sweep import SweepRequest
from service.cli.main import app
from service.settings import Settings
from worker.compiler.options import CompileOptions

ROOT = Path(__file__).parents[2]
DEFINING = {"service/settings.py", "worker/compiler/options.py"}


@cache
def attributes_read() -> Counter[str]:
    """How often each attribute name is loaded, over the product's files."""
    found: Counter[str] = Counter()
    for folder in ("tilewright", "service", "worker", "migrations"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            if place in DEFINING:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    found[node.attr] += 1
                elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get":
                    for given in node.args[:1]:
                        if isinstance(given, ast.Constant) and isinstance(given.value, str):
                            found[given.value] += 1
    return found


@cache
def settings_read() -> frozenset[str]:
    """Attributes taken from `settings` or `self` in the settings' own properties too."""
    own = ast.parse((ROOT / "service" / "settings.py").read_text(encoding="utf-8"))
    return frozenset(
        node.attr
        for node in ast.walk(own)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self"
    )


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_every_setting_is_read(name: str) -> None:
    assert attributes_read()[name] or name in settings_read(), f"nothing reads the setting {name}"


@pytest.mark.parametrize("name", [field.name for field in fields(CompileOptions)])
def test_every_option_is_read(name: str) -> None:
    assert attributes_read()[name], f"nothing reads the option {name}"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (m, n)
        for m in (JobRequest, PruneRequest, SweepRequest, UploadRequest)
        for n in m.model_fields
    ],
    ids=lambda given: given if isinstance(given, str) else given.__name__,
)
def test_every_field_of_a_request_is_read(model: type[RequestModel], name: str) -> None:
    assert attributes_read()[name], f"nothing reads {model.__name__}.{name}"


def verbs(group: typer.Typer) -> Iterator[Callable[..., object]]:
    """Functions behind all verbs of the command line."""
    for command in group.registered_commands:
        assert command.callback is not None
        yield command.callback
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from verbs(inner.typer_instance)


@pytest.mark.parametrize("verb", list(verbs(app)), ids=lambda verb: verb.__name__)
def test_every_parameter_of_a_verb_is_used(verb: Callable[..., object]) -> None:
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(verb))).body
    assert isinstance(function, ast.FunctionDef)
    used = {
        node.id
        for statement in function.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    used.add("as_json")  # remembered by its callback: errors are told as JSON
    assert set(inspect.signature(verb).parameters) <= used


def test_a_name_that_nobody_reads_would_be_found() -> None:
    assert not attributes_read()["a_setting_of_nobody"]
    assert attributes_read()["wall_limit_s"]

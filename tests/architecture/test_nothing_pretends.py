"""Every setting, compile option and request field is read by something that acts on it.

A name counts as read when code other than its definition, its parser or its copying into a key or
a report takes it as an attribute (settings, options) or by that name from a request.  What decides
nothing by design stands in `PASSED_ON` with the reason.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from service.api.routes.cache import PruneRequest
from service.api.schemas.base import RequestModel
from service.api.schemas.job import JobRequest
from service.api.schemas.model import UploadRequest
from service.settings import Settings
from worker.compiler.options import CompileOptions, Effort, Objective

ROOT = Path(__file__).parents[2]
DEFINING = {"service/settings.py", "worker/compiler/options.py"}
COPYING = {"worker/compiler/units.py": {"objective", "effort"}}
"""Files where some names only go into a cache key: no reading."""
PASSED_ON = {
    "objective": "one value only: another is refused until it decides something",
    "effort": "one value only: another is refused until it decides something",
}


@cache
def attributes_read() -> Counter[str]:
    """How often each attribute name is loaded, over the product's files."""
    found: Counter[str] = Counter()
    for folder in ("service", "worker", "migrations"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            if place in DEFINING:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    if node.attr not in COPYING.get(place, ()):
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
    if name in PASSED_ON:
        assert not attributes_read()[name], f"{name} is read now: take it from PASSED_ON"
        assert (len(Objective), len(Effort)) == (1, 1)
        return
    assert attributes_read()[name], f"nothing reads the option {name}"


@pytest.mark.parametrize(
    ("model", "name"),
    [(m, n) for m in (JobRequest, PruneRequest, UploadRequest) for n in m.model_fields],
    ids=lambda given: given if isinstance(given, str) else given.__name__,
)
def test_every_field_of_a_request_is_read(model: type[RequestModel], name: str) -> None:
    assert attributes_read()[name], f"nothing reads {model.__name__}.{name}"


def test_a_name_that_nobody_reads_would_be_found() -> None:
    assert not attributes_read()["require_api_key"]
    assert attributes_read()["wall_limit_s"]

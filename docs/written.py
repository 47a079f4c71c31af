"""Pages that are written by the product: every error code, every route of the API."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from service.api.app import create_app
from service.cli.exits import Exit
from service.settings import Settings
from worker.compiler.error_catalog import ERROR_CATALOG, FAMILIES


def errors_page() -> str:
    """Every code of the catalogue, by family."""
    lines: list[str] = []
    for family, title in FAMILIES.items():
        lines += [f"## {title}", ""]
        for e in ERROR_CATALOG.values():
            if e.code.split("-")[1] != family:
                continue
            lines += [
                f"### {e.code}",
                "",
                f"**{_cell(e.title)}.** {_cell(e.remedy)}",
                "",
                f"Fault: {e.fault} · stage: {e.stage} · HTTP {e.status} ·"
                f" exit code {e.exit_code} ({Exit(e.exit_code).name.lower().replace('_', ' ')})",
                "",
            ]
    return "\n".join(lines)


def api_page() -> str:
    """Every route with its parameters, body and answers, and every type that they name."""
    with tempfile.TemporaryDirectory() as folder:
        document = create_app(Settings(data_dir=Path(folder), log_level="ERROR")).openapi()
    by_tag: dict[str, list[str]] = defaultdict(list)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag[operation["tags"][0]] += _operation(method, path, operation)
    lines: list[str] = []
    for tag, texts in sorted(by_tag.items()):
        lines += [f"## Routes: {tag}", "", *texts]
    lines += ["## Types", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += _schema(name, schema)
    return "\n".join(lines)


PAGES: dict[str, Callable[[], str]] = {"errors": errors_page, "api": api_page}


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield from (f"### `{method.upper()} {path}`", "")
    yield from (operation["description"], "")
    if scope := operation.get("x-scope"):
        yield from (f"With a key: scope `{scope}`.", "")
    if given := operation.get("parameters"):
        yield from ("| parameter | in | type | meaning |", "|---|---|---|---|")
        for p in given:
            name = f"`{p['name']}`" + (" (required)" if p["required"] else "")
            shown = _type(p["schema"])
            yield f"| {name} | {p['in']} | {shown} | {_cell(p.get('description', ''))} |"
        yield ""
    if body := operation.get("requestBody"):
        yield from (f"Body: {_content(body)}.", "")
    for status, answer in operation["responses"].items():
        if status not in {"4XX", "5XX"}:
            told = _content(answer) or answer["description"]
            yield f"- {status}: {told}"
    yield ""


def _content(holder: dict[str, Any]) -> str:
    """Media types with what they carry."""
    return ", ".join(
        f"`{media}`" + (f" {_type(kind['schema'])}" if kind.get("schema") else "")
        for media, kind in holder.get("content", {}).items()
    )


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield from (f"### {name}", "")
    if told := schema.get("description"):
        yield from (told, "")
    if values := schema.get("enum"):
        yield from ("One of " + ", ".join(f"`{value}`" for value in values) + ".", "")
    elif not schema.get("properties"):
        yield from (f"{_type(schema)}.", "")
    if fields := schema.get("properties"):
        needed = set(schema.get("required", ()))
        yield from ("| field | type | meaning |", "|---|---|---|")
        for key, kind in fields.items():
            shown = f"`{key}`" + (" (required)" if key in needed else "")
            yield f"| {shown} | {_type(kind)} | {_cell(kind.get('description', ''))} |"
        yield ""


def _type(schema: dict[str, Any]) -> str:
    """A schema in words; named ones are links."""
    if name := schema.get("$ref", "").rpartition("/")[2]:
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(part) for part in schema[key]))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any JSON value")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map to {_type(schema['additionalProperties'])}"
    limits = {
        "minimum": "at least {}",
        "exclusiveMinimum": "more than {}",
        "maximum": "at most {}",
        "maxLength": "at most {} characters",
    }
    told = [text.format(schema[key]) for key, text in limits.items() if key in schema]
    return f"{kind} ({', '.join(told)})" if told else str(kind)


def _cell(text: str) -> str:
    """Text inside a table's cell: in one line, and no column of its own."""
    return " ".join(text.split()).replace("|", "\\|")

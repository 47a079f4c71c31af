"""`tilewright strategies`: what is installed, and what each may be told."""

from __future__ import annotations

import msgspec

from service.cli.output import JsonFlag, print_json, print_table, print_text
from worker.compiler.descriptors import StrategyDescriptor, installed


def strategies(as_json: JsonFlag = False) -> None:
    """List the installed strategies with their options."""
    found, broken = installed()
    rows = [
        {
            "name": one.name,
            "version": one.version,
            "package": one.distribution,
            "options": _options(one),
            "what": one.help,
        }
        for one in found.values()
    ]
    if as_json:
        print_json({
            "strategies": rows,
            "broken": [{"entry_point": b.entry_point, "reason": b.reason} for b in broken],
        })  # fmt: skip
        return
    print_table(("name", "version", "package", "what"), rows)
    for one in found.values():
        for name, allowed in _options(one).items():
            print_text(f"{one.name}.{name}: {allowed}")
    for plugin in broken:
        print_text(f"cannot be loaded: {plugin.entry_point}: {plugin.reason}")


def _options(descriptor: StrategyDescriptor) -> dict[str, str]:
    """What every option may be, in words, its default first."""
    schema = msgspec.json.schema(descriptor.options)
    kinds = schema["$defs"]
    found: dict[str, str] = {}
    for name, field in kinds[descriptor.options.__name__]["properties"].items():
        kind = field.get("$ref", "").rpartition("/")[2]
        values = kinds[kind].get("enum", [kind]) if kind else [field.get("type", "any")]
        default = msgspec.to_builtins(getattr(descriptor.options(), name))
        others = [str(value) for value in values if value != default]
        found[name] = f"{default} (default), {', '.join(others)}"
    return found

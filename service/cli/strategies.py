"""`tilewright strategies`: what is installed, and what each may be told."""

from __future__ import annotations

from service.cli.output import JsonFlag, print_json, print_table, print_text
from worker.compiler.descriptors import installed


def strategies(as_json: JsonFlag = False) -> None:
    """List the installed strategies with their options."""
    found, broken = installed()
    rows = [
        {
            "name": one.name,
            "version": one.version,
            "package": one.distribution,
            "options": one.option_words,
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
        for name, allowed in one.option_words.items():
            print_text(f"{one.name}.{name}: {allowed}")
    for plugin in broken:
        print_text(f"cannot be loaded: {plugin.entry_point}: {plugin.reason}")

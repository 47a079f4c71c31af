"""`hardware import-energy`: energies that another tool estimated, as part of a spec."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.failures import Failure
from service.cli.output import JsonFlag, note, print_json, print_text
from service.orders.order import hardware_document

if TYPE_CHECKING:
    from worker.compiler.machine.energy_import import EngineSource, LevelSource


def import_energy(
    spec: Annotated[str, typer.Argument(help="Preset name, or a YAML or JSON spec file.")],
    table: Annotated[
        Path, typer.Argument(help="Accelergy's ERT, or costs by component from hwcomponents.")
    ],
    level: Annotated[
        list[str] | None,
        typer.Option(
            "--level",
            metavar="LEVEL=COMPONENT:BITS",
            help="A memory, its component, and what one access of that moves; repeatable.",
        ),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            metavar="ENGINE.DTYPE=COMPONENT:ACTION",
            help="An engine's operation in a number format, and the action it is; repeatable.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="What the new spec is called.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write it; else to stdout.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print a spec with energies of an Accelergy or hwcomponents table, each with its evidence."""
    import yaml

    from worker.compiler.machine import canonical_document, load_machine, parse_document
    from worker.compiler.machine.energy_import import read_energy_table, with_energies

    if not level and not engine:
        raise Failure("TW-OPT-001", "nothing to import: give --level or --engine")
    document = canonical_document(resolved_document(spec))
    found = read_energy_table(parse_document(table.read_text(encoding="utf-8")), table.name)
    changed = with_energies(
        document, found, [_level(text) for text in level or []],
        [_engine(text) for text in engine or []],
    )  # fmt: skip
    if name is not None:
        changed["name"] = name
    load_machine(changed)
    text = yaml.safe_dump(changed, sort_keys=False, allow_unicode=True, width=100)
    if output is not None:
        output.write_text(text, encoding="utf-8")
        note(f"wrote {output}")
    elif as_json:
        print_json(changed)
    else:
        print_text(text)


def resolved_document(spec: str) -> dict[str, object]:
    """A preset's document by its name, or a file's."""
    from worker.compiler.machine import preset_document

    given = hardware_document(spec)
    return preset_document(spec) if set(given) == {"preset"} else given


def _level(text: str) -> LevelSource:
    from worker.compiler.machine.energy_import import LevelSource

    match = re.fullmatch(r"([^=]+)=(.+):(\d+)", text)
    if match is None:
        raise Failure("TW-OPT-001", f"--level {text}: write LEVEL=COMPONENT:BITS")
    return LevelSource(match[1], match[2], int(match[3]))


def _engine(text: str) -> EngineSource:
    from worker.compiler.machine.energy_import import EngineSource

    match = re.fullmatch(r"([^=]+)\.(\w+)=(.+):([\w-]+)", text)
    if match is None:
        raise Failure("TW-OPT-001", f"--engine {text}: write ENGINE.DTYPE=COMPONENT:ACTION")
    return EngineSource(match[1], match[2], match[3], match[4])

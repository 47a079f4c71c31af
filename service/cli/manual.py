"""`hardware manual`: what a spec allows, in words."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.output import JsonFlag, print_json, print_text
from service.orders.order import hardware_document


def manual(
    spec: Annotated[str, typer.Argument(help="Preset name, or a YAML or JSON spec file.")],
    as_json: JsonFlag = False,
) -> None:
    """Print which operators, composites and regions a machine runs, as Markdown."""
    from worker.compiler.partition.manual import manual_document, manual_markdown
    from worker.job.hardware import resolve_machine

    machine = resolve_machine(hardware_document(spec))
    if as_json:
        print_json(manual_document(machine))
    else:
        print_text(manual_markdown(machine).rstrip("\n"))

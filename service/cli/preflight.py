"""`preflight`: every gap, fallback and fit problem in one pass, without a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.compiling import HardwareOption, SymbolsOption
from service.cli.exits import Exit
from service.cli.inputs import hardware_argument, model_argument, symbol_settings
from service.cli.output import JsonFlag, cell, print_fields, print_json, print_table, print_text


def preflight(
    model: Annotated[Path, typer.Argument(help="An .onnx file, or a .zip with external data.")],
    hardware: HardwareOption,
    symbols: SymbolsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Say what would go to the host or not fit, and why; exit 4 when the model cannot compile."""
    from worker.preflight import preflight as check

    from worker.compiler.options import CompileOptions

    options = CompileOptions.from_json({"symbols": symbol_settings(symbols or [])})
    found: dict[str, Any] = dict(check(model_argument(model), hardware_argument(hardware), options))
    if as_json:
        print_json(found)
    else:
        _show(found)
    if found.get("feasible") is False:
        raise typer.Exit(Exit.INFEASIBLE)


def _show(found: dict[str, Any]) -> None:
    """Print scalars as fields and every list of objects as a table under its name."""
    scalars = {k: v for k, v in found.items() if not isinstance(v, list | dict)}
    print_fields(scalars, list(scalars))
    for name, value in found.items():
        if isinstance(value, dict):
            print_text(f"{name}:")
            print_fields(value, list(value))
        elif isinstance(value, list):
            print_text(f"{name}: {len(value)}")
            if value and all(isinstance(row, dict) for row in value):
                columns = list(dict.fromkeys(key for row in value for key in row))
                print_table(columns, value)
            else:
                for row in value:
                    print_text(f"  {cell(row)}")

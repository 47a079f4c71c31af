"""`preflight`: every gap, fallback and fit problem in one pass, without a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.asking import asked
from service.cli.compiling import HardwareOption, SymbolsOption
from service.cli.exits import Exit
from service.cli.failures import exit_code_of
from service.cli.inputs import symbol_settings
from service.cli.output import (
    JsonFlag,
    print_fields,
    print_json,
    print_problem,
    print_table,
    print_text,
)
from service.orders.order import existing_model, hardware_document


def preflight(
    model: Annotated[Path, typer.Argument(help="An .onnx file, or a .zip with its external data.")],
    hardware: HardwareOption,
    symbols: SymbolsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Say what would go to the host or not fit, and why.

    Exit 3 when an input is rejected, 4 when something does not fit; host fallbacks are reported
    with exit 0, because such a model compiles.
    """
    from service.orders.beside import with_external_data
    from worker.compiler.options import CompileOptions

    options = CompileOptions.from_json({"symbols": symbol_settings(symbols or [])})
    with with_external_data(existing_model(model)) as path:
        source = path.resolve()
        request = {
            "model": str(source),
            "hardware": hardware_document(hardware),
            "options": options.to_json(),
        }
        found: dict[str, Any] = asked(
            "worker.children.preflight_child", request, [source], "preflight"
        )
    if as_json:
        print_json(found)
    else:
        _show(found)
    if found["problems"]:
        raise typer.Exit(exit_code_of(found["problems"][0]))
    if found["shortfalls"]:
        raise typer.Exit(Exit.INFEASIBLE)


def _show(found: dict[str, Any]) -> None:
    for problem in found["problems"]:
        print_problem(problem)
    if found["model"]:
        print_fields(found["model"], ("nodes", "params", "macs", "nodes_by_op"))
    if found["problems"]:
        return  # the pair was not examined: a count of zero fallbacks would be a claim
    print_text(f"operators on the host: {len(found['fallbacks'])}")
    if found["fallbacks"]:
        print_table(("node", "op_type", "reason_code", "reason"), found["fallbacks"])
    print_text(f"operators that do not fit: {len(found['shortfalls'])}")
    if found["shortfalls"]:
        print_table(
            ("node", "op_type", "resource", "demand", "bound", "unit", "levers"),
            found["shortfalls"],
        )
    if found["unlock"]:
        print_text("what would help most, if the accelerator took it:")
        print_table(("op_type", "kind", "num_nodes", "saves_s", "sentence"), found["unlock"])
    if found["unverifiable"]:
        print_text(f"a compile will not be verified, because {found['unverifiable']}")
    if found["guesses"]:
        print_text(f"guessed numbers in the hardware spec: {len(found['guesses'])}")

"""`validate`: published figures of silicon against the simulation."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.connection import DataDirOption, load_settings
from service.cli.exits import Exit
from service.cli.failures import Told
from service.cli.output import JsonFlag, note, print_json, print_table, print_text

if TYPE_CHECKING:
    from worker.validation.figures import Network, Published, Row
    from worker.validation.outcome import Outcome


def validate(
    names: Annotated[list[str] | None, typer.Argument(help="Rows; by default all.")] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="A file of figures of your own.")
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option("--models", help="Folder with the .onnx files that rows of networks name."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the page (Markdown) here.")
    ] = None,
    list_rows: Annotated[bool, typer.Option("--list", help="Show the rows, run nothing.")] = False,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare published figures with the simulation; exit 1 where a ratio leaves its band."""
    from worker.validation.outcome import Validation
    from worker.validation.page import document, page
    from worker.validation.published import chosen

    published = _published(figures)
    rows = chosen(published.rows, names or [])
    if list_rows:
        _list(rows, as_json=as_json)
        return
    outcomes = tuple(_measured(row, models, data_dir) for row in rows)
    found = Validation(outcomes, published.mean, len(rows) == len(published.rows))
    if output is not None:
        output.write_text(page(found), encoding="utf-8")
    if as_json:
        print_json(document(found))
    elif output is None:
        print_text(page(found))
    for sentence in found.failures:
        note(sentence)
    if found.failures:
        raise typer.Exit(Exit.GATE_FAILED)


def _published(path: Path | None) -> Published:
    from worker.compiler.errors import InputError
    from worker.validation.published import read_figures, shipped

    if path is None:
        return shipped()
    if not path.is_file():
        raise InputError("TW-CLI-001", f"{path}: there is no such file of figures")
    return read_figures(path.read_text(encoding="utf-8", errors="replace"))


def _list(rows: tuple[Row, ...], *, as_json: bool) -> None:
    items = [
        {"name": r.id, "machine": r.machine_name, "published": f"{r.figure:g} {r.unit}",
         "role": str(r.role)}
        for r in rows
    ]  # fmt: skip
    if as_json:
        print_json({"items": items})
    else:
        print_table(("name", "machine", "published", "role"), items)


def _measured(row: Row, models: Path | None, data_dir: Path | None) -> Outcome:
    from worker.validation.figures import Network
    from worker.validation.measure import measure_operator, measure_report
    from worker.validation.outcome import Outcome

    if not isinstance(row.work, Network):
        return measure_operator(row)
    if models is None:
        return Outcome(row, None, "--models DIR names the folder of its model")
    model = models / f"{row.work.model}.onnx"
    if not model.is_file():
        return Outcome(row, None, f"there is no {model.name} in the folder of models")
    return measure_report(row, _report(row, row.work, model, data_dir))


def _report(row: Row, network: Network, model: Path, data_dir: Path | None) -> dict[str, Any]:
    """Compile as `compile` does, in the sandbox.

    Raises:
        Told: the compile was refused.
    """
    from service.cli.progress import ProgressView
    from service.orders.here import compile_here
    from service.orders.order import Order
    from worker.validation.measure import network_options
    from worker.validation.published import hardware_of

    with TemporaryDirectory(prefix="tilewright-validate-") as folder:
        options = network_options(network).to_json()
        order = Order(model, hardware_of(row), options, Path(folder))
        with ProgressView(row.id, quiet=True) as view:
            told = compile_here(order, load_settings(data_dir), view)
        if told["error"] is not None:
            raise Told(told["error"])
        return dict(json.loads((Path(folder) / "report.json").read_bytes()))

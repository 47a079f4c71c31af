"""`model`: upload, list, look at models; a copy without the weights' values; a training step."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.connection import DataDirOption, ServerOption, connect
from service.cli.failures import Failure
from service.cli.output import JsonFlag, note, print_fields, print_found, print_items, print_json
from service.cli.progress import ProgressView
from service.cli.training import train
from service.orders.order import existing_model

app = typer.Typer(help="Models of the service.", no_args_is_help=True)
app.command("train")(train)
FIELDS = ("id", "name", "kind", "sha256", "size_bytes", "created", "summary")
KEEP_ELEMS = 64
"""Smaller initializers are shapes, axes, scales and limits: the model needs their values."""


@app.command("push")
def push(
    path: Annotated[Path, typer.Argument(help="An .onnx file, or a .zip with external data.")],
    name: Annotated[str | None, typer.Option(help="Name to show; the file's by default.")] = None,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Upload a model; large files go in chunks that survive a broken connection."""
    existing_model(path)
    with (
        connect(server, data_dir) as client,
        ProgressView(path.name, quiet=as_json) as view,
    ):
        found = client.upload_model(path, name=name, progress=view.upload)
    print_found(found, _show, as_json=as_json)


def _show(model: dict[str, Any]) -> None:
    print_fields(model, FIELDS)


@app.command("ls")
def ls(
    limit: Annotated[int, typer.Option(min=1)] = 50,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List models, newest first."""
    with connect(server, data_dir) as client:
        found = list(islice(client.models(), limit))
    print_items(found, ("id", "name", "kind", "size_bytes", "sha256"), as_json=as_json)


@app.command("show")
def show(
    model: Annotated[str, typer.Argument(help="Model id.")],
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one model."""
    with connect(server, data_dir) as client:
        found = client.get(f"/v1/models/{model}")
    print_found(found, _show, as_json=as_json)


@app.command("example")
def example(
    output: Annotated[Path, typer.Argument(help="Where to write the model.")],
    inputs: Annotated[
        Path | None, typer.Option("--input", help="Also write seeded inputs for it as an .npz.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the inputs.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Write the small model that ships with Tilewright, to try the other verbs on."""
    from service.cli.demo import EXAMPLE

    output.write_bytes(EXAMPLE.read_bytes())
    if inputs is not None:
        from service.cli.example_inputs import write_inputs

        write_inputs(EXAMPLE, inputs, seed=seed)
    if as_json:
        print_json({"output": str(output), "inputs": None if inputs is None else str(inputs)})
    else:
        note(f"wrote {output}" + ("" if inputs is None else f" and {inputs}"))


@app.command("strip")
def strip(
    path: Annotated[Path, typer.Argument(help="An .onnx file.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the copy.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the replacement weights.")] = 0,
    names: Annotated[
        bool, typer.Option("--names", help="Replace names of nodes and tensors by numbers, too.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write a copy whose trained weights are replaced by seeded noise, to share with others.

    Shapes, types, operators, symbolic dimensions and small constants stay, so the copy compiles to
    the same schedules, and a gate on copies says what one on the models would.
    """
    from service.cli.stripping import strip_weights

    if existing_model(path).resolve() == output.resolve():
        raise Failure("TW-CLI-001", f"{output}: the copy would overwrite the model")
    replaced, kept = strip_weights(path, output, seed=seed, keep_elems=KEEP_ELEMS, names=names)
    if as_json:
        print_json({"output": str(output), "replaced": replaced, "kept": kept})
    else:
        note(f"{output}: replaced {replaced} weight tensors, kept {kept} small or integer ones")

"""`model train`, and what `compile --train` shares with it: one training step as an ONNX model."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.asking import asked_in, workplace
from service.cli.failures import Failure
from service.cli.inputs import symbol_settings
from service.cli.output import JsonFlag, note, print_json, print_table
from service.orders.beside import with_external_data
from service.orders.order import existing_model


@dataclass(frozen=True, slots=True)
class StepOrder:
    """What a training step is made of, and where it goes."""

    model: Path
    options: dict[str, Any]
    """JSON of the step's options."""
    symbols: dict[str, int]
    step: Path
    inputs: Path | None = None
    """Also write inputs of the first step here."""
    seed: int = 0


def write_step(order: StepOrder) -> dict[str, Any]:
    """Make the step in the sandbox, write it, and say how it is used.

    Raises:
        Told: the model or the options are refused.
    """
    with with_external_data(order.model) as model, workplace() as place:
        request = {
            "model": str(model.resolve()),
            "train": order.options,
            "symbols": order.symbols,
            "seed": None if order.inputs is None else order.seed,
            "out": str(place.out),
        }
        said: dict[str, Any] = asked_in(
            place, "worker.children.train_child", request, [model.resolve()], "training step"
        )
        _take(place.out, "step.onnx", order.step)
        if order.inputs is not None:
            _take(place.out, "inputs.npz", order.inputs)
    return said


def _take(folder: Path, name: str, target: Path) -> None:
    """Copy a file that the payload left, whole or not at all."""
    from worker.sandbox.payload import open_left

    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with open_left(folder, name) as made, part.open("wb") as kept:
        shutil.copyfileobj(made, kept)
    os.replace(part, target)


def train_settings(loss: str, pairs: list[str]) -> dict[str, Any]:
    """Read the repeated `--train-option NAME=VALUE`; `freeze` may be repeated.

    Raises:
        Failure: a pair has another form, or says `loss` again.
    """
    found: dict[str, Any] = {"loss": loss}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name or name == "loss" or (name in found and name != "freeze"):
            raise Failure(
                "TW-OPT-001",
                f"--train-option {pair}: expected NAME=VALUE, each name once",
                remedy="Write for example --train-option optimizer=adam.",
            )
        if name == "freeze":
            found.setdefault(name, []).append(value)
            continue
        try:
            read = json.loads(value)
        except ValueError:
            read = value
        found[name] = value if name in ("output", "target") else read
    return found


def train(
    path: Annotated[Path, typer.Argument(help="An .onnx file, or a .zip with external data.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the step.")],
    loss: Annotated[str, typer.Option(help="mse or cross-entropy, of labels and logits.")],
    optimizer: Annotated[
        str, typer.Option(help="sgd, adam, or none: the step's outputs are the gradients.")
    ] = "sgd",
    learning_rate: Annotated[
        float | None, typer.Option(help="0.01 for SGD, 0.001 for Adam by default.")
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="SGD's; none by default.")] = None,
    beta1: Annotated[float | None, typer.Option(help="Adam's, 0.9 by default.")] = None,
    beta2: Annotated[float | None, typer.Option(help="Adam's, 0.999 by default.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Adam's, 1e-8 by default.")] = None,
    loss_of: Annotated[
        str | None,
        typer.Option(help="Value that the loss is taken of; the only output by default."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Name of the input with targets; by default target, or labels."),
    ] = None,
    class_axis: Annotated[
        int | None, typer.Option(help="Axis of the classes in the logits; 1 by default.")
    ] = None,
    freeze: Annotated[
        list[str] | None,
        typer.Option(help="An initializer that stays as it is; repeatable.", metavar="NAME"),
    ] = None,
    symbols: Annotated[
        list[str] | None,
        typer.Option("--set", help="Bind a symbolic dimension; repeat.", metavar="NAME=N"),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--input",
            help="Also write inputs of the first step as an .npz: the model's parameters, the"
            " optimizer's first state, seeded data.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the data in --input; 0 by default.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write one training step of a forward model as a plain ONNX model.

    Its inputs are the model's, the target, the parameters and the optimizer's state; its outputs
    the loss and the next value of each: output NAME/next is input NAME of the next step.
    """
    if existing_model(path).resolve() in (output.resolve(), inputs and inputs.resolve()):
        raise Failure("TW-CLI-001", f"{path}: the step would overwrite the model")
    if seed is not None and inputs is None:
        raise Failure("TW-OPT-001", "--seed changes nothing without --input")
    options = {
        "loss": loss, "optimizer": optimizer, "learning_rate": learning_rate,
        "momentum": momentum, "beta1": beta1, "beta2": beta2, "epsilon": epsilon,
        "output": loss_of, "target": target, "class_axis": class_axis, "freeze": freeze or [],
    }  # fmt: skip
    order = StepOrder(path, options, symbol_settings(symbols or []), output, inputs, seed or 0)
    said = write_step(order)
    if as_json:
        print_json({"output": str(output), "inputs": inputs and str(inputs), **said})
        return
    print_table(
        ("kind", "input", "output", "dtype", "shape"),
        [*said["carried"], *({"kind": "gradient", **row} for row in said["gradients"]),
         *({"kind": "mask", **row} for row in said["masks"])],
    )  # fmt: skip
    note(
        f"wrote {output}: {said['nodes']} nodes; {said['step_macs']:,} multiply-accumulates,"
        f" {said['forward_macs']:,} of them forwards; it reads {said['target']!r} and gives"
        f" {said['loss']!r}"
    )
    if inputs is not None:
        note(f"wrote {inputs}: inputs of the first step")

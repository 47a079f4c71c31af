"""`explain` a code of the error catalogue, or a layer, and `version`."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer

from service.cli.explain_layer import explain_layer
from service.cli.failures import Failure
from service.cli.output import JsonFlag, print_fields, print_json, print_table, print_text


def explain(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE|layer",
            help="For example TW-SPEC-001; all codes when left out.  `layer N BUNDLE`: a kernel.",
        ),
    ] = None,
    index: Annotated[
        int | None, typer.Argument(metavar="N", help="Of the layer, as `layers` counts them.")
    ] = None,
    source: Annotated[
        Path | None, typer.Argument(metavar="BUNDLE|FOLDER", help="Where the layer is.")
    ] = None,
    directives: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Of a layer: what it takes as these directives have it; nothing is searched.",
        ),
    ] = None,
    what_if: Annotated[
        bool,
        typer.Option(help="Search the layer again with twice as much of each resource."),
    ] = True,
    as_json: JsonFlag = False,
) -> None:
    """Say what an error code means, or what a layer does and what holds it.

    `explain layer 3 out/`: the loop nest that runs, with what every line moves; what its cycles go
    to; what else its strategy offers; and what twice as much of each resource would bring.
    """
    if code == "layer":
        if index is None or source is None:
            raise Failure("TW-CLI-001", "explain layer needs N and a bundle: explain layer 3 out/")
        explain_layer(index, source, directives, asks=what_if, as_json=as_json)
        return
    if index is not None or directives is not None:
        raise Failure("TW-CLI-001", f"explain {code} takes nothing behind the code")
    from worker.compiler.error_catalog import ERROR_CATALOG

    if code is None:
        entries = [asdict(entry) for entry in ERROR_CATALOG.values()]
        if as_json:
            print_json({"items": entries})
        else:
            print_table(("code", "title", "fault", "exit_code", "remedy"), entries)
        return
    entry = ERROR_CATALOG.get(code.upper())
    if entry is None:
        raise Failure(
            "TW-SVC-001",
            f"{code} is not a code of the catalogue",
            remedy="`tilewright explain` without a code lists all of them.",
        )
    if as_json:
        print_json(asdict(entry))
        return
    print_text(f"{entry.code}: {entry.title}")
    print_fields(asdict(entry), ("fault", "stage", "status", "exit_code", "remedy"))


def package_version() -> str:
    """Give the version of the installed package."""
    try:
        return installed_version("tilewright")
    except PackageNotFoundError:
        return "0+source"


def version(as_json: JsonFlag = False) -> None:
    """Print the versions that decide results."""
    found = {
        "tilewright": package_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    for name in ("onnx", "onnxruntime", "numpy"):
        try:
            found[name] = installed_version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    if as_json:
        print_json(found)
    else:
        print_fields(found, list(found))

"""`explain` a code of the error catalogue, and `version`."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from service.cli.failures import Failure
from service.cli.output import JsonFlag, print_fields, print_json, print_table, print_text


def explain(
    code: Annotated[
        str | None, typer.Argument(help="For example TW-SPEC-001; all codes when left out.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say what an error code means, whose fault it is, and what to do."""
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

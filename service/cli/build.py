"""`build`: a bundle as a shared library for applications."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.connection import DataDirOption, load_settings
from service.cli.output import JsonFlag, note, print_json


def build(
    bundle: Annotated[Path, typer.Argument(help="A *.twb file.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for libmodel.so and what goes with it.")
    ],
    sources: Annotated[
        bool,
        typer.Option(
            "--sources", help="Leave the C sources in src/ instead, for another compiler."
        ),
    ] = False,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Build a bundle's kernels, weights and C runtime into one library.

    The folder gets libmodel.so, tilewright.h, its C interface, and host.onnx, the model with a
    custom operator per region: ONNX Runtime runs it once the library is registered.
    Kernels are generated from the schedules in the bundle and compiled in the sandbox.
    """
    from service.orders.building import BundleBuild, build_bundle

    made = build_bundle(BundleBuild(bundle, output, sources), load_settings(data_dir))
    if as_json:
        print_json({"folder": str(output), "files": list(made.files), **made.document})
        return
    shown = [name for name in made.files if not name.startswith("src/")]
    kinds = [*shown, *(["src/"] if sources else [])]
    note(f"wrote {', '.join(kinds)} to {output}: {len(made.document['regions'])} regions")
    if made.document["needs_onnxruntime"]:
        note(made.document["needs_onnxruntime"])
    if made.document["regions_in_control_flow"]:
        note(
            f"{made.document['regions_in_control_flow']} regions inside control flow are left out:"
            " loops and branches run in ONNX Runtime, whole"
        )

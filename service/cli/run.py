"""`run`: execute a bundle on real inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.arrays import write_npz
from service.cli.connection import DataDirOption, load_settings
from service.cli.failures import Failure
from service.cli.output import JsonFlag, note, print_json


def run(
    bundle: Annotated[Path, typer.Argument(help="A *.twb file.")],
    inputs: Annotated[Path, typer.Option("--input", help="An .npz with one array per input.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the .npz.")],
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a bundle: host parts in ONNX Runtime, accelerator parts through the compiled kernels."""
    import zipfile

    import numpy as np

    from worker.compiler.package.runtime import run_bundle

    for path in (bundle, inputs):
        if not path.is_file():
            raise Failure("TW-CLI-001", f"{path}: there is no such file")
    try:
        with np.load(inputs, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, zipfile.BadZipFile, AttributeError) as error:
        raise Failure("TW-RUN-002", f"{inputs} is not an .npz of plain arrays: {error}") from error
    results = run_bundle(bundle, arrays, load_settings(data_dir).build_dir)
    write_npz(output, results)
    shapes = {n: {"shape": list(a.shape), "dtype": str(a.dtype)} for n, a in results.items()}
    if as_json:
        print_json({"output": str(output), "arrays": shapes})
    else:
        note(f"wrote {output}: " + ", ".join(f"{n} {v['shape']}" for n, v in shapes.items()))

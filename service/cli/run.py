"""`run`: execute a bundle on real inputs."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from service.cli.arrays import write_npz
from service.cli.connection import DataDirOption, load_settings
from service.cli.failures import Failure
from service.cli.output import JsonFlag, note, print_json
from service.cli.profiles import print_profiles, profile_document


def run(
    bundle: Annotated[Path, typer.Argument(help="A *.twb file.")],
    inputs: Annotated[Path, typer.Option("--input", help="An .npz with one array per input.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the .npz.")],
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Print where the time goes: launch, transfer, execute; by call."
        ),
    ] = False,
    repeat: Annotated[
        int,
        typer.Option("--repeat", min=1, help="Run N times; engines are initialised in the first."),
    ] = 1,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a bundle: host parts in ONNX Runtime, accelerator parts through the compiled kernels.

    A profiled run leaves out the checks (poisoned memory) that other runs make.
    """
    import zipfile

    import numpy as np

    from worker.compiler.package.runtime import load_bundle

    for path in (bundle, inputs):
        if not path.is_file():
            raise Failure("TW-CLI-001", f"{path}: there is no such file")
    try:
        with np.load(inputs, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, zipfile.BadZipFile, AttributeError) as error:
        raise Failure("TW-RUN-002", f"{inputs} is not an .npz of plain arrays: {error}") from error
    runner = load_bundle(
        bundle, load_settings(data_dir).build_dir, poison=not profile, clock=perf_counter
    )
    profiles = []
    results: dict[str, Any] = {}
    for _ in range(repeat):
        results = runner.run(arrays)
        found = runner.profile()
        if profile and found is not None:
            profiles.append(found)
    write_npz(output, results)
    shapes = {n: {"shape": list(a.shape), "dtype": str(a.dtype)} for n, a in results.items()}
    document: dict[str, Any] = {"output": str(output), "arrays": shapes}
    if profile:
        program = runner.model.program
        document["profiles"] = [profile_document(each, program) for each in profiles]
    if as_json:
        print_json(document)
        return
    note(f"wrote {output}: " + ", ".join(f"{n} {v['shape']}" for n, v in shapes.items()))
    if profile:
        print_profiles(document["profiles"])

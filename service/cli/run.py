"""`run`: execute a bundle on real inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.connection import DataDirOption, load_settings
from service.cli.failures import Failure
from service.cli.output import JsonFlag, note, print_json
from service.cli.profiles import print_profiles

_NOTES = {
    "regenerated": "the bundle was made by other versions: the kernels that ran were generated"
    " here and not compared with its text",
    "engines": "no kernels ran: the regions ran on what their images were written for",
    "trusted": "the kernels that ran are the bundle's own text (--trust)",
}


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
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Run the C text of the bundle as it came, instead of generating it anew.",
        ),
    ] = False,
    interpret: Annotated[
        int | None,
        typer.Option(
            "--interpret",
            metavar="SEED",
            min=0,
            help="Execute the regions' instruction streams instead of kernels, instruction by"
            " instruction, in an order that they allow, drawn by this seed. Slow.",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="What all regions run on: `kernels`, or an installed engine. Else what the targets"
            " of the hardware name, which is `kernels` where they name none.",
        ),
    ] = "",
    link: Annotated[
        Path | None,
        typer.Option(
            "--link", help="The kernel library that the bundle was linked with.", metavar="LIBRARY"
        ),
    ] = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a bundle: host parts in ONNX Runtime, accelerator parts through the compiled kernels.

    Kernels are generated from the schedules in the bundle; its own C text is compared with that
    and never run, unless --trust says so. All of it happens in the sandbox (see `doctor`).
    A profiled run leaves out the checks (poisoned memory) that other runs make.
    """
    from service.orders.running import BundleRun, run_bundle
    from worker.job.arrays import write_npz

    if interpret is not None and (trust or profile or engine):
        raise Failure(
            "TW-CLI-001", "--interpret runs no kernels: neither --trust, --profile nor --engine"
        )
    asked = BundleRun(
        bundle, inputs, repeat=repeat, profile=profile, trust=trust, interpret=interpret,
        engine=engine, link=link,
    )  # fmt: skip
    ran = run_bundle(asked, load_settings(data_dir))
    write_npz(output, ran.outputs)
    shapes = {n: {"shape": list(a.shape), "dtype": str(a.dtype)} for n, a in ran.outputs.items()}
    document: dict[str, Any] = {"output": str(output), "arrays": shapes, "kernels": ran.origin}
    document["engines"] = ran.engines
    if profile:
        document["profiles"] = ran.profiles
    if as_json:
        print_json(document)
        return
    note(f"wrote {output}: " + ", ".join(f"{n} {v['shape']}" for n, v in shapes.items()))
    others = [name for name in ran.engines if name != "kernels"]
    if others:
        note(f"regions ran on {', '.join(ran.engines)}")
    if ran.origin in _NOTES:
        note(_NOTES[ran.origin])
    if profile:
        print_profiles(ran.profiles)

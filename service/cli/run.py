"""`run`: execute a bundle on real inputs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from service.cli.connection import DataDirOption, load_settings
from service.cli.failures import Failure, Told
from service.cli.output import JsonFlag, note, print_json
from service.cli.profiles import print_profiles

if TYPE_CHECKING:
    from service.settings import Settings

_NOTES = {
    "regenerated": "the bundle was made by other versions: the kernels that ran were generated"
    " here and not compared with its text",
    "trusted": "the kernels that ran are the bundle's own text (--trust)",
}
_ORIGINS = ("compared", *_NOTES)


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
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a bundle: host parts in ONNX Runtime, accelerator parts through the compiled kernels.

    Kernels are generated from the schedules in the bundle; its own C text is compared with that
    and never run, unless --trust says so. All of it happens in the sandbox (see `doctor`).
    A profiled run leaves out the checks (poisoned memory) that other runs make.
    """
    from worker.arrays import write_npz

    for path in (bundle, inputs):
        if not path.is_file():
            raise Failure("TW-CLI-001", f"{path}: there is no such file")
    order = {
        "bundle": str(bundle.resolve()),
        "inputs": str(inputs.resolve()),
        "profile": profile,
        "repeat": repeat,
        "trust": trust,
    }
    answer, results = _run_in_sandbox(order, bundle.stat().st_size, load_settings(data_dir))
    write_npz(output, results)
    shapes = {n: {"shape": list(a.shape), "dtype": str(a.dtype)} for n, a in results.items()}
    document: dict[str, Any] = {
        "output": str(output),
        "arrays": shapes,
        "kernels": answer["origin"],
    }
    if profile:
        document["profiles"] = answer["profiles"]
    if as_json:
        print_json(document)
        return
    note(f"wrote {output}: " + ", ".join(f"{n} {v['shape']}" for n, v in shapes.items()))
    if answer["origin"] in _NOTES:
        note(_NOTES[answer["origin"]])
    if profile:
        print_profiles(document["profiles"])


def _run_in_sandbox(
    order: dict[str, Any], bundle_bytes: int, settings: Settings
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the payload answers, and the arrays it left: read as plain arrays, nothing else."""
    import zipfile

    from worker.asking import Died, Refused, ask
    from worker.payload import Workplace, open_left
    from worker.sandbox import End, Limits
    from worker.wire import ProtocolError

    memory = settings.memory_base_bytes + int(settings.memory_per_model_byte * bundle_bytes)
    with tempfile.TemporaryDirectory(prefix="tilewright-run-") as folder:
        place = Workplace(Path(folder).resolve())
        place.create()
        request = {
            **order,
            "output": str(place.out / "out.npz"),
            "build_dir": str(place.build),
        }
        try:
            answer = ask(
                "worker.run_child",
                request,
                place,
                limits=Limits(
                    settings.wall_limit_s,
                    memory,
                    settings.file_limit_bytes,
                    settings.process_limit,
                    settings.output_limit_bytes,
                ),
                choice=settings.isolation,
                search_path=settings.child_path,
                hidden=settings.data_dir,
                read_only=(Path(order["bundle"]), Path(order["inputs"])),
            )
            with open_left(place.out, "out.npz") as file:
                results = _plain_arrays(file)
        except Died as death:
            limit = f" of {settings.wall_limit_s:g} s" if death.report.end is End.WALL else ""
            raise Failure("TW-RUN-006", f"the bundle's run: {death}{limit}") from death
        except (ProtocolError, ValueError, zipfile.BadZipFile, EOFError, MemoryError) as error:
            raise Failure("TW-RUN-006", f"the run left no plain arrays: {error}") from error
        except Refused as refusal:
            raise Told(refusal.problem) from refusal
    if answer.get("origin") not in _ORIGINS or not isinstance(answer.get("profiles"), list):
        raise Failure("TW-RUN-006", "the run answered nonsense")
    return answer, results


def _plain_arrays(file: BinaryIO) -> dict[str, Any]:
    """The arrays of an .npz that a payload wrote.  Packed ones are refused: they may be vast.

    Raises:
        ValueError, EOFError, BadZipFile: it is no such file.
    """
    import zipfile

    import numpy as np

    with zipfile.ZipFile(file) as archive:
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
            raise ValueError("an array is packed")
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}

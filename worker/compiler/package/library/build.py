"""A bundle to `libmodel.so`, with what an application needs beside it."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from worker.compiler.errors import InputError
from worker.compiler.package.build import (
    FLAGS,
    compile_units,
    compile_with,
    find_compiler,
    flags_for,
    link_shared,
)
from worker.compiler.package.kernel_library import linked_of
from worker.compiler.package.library.parts import LibraryModel
from worker.compiler.package.library.sources import (
    PUBLIC_HEADER,
    RUNTIME_SOURCES,
    TABLES_SOURCE,
    write_sources,
)
from worker.compiler.package.manifest import HOST_GRAPH_NAME
from worker.compiler.package.runtime import OpenBundle

LIBRARY_NAME = "libmodel.so"
SOURCES_NAME = "src"
_HIDDEN = "-fvisibility=hidden"
"""Libraries of several models in one process keep to themselves."""
_RUNTIME_FLAGS = (*(f for f in FLAGS if not f.startswith("-march")), _HIDDEN)


@dataclass(frozen=True, slots=True)
class BuiltLibrary:
    """What `build_into` left in a folder."""

    library: LibraryModel
    files: tuple[str, ...]
    """Relative to the folder."""


def build_into(
    bundle: OpenBundle, folder: Path, build_dir: Path, *, sources_only: bool = False,
    compiler: Path | None = None, jobs: int = 2,
) -> BuiltLibrary:  # fmt: skip
    """Build the library of a bundle into `folder`, with its header and the bundle's `host.onnx`.

    `sources_only` leaves the C sources in `src/` instead, for another compiler.

    Raises:
        InputError: as `write_sources`; TW-LIB-010, the kernels call a vendor's library.
        CompilerError: TW-VERIFY-002 without a C compiler.
    Cost: one compiler run per translation unit, `jobs` at a time; memory for the weights.
    """
    linked = linked_of(bundle.manifest.toolchain)
    if linked is not None:
        raise InputError(
            "TW-LIB-010",
            f"the kernels of the bundle call {linked.name} {linked.version}, which no library of a"
            " bundle holds: compile without --link, or run it with `tilewright run --link`",
            actual=linked.name,
        )
    files: list[str] = []
    build_dir.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="library-", dir=build_dir))
    try:
        made = write_sources(bundle, work)
        if sources_only:
            shutil.copytree(work, folder / SOURCES_NAME)
            files += sorted(
                str(p.relative_to(folder))
                for p in (folder / SOURCES_NAME).rglob("*")
                if p.is_file()
            )
        else:
            _compile(work, made.kernels, made.regions, bundle, compiler, jobs, folder)
            files.append(LIBRARY_NAME)
        shutil.copyfile(work / PUBLIC_HEADER, folder / PUBLIC_HEADER)
        files.append(PUBLIC_HEADER)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if any(member.name == HOST_GRAPH_NAME for member in bundle.manifest.members):
        (folder / HOST_GRAPH_NAME).write_bytes(bundle.read(HOST_GRAPH_NAME))
        files.append(HOST_GRAPH_NAME)
    elif made.library.parts[0].refusal is not None:
        raise InputError(
            "TW-LIB-010",
            f"the bundle has no {HOST_GRAPH_NAME} and the model has parts on the host: an older"
            " version made the bundle, the host's weights are more than one file holds, or 4-bit"
            " floats pass between host and accelerator",
            pointer=f"/{HOST_GRAPH_NAME}",
        )
    return BuiltLibrary(made.library, tuple(files))


def _compile(
    work: Path, kernels: tuple[str, ...], regions: tuple[str, ...], bundle: OpenBundle,
    compiler: Path | None, jobs: int, folder: Path,
) -> None:  # fmt: skip
    cc = compiler or find_compiler()
    flags = (*flags_for(cc), _HIDDEN)
    units = work / "units"
    units.mkdir()
    texts = {name: bundle.kernels[name] for name in kernels}
    objects = compile_units(texts, bundle.header, units, cc, flags, jobs)
    own = [work / name for name in (*regions, TABLES_SOURCE)]
    objects += compile_with(cc, (*flags, f"-I{work}"), own, jobs)
    objects += compile_with(cc, _RUNTIME_FLAGS, [work / name for name in RUNTIME_SOURCES], jobs)
    built = work / LIBRARY_NAME
    link_shared(cc, objects, built, ("-lpthread",))
    shutil.copyfile(built, folder / LIBRARY_NAME)

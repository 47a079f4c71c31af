"""The C sources of a library in a folder: kernels, regions, tables, weights and the runtime."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from worker.compiler.codegen.region_driver import (
    REGIONS_HEADER_NAME,
    generate_region,
    generate_regions_header,
)
from worker.compiler.codegen.runtime_header import HEADER_NAME
from worker.compiler.errors import InputError
from worker.compiler.package.bundle import program_digest
from worker.compiler.package.library.parts import LibraryModel, library_model
from worker.compiler.package.library.tables import tables_text
from worker.compiler.package.region_code import driver_of
from worker.compiler.package.runtime import OpenBundle, load_weights
from worker.compiler.package.stream.codec import decode_stream

PUBLIC_HEADER = "tilewright.h"
RUNTIME_SOURCES = ("tw_library.c", "tw_onnxruntime.c", "tw_sha256.c", "tw_weights.c")
"""Compiled for any processor of the architecture: one of them checks which this is."""
TABLES_SOURCE = "tw_tables.c"
_HEADERS = (PUBLIC_HEADER, "tw_library.h", "tw_onnxruntime.h", "tw_features.h")
_WEIGHTS = "tw_weights.bin"
_MOST_WEIGHT_BYTES = (1 << 31) - (1 << 26)
"""Beyond it, code of the usual model does not reach its data."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What was written, relative to its folder."""

    library: LibraryModel
    kernels: tuple[str, ...]
    """Names; each has a file in `kernels/`."""
    regions: tuple[str, ...]
    """Files with the regions' functions."""


def write_sources(bundle: OpenBundle, folder: Path) -> Sources:
    """Write everything that a C compiler needs into an empty folder.

    `cc -std=c11 -O2 -fPIC -shared -I. *.c kernels/*.c regions/*/*.c -lm -lpthread` in it makes the
    library; kernels expect the flags of `build.FLAGS` that keep the meaning of expressions.
    Nested programs are left out: control flow runs in ONNX Runtime.

    Raises:
        InputError: TW-RUN-001, documents of the bundle disagree; TW-LIB-010, there is no region, or
            there are more weights than a library holds.
    Cost: memory for the weights.
    """
    digest = program_digest((m.name, m.sha256) for m in bundle.manifest.members)
    rows = [row for row in bundle.manifest.regions if not row.program]
    if not rows:
        raise InputError(
            "TW-LIB-010", "no region of the model is on the accelerator: there is nothing to build"
        )
    codes = [decode_stream(bundle.read(row.stream)) for row in rows]
    library = library_model(bundle.program.model, digest, codes)
    if library.weight_bytes > _MOST_WEIGHT_BYTES:
        raise InputError(
            "TW-LIB-010", "the weights are more than a library holds", pointer="/weights",
            limit=_MOST_WEIGHT_BYTES, actual=library.weight_bytes,
        )  # fmt: skip
    weights = bytearray(library.weight_bytes)
    load_weights(bundle.archive, bundle.program, memoryview(weights))
    (folder / _WEIGHTS).write_bytes(weights)
    for name in (*RUNTIME_SOURCES, *_HEADERS):
        (folder / name).write_text(_shipped(name), encoding="utf-8")
    (folder / HEADER_NAME).write_text(bundle.header, encoding="utf-8")
    tables = tables_text(library, sha256(weights).hexdigest())
    (folder / TABLES_SOURCE).write_text(tables, encoding="utf-8")
    kernels = tuple(dict.fromkeys(name for code in codes for name in code.kernels))
    (folder / "kernels").mkdir()
    for name in kernels:
        (folder / "kernels" / f"{name}.c").write_text(bundle.kernels[name], encoding="utf-8")
    drivers = [driver_of(code) for code in codes]
    regions = []
    for k, driver in enumerate(drivers):
        regions.append(f"regions/{k}/region.c")
        (folder / "regions" / str(k)).mkdir(parents=True)
        (folder / regions[-1]).write_text(generate_region(driver), encoding="utf-8")
    header = generate_regions_header(drivers, "TW_REGIONS_H")
    (folder / "regions" / REGIONS_HEADER_NAME).write_text(header, encoding="utf-8")
    return Sources(library, kernels, tuple(regions))


@cache
def _shipped(name: str) -> str:
    return files("worker.compiler.package.library").joinpath(name).read_text(encoding="utf-8")

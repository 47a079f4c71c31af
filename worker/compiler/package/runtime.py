"""Loading models to run: from their pieces, or from a bundle whose digests are checked."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from worker.compiler.isa.program import HostCall
from worker.compiler.package.accelerator_module import AcceleratorModule, programs_by_target
from worker.compiler.package.archive import open_archive, open_member, read_member
from worker.compiler.package.build import build_library
from worker.compiler.package.bundle import DOCUMENT_LIMIT_BYTES, check_digests, read_manifest
from worker.compiler.package.executable import Array, ExecutableModel, ProgramContents
from worker.compiler.package.executor import ModelRunner
from worker.compiler.package.manifest import (
    PROGRAM_NAME,
    GraphDocument,
    body_prefix,
    decode,
    executable_of,
    graph_name,
    host_name,
    kernel_file,
    num_programs,
)
from worker.compiler.package.profile import Clock
from worker.compiler.package.weights import WEIGHTS_NAME, read_weights

__all__ = ["ModelRunner", "load_bundle", "load_program", "run_bundle"]


def load_program(
    contents: ProgramContents,
    library: Path,
    poison: bool = True,
    threads: int = 1,
    clock: Clock | None = None,
) -> ModelRunner:
    """A runner with its weights loaded; nested programs share its engines.

    `poison` fills memory before it is written, so that what is never written shows; `clock` makes
    profiles of runs.
    """
    models = (each.model for each in _everything(contents))
    programs = programs_by_target(models)
    engines = AcceleratorModule(library, contents.model.levels, programs, poison)

    def load(program: ProgramContents) -> ModelRunner:
        bodies = [load(body) for body in program.bodies]
        runner = ModelRunner(
            program.model, library, program.host_models, poison, threads, bodies, engines, clock
        )
        runner.load_constants(program.constants)
        return runner

    return load(contents)


def _everything(contents: ProgramContents) -> Iterator[ProgramContents]:
    yield contents
    for body in contents.bodies:
        yield from _everything(body)


def load_bundle(
    path: Path,
    build_dir: Path,
    compiler: Path | None = None,
    poison: bool = True,
    clock: Clock | None = None,
) -> ModelRunner:
    """Check a bundle, build its kernels and load its weights; for `poison` and `clock` see
    `load_program`.

    The kernels are compiled against the bundle's own runtime header.

    Raises:
        InputError: TW-RUN-001 when the bundle is damaged or of another format.
        CompilerError: TW-VERIFY-002 without a C compiler.
    """
    with open_archive(path) as archive:
        manifest = read_manifest(archive)
        check_digests(archive, manifest)

        def text(name: str) -> bytes:
            return read_member(archive, name, DOCUMENT_LIMIT_BYTES)

        stored = _read_program(text, "")
        names = dict.fromkeys(n for program in stored.everything() for n in program.model.kernels)
        kernels = {name: text(kernel_file(name)).decode() for name in names}
        header = text("kernels/tilewright_rt.h").decode()
        library = build_library(kernels, build_dir, compiler, header)
        programs = programs_by_target(program.model for program in stored.everything())
        engines = AcceleratorModule(library, stored.model.levels, programs, poison)

        def load(program: _Stored) -> ModelRunner:
            bodies = [load(body) for body in program.bodies]
            runner = ModelRunner(
                program.model, library, program.host_models, poison, bodies=bodies,
                engines=engines, clock=clock,
            )  # fmt: skip
            _load_weights(archive, program, runner.arena)
            return runner

        return load(stored)


@dataclass(frozen=True, slots=True)
class _Stored:
    """One program of a bundle, read but for its weights."""

    prefix: str
    model: ExecutableModel
    host_models: tuple[bytes, ...]
    bodies: tuple[_Stored, ...]

    def everything(self) -> Iterator[_Stored]:
        yield self
        for body in self.bodies:
            yield from body.everything()


def _read_program(text: Callable[[str], bytes], prefix: str) -> _Stored:
    from worker.compiler.isa.binary import decode_program

    name = graph_name(prefix)
    document = decode(text(name), GraphDocument, name)
    model = executable_of(document, decode_program(text(prefix + PROGRAM_NAME)))
    hosts = 1 + max((c.host for c in model.program.calls if isinstance(c, HostCall)), default=-1)
    without = {c.host for c in model.controls if not c.needs_model}
    models = tuple(b"" if k in without else text(prefix + host_name(k)) for k in range(hosts))
    bodies = tuple(_read_program(text, body_prefix(prefix, k)) for k in range(num_programs(model)))
    return _Stored(prefix, model, models, bodies)


def _load_weights(archive: zipfile.ZipFile, program: _Stored, arena: memoryview) -> None:
    by_name = {t.name: t for t in program.model.tensors}
    with open_member(archive, program.prefix + WEIGHTS_NAME) as source:
        read_weights(source, [by_name[n] for n in program.model.constants], arena)


def run_bundle(
    bundle: Path, inputs: Mapping[str, Array], build_dir: Path, compiler: Path | None = None
) -> dict[str, Array]:
    """Run a bundle once on named inputs; outputs by name.

    Raises:
        InputError: TW-RUN-001 (damaged bundle), TW-RUN-002 (wrong inputs).
        CompilerError: TW-VERIFY-002 without a C compiler.
    """
    return load_bundle(bundle, build_dir, compiler).run(inputs)

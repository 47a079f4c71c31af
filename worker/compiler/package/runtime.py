"""Loading models to run: from their pieces, or from a bundle whose digests are checked."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from worker.compiler.codegen.runtime_header import HEADER_NAME, runtime_header
from worker.compiler.isa.program import HostCall
from worker.compiler.machine.machine import Machine
from worker.compiler.package.accelerator_module import AcceleratorModule, programs_by_target
from worker.compiler.package.archive import damaged, open_archive, open_member, read_member
from worker.compiler.package.build import build_library, require_names
from worker.compiler.package.bundle import DOCUMENT_LIMIT_BYTES, check_digests, read_manifest
from worker.compiler.package.emulator import LevelSpec
from worker.compiler.package.engines import Engine, OpenEngines
from worker.compiler.package.executable import (
    Array,
    ExecutableModel,
    ProgramContents,
    level_specs,
)
from worker.compiler.package.executor import ModelRunner
from worker.compiler.package.home_region import HomeRegion, image_of
from worker.compiler.package.kernel_library import linked_of, require_same
from worker.compiler.package.manifest import (
    MACHINE_NAME,
    PROGRAM_NAME,
    GraphDocument,
    Manifest,
    RegionFormats,
    body_prefix,
    decode,
    executable_of,
    graph_name,
    host_name,
    kernel_file,
    num_programs,
    schedule_file,
)
from worker.compiler.package.profile import Clock
from worker.compiler.package.regenerate import (
    Regenerated,
    compare,
    is_own,
    read_machine,
    regenerate,
)
from worker.compiler.package.weights import WEIGHTS_NAME, read_weights
from worker.compiler.vendors import KERNELS

__all__ = [
    "Loaded", "ModelRunner", "OpenBundle", "Origin", "StoredProgram", "load_bundle", "load_program",
    "load_weights", "open_bundle", "run_bundle",
]  # fmt: skip

_HEADER_FILE = f"kernels/{HEADER_NAME}"


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


class Origin(StrEnum):
    """Where the C that a loaded bundle runs comes from."""

    COMPARED = "compared"
    """Generated here, and equal to the text in the bundle."""
    REGENERATED = "regenerated"
    """Generated here; other versions made the text in the bundle."""
    ENGINES = "engines"
    """None runs: engines execute what serializers wrote of the regions."""
    TRUSTED = "trusted"
    """The text in the bundle, as it came."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A bundle, ready to run."""

    runner: ModelRunner
    origin: Origin
    engines: tuple[str, ...] = ()
    """What regions run on, each once, in the order of names; `kernels` among them."""


@dataclass(frozen=True, slots=True)
class OpenBundle:
    """A bundle whose digests were checked, with the C that is to run."""

    archive: zipfile.ZipFile
    manifest: Manifest
    program: StoredProgram
    kernels: Mapping[str, str]
    """Function name -> C text."""
    header: str
    """What they are compiled against."""
    origin: Origin

    def read(self, name: str) -> bytes:
        """One document.

        Raises:
            InputError: TW-RUN-001 when it is missing or too large.
        """
        return read_member(self.archive, name, DOCUMENT_LIMIT_BYTES)


@contextmanager
def open_bundle(
    path: Path,
    trust: bool = False,
    without_kernels: Callable[[Manifest], bool] = lambda manifest: False,
) -> Iterator[OpenBundle]:
    """Check a bundle, and generate its kernels from its machine and schedules.

    Where the bundle was made by these versions, its text must be the same.  `trust` takes the
    bundle's own text and header instead; where `without_kernels` says so, there are none.

    Raises:
        InputError: TW-RUN-001 when the bundle is damaged, TW-RUN-004 of another format, TW-RUN-005
            when a kernel is not what its schedule gives.
    """
    with open_archive(path) as archive:
        manifest = read_manifest(archive)
        check_digests(archive, manifest)

        def text(name: str) -> bytes:
            return read_member(archive, name, DOCUMENT_LIMIT_BYTES)

        stored = _read_program(text, "")
        names = dict.fromkeys(n for each in stored.everything() for n in each.model.kernels)
        require_names(names)
        kernels, header = {}, ""
        if without_kernels(manifest):
            origin = Origin.ENGINES
        elif trust:
            origin = Origin.TRUSTED
            kernels = {name: _utf8(text, kernel_file(name)) for name in names}
            header = _utf8(text, _HEADER_FILE)
        else:
            is_same = is_own(manifest.toolchain)
            origin = Origin.COMPARED if is_same else Origin.REGENERATED
            header = runtime_header()
            if is_same and _utf8(text, _HEADER_FILE) != header:
                raise damaged(f"{_HEADER_FILE} is not that of the versions in the manifest")
            machine = read_machine(text(MACHINE_NAME), manifest.hardware.digest)
            made = _regenerated(text, manifest, stored, machine, compared=is_same)
            kernels = {name: each.text for name, each in made.items()}
            stored = stored.with_programs(made, level_specs(machine))
        yield OpenBundle(archive, manifest, stored, kernels, header, origin)


def load_bundle(
    path: Path,
    build_dir: Path,
    compiler: Path | None = None,
    poison: bool = True,
    clock: Clock | None = None,
    trust: bool = False,
    engine: str = "",
    opened: Mapping[str, Engine] | None = None,
    link: Path | None = None,
) -> Loaded:
    """Open a bundle, compile its kernels, and load weights into a fresh home memory.

    `poison` and `clock` as in `load_program`, `trust` as in `open_bundle`.  `engine`: what all
    regions run on; "": what their targets name.  `opened`: engines that are open already.  Where
    nothing runs on kernels, there are none.  `link`: the kernel library that the bundle names.

    Raises: as `open_bundle`, `require_same`, and
        CompilerError: TW-VERIFY-002 without a C compiler; TW-PLUG-001, an engine is not installed;
            TW-PLUG-003, it failed; TW-PLUG-004, it does not read what there is.
    """
    there = OpenEngines(build_dir / "engines", opened)

    def runs_on(row: RegionFormats) -> str:
        return engine or row.engine or KERNELS

    def is_without(manifest: Manifest) -> bool:
        used = {runs_on(row) for row in manifest.regions}
        return KERNELS not in used and bool(used or engine not in ("", KERNELS))

    with open_bundle(path, trust, is_without) as bundle:
        stored = bundle.program
        library = build_dir
        if bundle.origin is not Origin.ENGINES:
            linked = require_same(linked_of(bundle.manifest.toolchain), link)
            library = build_library(bundle.kernels, build_dir, compiler, bundle.header, link=linked)
        programs = programs_by_target(program.model for program in stored.everything())
        engines = AcceleratorModule(library, stored.model.levels, programs, poison)

        def load(program: StoredProgram) -> ModelRunner:
            bodies = [load(body) for body in program.bodies]
            runner = ModelRunner(
                program.model, library, program.host_models, poison, bodies=bodies,
                engines=engines, clock=clock,
            )  # fmt: skip
            load_weights(bundle.archive, program, runner.arena)
            runner.regions = {
                row.index: HomeRegion(
                    image_of(row, runs_on(row), bundle.read, program.model), there
                )
                for row in bundle.manifest.regions
                if row.program == program.prefix and runs_on(row) != KERNELS
            }
            return runner

        used = sorted({runs_on(row) for row in bundle.manifest.regions})
        return Loaded(load(stored), bundle.origin, tuple(used))


def _utf8(text: Callable[[str], bytes], name: str) -> str:
    try:
        return text(name).decode()
    except UnicodeDecodeError as error:
        raise damaged(f"{name} is not text: {error}") from error


def _regenerated(
    text: Callable[[str], bytes],
    manifest: Manifest,
    stored: StoredProgram,
    machine: Machine,
    *,
    compared: bool,
) -> dict[str, Regenerated]:
    """Every kernel of a bundle by name, made here."""
    target_of = {row.kernel: row.target for row in manifest.provenance}
    made: dict[str, Regenerated] = {}
    for program in stored.everything():
        units = program.model.program.units
        for name, came in zip(program.model.kernels, units, strict=True):
            if name not in target_of:
                raise damaged(f"the manifest does not say what kernel {name[:100]!r} is made from")
            if name not in made:
                schedule = _utf8(text, schedule_file(name))
                made[name] = regenerate(name, schedule, target_of[name], machine, came)
            if compared:
                compare(name, made[name], _utf8(text, kernel_file(name)), came)
    return made


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """One program of a bundle, read but for its weights."""

    prefix: str
    model: ExecutableModel
    host_models: tuple[bytes, ...]
    bodies: tuple[StoredProgram, ...]

    def everything(self) -> Iterator[StoredProgram]:
        yield self
        for body in self.bodies:
            yield from body.everything()

    def with_programs(
        self, made: Mapping[str, Regenerated], levels: tuple[LevelSpec, ...]
    ) -> StoredProgram:
        """The same calls of kernels that were made here, on the levels of the machine."""
        units = tuple(made[name].program for name in self.model.kernels)
        program = replace(self.model.program, units=units)
        return replace(
            self,
            model=replace(self.model, program=program, levels=levels),
            bodies=tuple(body.with_programs(made, levels) for body in self.bodies),
        )


def _read_program(text: Callable[[str], bytes], prefix: str) -> StoredProgram:
    from worker.compiler.isa.binary import decode_program

    name = graph_name(prefix)
    document = decode(text(name), GraphDocument, name)
    model = executable_of(document, decode_program(text(prefix + PROGRAM_NAME)), prefix)
    hosts = 1 + max((c.host for c in model.program.calls if isinstance(c, HostCall)), default=-1)
    without = {c.host for c in model.controls if not c.needs_model}
    models = tuple(b"" if k in without else text(prefix + host_name(k)) for k in range(hosts))
    bodies = tuple(_read_program(text, body_prefix(prefix, k)) for k in range(num_programs(model)))
    return StoredProgram(prefix, model, models, bodies)


def load_weights(archive: zipfile.ZipFile, program: StoredProgram, arena: memoryview) -> None:
    """Copy a program's weights to their addresses in a home memory."""
    by_name = {t.name: t for t in program.model.tensors}
    with open_member(archive, program.prefix + WEIGHTS_NAME) as source:
        read_weights(source, [by_name[n] for n in program.model.constants], arena)


def run_bundle(
    bundle: Path, inputs: Mapping[str, Array], build_dir: Path, compiler: Path | None = None
) -> dict[str, Array]:
    """Run a bundle once on named inputs; outputs by name.

    Raises:
        InputError: TW-RUN-002 (wrong inputs), and as `load_bundle`.
        CompilerError: TW-VERIFY-002 without a C compiler.
    """
    return load_bundle(bundle, build_dir, compiler).runner.run(inputs)

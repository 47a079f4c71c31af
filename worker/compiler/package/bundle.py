"""Writing and checking `*.twb` bundles.  Layout: 1-product.md, "The bundle"."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from worker.compiler.codegen.runtime_header import HEADER_NAME, runtime_header
from worker.compiler.errors import Detail, InputError
from worker.compiler.isa.binary import encode_program
from worker.compiler.machine import digest, machine_document
from worker.compiler.machine.machine import Machine
from worker.compiler.package.archive import (
    Member,
    create_archive,
    damaged,
    file_digest,
    open_member,
    read_member,
)
from worker.compiler.package.executable import Constants, ExecutableModel, ProgramContents
from worker.compiler.package.formats import FORMATS_NAME, formats_page
from worker.compiler.package.manifest import (
    FORMAT_VERSION,
    GRAPH_NAME,
    HOST_GRAPH_NAME,
    MACHINE_NAME,
    MANIFEST_NAME,
    PROGRAM_NAME,
    Format,
    Hardware,
    Manifest,
    body_prefix,
    decode,
    graph_document,
    graph_name,
    host_name,
    kernel_file,
    manifest_document,
    schedule_file,
)
from worker.compiler.package.regenerate import VERSIONS
from worker.compiler.package.region_members import (
    ProgramRegions,
    region_constants,
    region_documents,
    region_rows,
)
from worker.compiler.package.weights import weights_member

DOCUMENT_LIMIT_BYTES = 1 << 30
"""Largest member that is read whole."""
_CHUNK_BYTES = 1 << 20
_FOR_PEOPLE = frozenset(
    {FORMATS_NAME, "program.txt", "report.json", "schedule.json", "trace.json.gz"}
)
"""Members that no result depends on."""


@dataclass(frozen=True, slots=True)
class BundleContents:
    """Everything a bundle is made of."""

    model: ExecutableModel
    kernels: Mapping[str, str]
    """Function name -> C text."""
    schedules: Mapping[str, str]
    """Function name -> text of its canonical graph and schedule."""
    constants: Constants
    """Values of `model.constants`, by name."""
    host_models: tuple[bytes, ...]
    """ONNX sub-models, parallel to the `host` index of the program's HostCalls; empty where an
    interpreted control-flow node needs none."""
    program_binary: bytes
    program_text: str
    schedule_json: bytes
    report_json: bytes
    trace_json_gz: bytes
    toolchain: Mapping[str, Detail]
    """Versions that decide results."""
    machine: Machine
    bodies: tuple[ProgramContents, ...] = ()
    """Nested programs of control-flow bodies; their kernels are in `kernels`."""
    regions: tuple[ProgramRegions, ...] = ()
    """Of the model and of every nested program, outer ones first."""
    host_graph: Callable[[str], bytes] | None = None
    """`host.onnx` from the bundle's program digest; empty where there can be none.  None: a program
    that came from no ONNX model."""


def program_digest(members: Iterable[tuple[str, str]]) -> str:
    """Hex sha256 of what decides the results of a bundle, from (name, sha256) of its members.

    A library and a `host.onnx` that carry the same one belong together.
    """
    digest = sha256()
    for name, own in sorted(members):
        if name not in _FOR_PEOPLE and name not in (HOST_GRAPH_NAME, MANIFEST_NAME):
            digest.update(f"{name} {own}\n".encode())
    return digest.hexdigest()


def write_bundle(path: Path, contents: BundleContents) -> str:
    """Write a bundle and give its hex sha256.  Same contents, same bytes.

    The file appears only when it is complete.  Cost: one pass over the weights; memory for one
    weight at a time.
    """
    by_name = {tensor.name: tensor for tensor in contents.model.tensors}
    weights = [by_name[name] for name in contents.model.constants]
    with create_archive(path) as archive:
        documents = {
            **_host_documents("", contents.host_models),
            **{kernel_file(name): text.encode() for name, text in contents.kernels.items()},
            **{schedule_file(name): text.encode() for name, text in contents.schedules.items()},
            MACHINE_NAME: _machine_json(contents.machine),
            f"kernels/{HEADER_NAME}": runtime_header().encode(),
            GRAPH_NAME: graph_document(contents.model),
            FORMATS_NAME: formats_page().encode(),
            PROGRAM_NAME: contents.program_binary,
            "program.txt": contents.program_text.encode(),
            "report.json": contents.report_json,
            "schedule.json": contents.schedule_json,
        }
        nested = list(_nested("", contents.bodies))
        for prefix, program in nested:
            documents |= _host_documents(prefix, program.host_models)
            documents[graph_name(prefix)] = graph_document(program.model, prefix)
            documents[prefix + PROGRAM_NAME] = encode_program(program.model.program)
        for each in contents.regions:
            documents |= dict(region_documents(each))
        for name in sorted(documents):
            archive.add(Member(name, (documents[name],), len(documents[name])))
        trace = contents.trace_json_gz
        archive.add(Member("trace.json.gz", (trace,), len(trace), stored=True))
        archive.add(weights_member(weights, contents.constants))
        for prefix, program in nested:
            by_name = {tensor.name: tensor for tensor in program.model.tensors}
            weights = [by_name[name] for name in program.model.constants]
            member = weights_member(weights, program.constants)
            archive.add(replace(member, name=prefix + member.name))
        for each in contents.regions:
            constants = region_constants(each)
            if constants is not None:
                archive.add(constants)
        if contents.host_graph is not None:
            digest_so_far = program_digest((w.name, w.sha256) for w in archive.written)
            host = contents.host_graph(digest_so_far)
            if host:
                archive.add(Member(HOST_GRAPH_NAME, (host,), len(host)))
        manifest = manifest_document(
            contents.model,
            {**contents.toolchain, **VERSIONS},
            Hardware(contents.machine.name, digest(contents.machine)),
            archive.written,
            [program.model for _, program in nested],
            region_rows(contents.regions),
        )
        archive.add(Member(MANIFEST_NAME, (manifest,), len(manifest)))
    return file_digest(path)


def _machine_json(machine: Machine) -> bytes:
    """Keys in order: equal machines may have tables that were filled in another order."""
    document = machine_document(machine)
    return json.dumps(document, sort_keys=True, indent=1, ensure_ascii=True).encode()


def _host_documents(prefix: str, models: Sequence[bytes]) -> dict[str, bytes]:
    return {prefix + host_name(k): data for k, data in enumerate(models) if data}


def _nested(
    prefix: str, bodies: Sequence[ProgramContents]
) -> Iterator[tuple[str, ProgramContents]]:
    """(folder, program) of every nested program, outer ones first."""
    for k, body in enumerate(bodies):
        folder = body_prefix(prefix, k)
        yield folder, body
        yield from _nested(folder, body.bodies)


def read_manifest(archive: zipfile.ZipFile) -> Manifest:
    """Parse the manifest and check that it lists exactly the archive's members.

    Raises:
        InputError: TW-RUN-001; TW-RUN-004 when the bundle has another format.
    """
    data = read_member(archive, MANIFEST_NAME, DOCUMENT_LIMIT_BYTES)
    version = decode(data, Format, MANIFEST_NAME)
    if version.format_version != FORMAT_VERSION:
        raise InputError(
            "TW-RUN-004",
            f"the bundle has format {version.format_version}, made by Tilewright"
            f" {version.toolchain.get('version', 'of no known version')};"
            f" this version reads format {FORMAT_VERSION}",
            limit=FORMAT_VERSION,
            actual=version.format_version,
        )
    manifest = decode(data, Manifest, MANIFEST_NAME)
    listed = {m.name for m in manifest.members} | {MANIFEST_NAME}
    if listed != set(archive.namelist()):
        odd = sorted(listed.symmetric_difference(archive.namelist()))
        raise damaged(f"the manifest and the archive disagree about {', '.join(odd[:5])}")
    return manifest


def check_digests(archive: zipfile.ZipFile, manifest: Manifest) -> None:
    """Compare every member with its digest.

    Raises:
        InputError: TW-RUN-001 names the first member that differs.
    Cost: reads the whole archive once.
    """
    for member in manifest.members:
        digest = sha256()
        with open_member(archive, member.name) as source:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
        if digest.hexdigest() != member.sha256:
            raise damaged(f"member {member.name} does not match its digest")

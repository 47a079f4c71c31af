"""The members of a bundle that carry regions: graph, C and images of each, headers, constants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from worker.compiler.codegen.region_driver import (
    REGIONS_HEADER_NAME,
    generate_region,
    generate_regions_header,
)
from worker.compiler.package.archive import Member
from worker.compiler.package.executable import Array, HomeTensor
from worker.compiler.package.manifest import (
    CONSTANTS_NAME,
    RegionFormats,
    encode,
    region_formats,
)
from worker.compiler.package.region_code import RegionCode, driver_of
from worker.compiler.package.region_graph import RegionGraph
from worker.compiler.package.serializers import Image, Refusal
from worker.compiler.package.stream.header import STREAM_HEADER_NAME, stream_header
from worker.compiler.package.weights import weights_member


@dataclass(frozen=True, slots=True)
class PackedRegion:
    """One region, ready to be written."""

    code: RegionCode
    graph: RegionGraph
    images: tuple[Image, ...]
    """The stream, and what the target's own serializer wrote."""
    engine: str = ""
    """What its target runs it on; empty: the compiled kernels."""
    refusal: Refusal | None = None
    """Why the target's serializer did not write it."""


@dataclass(frozen=True, slots=True)
class ProgramRegions:
    """The regions of the model or of one nested program."""

    prefix: str
    """Folder of the program; empty: the model itself."""
    regions: tuple[PackedRegion, ...]
    tensors: tuple[HomeTensor, ...]
    """Constants of the graphs that the program's weights do not hold."""
    values: Mapping[str, Callable[[], Array]]


def region_documents(program: ProgramRegions) -> Iterator[tuple[str, bytes]]:
    """(member name, content) of everything but the constants."""
    if not program.regions:
        return
    drivers = [driver_of(region.code) for region in program.regions]
    for region, driver in zip(program.regions, drivers, strict=True):
        names = _formats(program.prefix, region)
        yield names.graph, encode(region.graph)
        yield names.c, generate_region(driver).encode()
        for image in region.images:
            yield image.row.member, image.content
    guard = f"TW_{program.prefix.replace('/', '_').upper()}REGIONS_H"
    header = generate_regions_header(drivers, guard)
    yield f"{program.prefix}regions/{REGIONS_HEADER_NAME}", header.encode()
    yield f"{program.prefix}regions/{STREAM_HEADER_NAME}", stream_header().encode()


def region_constants(program: ProgramRegions) -> Member | None:
    """The member with the graphs' own constants, where there are any."""
    if not program.tensors:
        return None
    member = weights_member(program.tensors, program.values)
    return replace(member, name=program.prefix + CONSTANTS_NAME)


def region_rows(programs: Sequence[ProgramRegions]) -> tuple[RegionFormats, ...]:
    """The manifest's rows."""
    return tuple(_formats(p.prefix, region) for p in programs for region in p.regions)


def _formats(prefix: str, region: PackedRegion) -> RegionFormats:
    images = tuple(image.row for image in region.images)
    return region_formats(prefix, region.code.index, region.code.target, images, region.engine)

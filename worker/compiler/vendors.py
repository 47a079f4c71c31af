"""What a vendor's package brings beside its chip's description: serializers, engines, oracles.

Descriptors only, behind entry points: what they describe is in `package/serializers.py`,
`package/engines.py` and `oracles.py`.  Tilewright's own register in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import TypeAlias

from worker.compiler.errors import InternalError
from worker.compiler.plugins import Broken, brought, require_described

SERIALIZERS = "tilewright.serializers"
ENGINES = "tilewright.engines"
ORACLES = "tilewright.oracles"
STREAM = "stream"
"""The serializer that every region is written by: others read its instructions, too."""
KERNELS = "kernels"
"""Stands for the compiled C kernels, which need no image."""


@dataclass(frozen=True, slots=True)
class SerializerDescriptor:
    """One serializer that targets can name."""

    name: str
    version: str
    """Changes whenever the same region may give other bytes."""
    help: str
    """One line for users: what the bytes are for."""
    implementation: str
    """`module:attribute` of the `Serializer`, imported when a region is written."""
    format: str
    """What an engine must read."""
    format_version: int
    distribution: str = ""
    """Name and version of the package that brings it; filled in when it is found."""


@dataclass(frozen=True, slots=True)
class EngineDescriptor:
    """One engine that targets can name."""

    name: str
    version: str
    """Changes whenever the same image may give other outputs or figures."""
    help: str
    """One line for users: what executes there."""
    implementation: str
    """`module:attribute` of what opens it: from a folder in which it may keep files to an
    `Engine`."""
    format: str
    """The format of images that it loads."""
    format_versions: tuple[int, ...]
    distribution: str = ""
    """Name and version of the package that brings it; filled in when it is found."""


@dataclass(frozen=True, slots=True)
class OracleDescriptor:
    """One oracle that instructions can name."""

    name: str
    version: str
    """Changes whenever the same call may take other cycles."""
    help: str
    """One line for users: what answers there."""
    implementation: str
    """`module:attribute` of the `Oracle`, imported when it is asked."""
    distribution: str = ""
    """Name and version of the package that brings it; filled in when it is found."""


Serializers: TypeAlias = "MappingProxyType[str, SerializerDescriptor]"
Engines: TypeAlias = "MappingProxyType[str, EngineDescriptor]"
Oracles: TypeAlias = "MappingProxyType[str, OracleDescriptor]"


@cache
def installed_serializers() -> tuple[Serializers, tuple[Broken, ...]]:
    """Every serializer by name, in the order of names, and what could not be loaded."""
    return brought(entry_points(group=SERIALIZERS), "serializer", _serializer)


def serializers() -> Serializers:
    """Every serializer by name.

    Raises:
        InternalError: TW-INT-006, not even Tilewright's own is registered.
    """
    found, broken = installed_serializers()
    if STREAM not in found:
        reasons = "; ".join(f"{row.entry_point}: {row.reason}" for row in broken)
        raise InternalError(
            "TW-INT-006",
            f"the serializer of streams is not registered ({reasons or 'none is'}); install"
            " Tilewright again, and remove an old tilewright.egg-info beside its code",
        )
    return found


@cache
def installed_engines() -> tuple[Engines, tuple[Broken, ...]]:
    """Every engine by name, in the order of names, and what could not be loaded."""
    return brought(entry_points(group=ENGINES), "engine", _engine)


def engines() -> Engines:
    """Every engine by name."""
    return installed_engines()[0]


@cache
def installed_oracles() -> tuple[Oracles, tuple[Broken, ...]]:
    """Every oracle by name, in the order of names, and what could not be loaded."""
    return brought(entry_points(group=ORACLES), "oracle", _oracle)


def oracles() -> Oracles:
    """Every oracle by name."""
    return installed_oracles()[0]


def _serializer(found: object, distribution: str) -> SerializerDescriptor:
    """What an entry point of a distribution gave.

    Raises:
        TypeError, ValueError: it is no descriptor, or one that nobody could use.
    """
    if not isinstance(found, SerializerDescriptor):
        raise TypeError(f"a {type(found).__name__} is no SerializerDescriptor")
    require_described(found, (found.implementation,))
    if not found.format or found.format_version < 1:
        raise ValueError("its format needs a name, and a version from 1")
    return replace(found, distribution=distribution)


def _engine(found: object, distribution: str) -> EngineDescriptor:
    """What an entry point of a distribution gave.

    Raises:
        TypeError, ValueError: it is no descriptor, or one that nobody could use.
    """
    if not isinstance(found, EngineDescriptor):
        raise TypeError(f"a {type(found).__name__} is no EngineDescriptor")
    require_described(found, (found.implementation,))
    if found.name == KERNELS:
        raise ValueError(f"{KERNELS!r} is no name: it stands for the compiled kernels")
    if not found.format or not found.format_versions:
        raise ValueError("it says no format, or none of its versions")
    return replace(found, distribution=distribution)


def _oracle(found: object, distribution: str) -> OracleDescriptor:
    """What an entry point of a distribution gave.

    Raises:
        TypeError, ValueError: it is no descriptor, or one that nobody could use.
    """
    if not isinstance(found, OracleDescriptor):
        raise TypeError(f"a {type(found).__name__} is no OracleDescriptor")
    require_described(found, (found.implementation,))
    return replace(found, distribution=distribution)

"""What installed packages bring: descriptors behind entry points, found, checked, each name once.

An entry point names a value in a module that imports neither numpy nor what it describes, so that
it can be listed and named in options and specs without loading it.  The entry point's own name is
not used: the descriptor's is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from worker.compiler.errors import said

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+]{0,31}")


class Described(Protocol):
    """What every descriptor has."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def distribution(self) -> str:
        """Name and version of the package that brings it; filled in when it is found."""
        ...


D = TypeVar("D", bound=Described)


@dataclass(frozen=True, slots=True)
class Broken:
    """An installed entry point that gives nothing anybody could use."""

    entry_point: str
    reason: str


def brought(
    points: Iterable[EntryPoint], word: str, checked: Callable[[object, str], D]
) -> tuple[MappingProxyType[str, D], tuple[Broken, ...]]:
    """Every descriptor by name, in the order of names, and what could not be loaded.

    A plugin that breaks, or takes a name twice, costs nobody else anything.  `word` is what they
    are called; `checked` takes what an entry point gave and the distribution that brings it, and
    gives the descriptor with that, or raises.
    """
    found: dict[str, D] = {}
    broken: list[Broken] = []
    for point in sorted(set(points), key=lambda p: (_brought_by(p), p.name, p.value)):
        try:
            one = checked(point.load(), _brought_by(point))
            if one.name in found:
                owner = found[one.name].distribution
                raise ValueError(f"{word} {one.name!r} is brought by {owner} already")
        except (Exception, SystemExit) as error:  # a module may raise anything, and may exit
            broken.append(Broken(f"{point.name} = {point.value}", said(error)))
        else:
            found[one.name] = one
    return MappingProxyType(dict(sorted(found.items()))), tuple(broken)


def require_described(found: Described, references: Iterable[str]) -> None:
    """Check what all descriptors have in common; an empty reference is one that is not given.

    Raises:
        ValueError: a name, a version or a reference that nobody could use.
    """
    if not _NAME.fullmatch(found.name):
        raise ValueError(f"{found.name!r} is no name: a letter, then letters, digits or _")
    if not _VERSION.fullmatch(found.version):
        raise ValueError(f"{found.version!r} is no version: letters, digits, . _ or +")
    for reference in references:
        if reference and not _REFERENCE.fullmatch(reference):
            raise ValueError(f"{reference!r} is no reference: module:attribute")


def named(reference: str) -> Any:
    """What `module:attribute` stands for.

    Raises:
        ImportError, AttributeError: the plugin is broken; or whatever its module raises.
    """
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)


def _brought_by(point: EntryPoint) -> str:
    """Name and version of the distribution an entry point is from."""
    return "" if point.dist is None else f"{point.dist.name} {point.dist.version}"

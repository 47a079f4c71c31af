"""A vendor's kernel library: what it must be so that kernels can be linked with it.

Everything is checked on the file, before anything of it runs: that it is a shared library of this
processor, the interface that it was built for (`tw_library` of the runtime header), and that it has
every function that kernels call.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

from worker.compiler.errors import Detail, Finding, InputError
from worker.compiler.package.archive import damaged
from worker.compiler.package.elf import Architecture, ElfFile, NotElf, architecture_of

LIBRARY_ABI = 1
"""`TW_LIBRARY_ABI` of the header."""
CALL_BYTES = 80
"""`sizeof(tw_product)` there, on a processor of 64 bits."""
INFO_SYMBOL = "tw_library"
TOOL = "library"
"""Key of the toolchain under which a bundle says what it was linked with."""
_INFO = "ii48s24s"
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,46}")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")
_MOST_BYTES = 1 << 30


class LinkedLibrary(msgspec.Struct, frozen=True):
    """What a bundle says of the library that its kernels were linked with."""

    name: str
    version: str
    abi: int
    sha256: str
    symbols: tuple[str, ...]
    """The functions that its kernels call, sorted."""


@dataclass(frozen=True, slots=True)
class KernelLibrary:
    """A library that passed the checks of its file."""

    path: Path
    name: str
    """By its own word, as `version`."""
    version: str
    sha256: str
    """Of the file, in hex."""
    file_name: str
    """By which a kernel that is linked with it looks for it."""
    symbols: frozenset[str]

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"

    def row(self, called: Iterable[str]) -> LinkedLibrary:
        """What a bundle whose kernels call some of its functions says of it."""
        symbols = tuple(sorted(set(called)))
        return LinkedLibrary(self.name, self.version, LIBRARY_ABI, self.sha256, symbols)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One call of a function, by a kernel of the model."""

    symbol: str
    pointer: str
    """Where the spec names the function."""
    region: int
    target: str
    node: str
    """The user's node."""


def read_library(path: Path) -> KernelLibrary:
    """Check a library's file.

    Raises:
        InputError: TW-LINK-001, it is no shared library that kernels can be linked with;
            TW-LINK-002, of another processor; TW-LINK-003, of another interface.
    Cost: reads the file once.
    """
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise _unfit(path, "it is too large", limit=_MOST_BYTES, actual=size)
        data = path.read_bytes()
        own_kind = architecture_of(data)
    except (NotElf, OSError) as error:
        raise _unfit(path, str(error)) from error
    here = _here()
    if own_kind != here:
        raise InputError(
            "TW-LINK-002",
            f"{path.name} is for {own_kind}; kernels that run here are for {here}",
            pointer="/options/link", limit=str(here), actual=str(own_kind),
        )  # fmt: skip
    try:
        elf = ElfFile(data)
        if not elf.is_shared:
            raise NotElf("it is an ELF file, but no shared library (cc -shared)")
        symbols = elf.symbols()
        own = elf.own_name()
        if INFO_SYMBOL not in symbols:
            raise NotElf(f"it exports no {INFO_SYMBOL}: write TW_LIBRARY(name, version) in it")
        order = "<" if here.is_little else ">"
        raw = elf.bytes_at(symbols[INFO_SYMBOL], struct.calcsize(order + _INFO))
    except NotElf as error:
        raise _unfit(path, str(error)) from error
    abi, call_bytes, *words = struct.unpack(order + _INFO, raw)
    if (abi, call_bytes) != (LIBRARY_ABI, CALL_BYTES):
        raise InputError(
            "TW-LINK-003",
            f"{path.name} was built for interface {abi} with calls of {call_bytes} bytes; this"
            f" version has interface {LIBRARY_ABI} with calls of {CALL_BYTES} bytes",
            pointer="/options/link", limit=LIBRARY_ABI, actual=abi,
        )  # fmt: skip
    name, version = (word.split(b"\0")[0].decode("ascii", "replace") for word in words)
    for what, word in (("name", name), ("version", version)):
        if not _WORD.fullmatch(word):
            raise _unfit(path, f"its {what} is {word!r}: letters, digits, . _ + or -")
    if own and not _FILE.fullmatch(own):
        raise _unfit(path, f"its own name is {own[:100]!r}, which is no file name")
    found = frozenset(symbols)
    return KernelLibrary(
        path, name, version, sha256(data).hexdigest(), own or "libkernels.so", found
    )


def _here() -> Architecture:
    """Of the processor that runs kernels here: that of the program that this is."""
    with Path(sys.executable).resolve().open("rb") as file:
        return architecture_of(file.read(20))


def require_symbols(library: KernelLibrary, wanted: Iterable[Wanted]) -> LinkedLibrary:
    """What a bundle says of the library, where it has every function that is wanted.

    Raises:
        InputError: TW-LINK-004, with a finding for each missing function, at its first node.
    """
    first: dict[str, Wanted] = {}
    for each in wanted:
        first.setdefault(each.symbol, each)
    missing = [each for symbol, each in sorted(first.items()) if symbol not in library.symbols]
    if not missing:
        return library.row(first)
    findings = tuple(
        Finding(
            "TW-LINK-004",
            f"{library.label} has no function {each.symbol}, which region {each.region} of target"
            f" {each.target} calls for node {each.node}",
            each.pointer, each.node, None, each.symbol,
        )
        for each in missing
    )  # fmt: skip
    raise InputError(
        "TW-LINK-004", findings[0].message, node=missing[0].node, pointer=missing[0].pointer,
        actual=missing[0].symbol, findings=findings,
    )  # fmt: skip


def linked_of(toolchain: Mapping[str, object]) -> LinkedLibrary | None:
    """What a bundle's manifest says of a library; None: its kernels call none.

    Raises:
        InputError: TW-RUN-001.
    """
    if TOOL not in toolchain:
        return None
    try:
        return msgspec.convert(toolchain[TOOL], LinkedLibrary)
    except msgspec.ValidationError as error:
        raise damaged(f"the manifest's library is not valid: {error}") from error


def require_same(linked: LinkedLibrary | None, path: Path | None) -> KernelLibrary | None:
    """The library at `path`, where it is the one that a bundle was linked with; None: neither.

    Raises:
        InputError: TW-LINK-006, the library is missing or another one; TW-LINK-007, the bundle's
            kernels call none; as `read_library`.
    """
    if path is None and linked is None:
        return None
    if linked is None:
        assert path is not None
        raise InputError(
            "TW-LINK-007", f"no kernel of the bundle calls a library, and {path.name} is given",
            pointer="/options/link", actual=path.name,
        )  # fmt: skip
    said = f"{linked.name} {linked.version} (sha256 {linked.sha256[:16]}...)"
    if path is None:
        raise InputError(
            "TW-LINK-006", f"the kernels of the bundle call the library {said}, and none is given",
            limit=linked.sha256,
        )  # fmt: skip
    found = read_library(path)
    if found.sha256 != linked.sha256:
        raise InputError(
            "TW-LINK-006",
            f"the bundle was linked with {said}; {path.name} is {found.label}"
            f" (sha256 {found.sha256[:16]}...)",
            limit=linked.sha256, actual=found.sha256,
        )  # fmt: skip
    return found


def _unfit(path: Path, why: str, limit: Detail = None, actual: Detail = None) -> InputError:
    return InputError(
        "TW-LINK-001", f"{path.name} cannot be linked with: {why}", pointer="/options/link",
        limit=limit, actual=actual,
    )  # fmt: skip

"""Kernels to a shared library with the system's C compiler.

The library's file name is a digest of everything that decides its bytes (texts, flags, compiler,
target CPU), so a build directory is a cache that several processes may share: each builds in a
directory of its own and renames the result into place.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from pathlib import Path

from worker.compiler.codegen.library_calls import LINKED_MACRO
from worker.compiler.codegen.runtime_header import HEADER_NAME, runtime_header
from worker.compiler.errors import TOOL_KILLED, CompilerError, InputError, InternalError
from worker.compiler.package.archive import damaged
from worker.compiler.package.kernel_library import KernelLibrary

FLAGS = (
    "-std=c11", "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-march=native", "-fPIC",
    "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fwrapv",
    "-fno-strict-aliasing", "-Wall", "-Wextra",
)  # fmt: skip
"""No flag changes what an expression means: rounding, NaN and evaluation order stay."""
_REALIGN = "-mincoming-stack-boundary=3"
"""For GCC on x86-64: up to 12.3 it may leave a vector on the stack of a leaf function unaligned
(its PR109780), and the kernel dies there.  Told that stacks come in aligned to 8 bytes only, it
aligns them itself: an instruction per call."""
_QUICK = "-O0"
"""The last level given counts."""
LAYOUT_SYMBOL = "tw_machine_bytes"
"""Exported by every library: the size of the header's tw_machine, which the emulator checks."""
_BUILD_VERSION = "2"
"""Bump when the sources around the kernels change: libraries in build directories must miss."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_CANDIDATES = ("cc", "gcc", "clang")
_JOBS = 2
_COMPILE_SECONDS = 600
_KILLED = re.compile(r"Killed signal terminated program|unable to execute command: Killed")
"""What gcc and clang say where a program that they started was killed."""


def find_compiler(preferred: str | None = None) -> Path:
    """The C compiler to use: `preferred` (a name or path, e.g. the value of $CC), else the first
    of cc, gcc, clang.

    Raises:
        CompilerError: TW-VERIFY-002 when there is none.
    """
    names = (preferred,) if preferred else _CANDIDATES
    for name in names:
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    raise CompilerError(
        "TW-VERIFY-002",
        f"no C compiler: {', '.join(names)} not found on the search path",
        limit=", ".join(names),
        actual="none",
    )


def build_library(
    kernels: Mapping[str, str],
    build_dir: Path,
    compiler: Path | None = None,
    header: str | None = None,
    jobs: int = _JOBS,
    is_quick: bool = False,
    link: KernelLibrary | None = None,
) -> Path:
    """Compile kernels (function name -> C text) into one shared library and give its path.

    A library of the same content is reused.  `header` replaces the portable reference.  `is_quick`
    leaves optimising out: the results are the same, compiling takes a tenth, running much longer.
    `link`: a vendor's, whose functions the kernels call; it is copied beside the result.

    Raises:
        CompilerError: TW-VERIFY-002 without a C compiler.
        InputError: TW-RUN-001, the name of a kernel is no C identifier: it becomes a file's.
            TW-LINK-005, the vendor's library cannot be loaded.
        InternalError: the C compiler rejects our code.
    Cost: one compiler run per translation unit, `jobs` at a time.
    """
    require_names(kernels)
    cc = compiler or find_compiler()
    text = runtime_header() if header is None else header
    flags = (*flags_for(cc), _QUICK) if is_quick else flags_for(cc)
    if link is not None:
        flags = (*flags, f"-D{LINKED_MACRO}")
    key = sha256()
    made_of = (_identity(cc), *flags, *(() if link is None else (link.sha256, link.file_name)))
    for part in (_BUILD_VERSION, *made_of, text, *(t for name in sorted(kernels)
                                                   for t in (name, kernels[name]))):  # fmt: skip
        key.update(len(part).to_bytes(8, "little"))
        key.update(part.encode())
    library = build_dir / f"kernels-{key.hexdigest()[:40]}.so"
    if library.exists():
        return library
    build_dir.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="build-", dir=build_dir))
    try:
        objects = compile_units(kernels, text, work, cc, flags, jobs)
        built = work / "kernels.so"
        link_shared(cc, objects, built, () if link is None else _linked(link, build_dir))
        os.replace(built, library)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return library


def _linked(link: KernelLibrary, build_dir: Path) -> tuple[str, ...]:
    """Arguments that link with a copy of a vendor's library, which kernels find beside them.

    Raises:
        InputError: TW-LINK-005, it cannot be loaded.
    """
    folder = build_dir / f"link-{link.sha256[:40]}"
    copy = folder / link.file_name
    if not copy.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(link.path.read_bytes())
        os.replace(file.name, copy)
    try:
        ctypes.CDLL(str(copy))
    except OSError as error:
        raise InputError(
            "TW-LINK-005", f"{link.label} cannot be loaded: {error}", pointer="/options/link"
        ) from error
    return (str(copy), f"-Wl,-rpath,$ORIGIN/{folder.name}")


def compile_units(
    kernels: Mapping[str, str], header: str, work: Path, cc: Path, flags: Sequence[str], jobs: int
) -> list[Path]:
    """Object files of all kernels, in a few translation units of similar size, in folder `work`.

    Raises: as `build_library`.
    """
    (work / HEADER_NAME).write_text(header, encoding="utf-8")
    return compile_with(cc, flags, _write_units(kernels, work, jobs), jobs)


def compile_with(cc: Path, flags: Sequence[str], sources: Sequence[Path], jobs: int) -> list[Path]:
    """Object files beside C sources, `jobs` at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda source: _compile(cc, flags, source), sources))


def link_shared(
    cc: Path, objects: Sequence[Path], target: Path, libraries: Sequence[str] = ()
) -> None:
    """A shared library of object files."""
    _run(
        [str(cc), "-shared", "-o", str(target), *map(str, objects), "-lm", *libraries],
        target.parent,
    )


def flags_for(cc: Path) -> tuple[str, ...]:
    """`FLAGS`, and what this compiler needs beside them."""
    macros = _identity(cc)
    is_gcc = "#define __GNUC__ " in macros and "#define __clang__ " not in macros
    return (*FLAGS, _REALIGN) if is_gcc and "#define __x86_64__ " in macros else FLAGS


def has_fused_products(cc: Path) -> bool:
    """Whether kernels built here multiply floats and add them with one rounding (`TW_FMA_*`)."""
    macros = _identity(cc)
    return "#define __FMA__ " in macros and "#define __clang__ " not in macros


def require_names(kernels: Iterable[str]) -> None:
    """Check that every name is a C identifier: it becomes a function's, and a file's.

    Raises:
        InputError: TW-RUN-001.
    """
    for name in kernels:
        if not _NAME.fullmatch(name):
            raise damaged(f"{name[:100]!r} is no name of a kernel")


def _write_units(kernels: Mapping[str, str], work: Path, jobs: int) -> list[Path]:
    """One file per kernel, and a few translation units of similar size that include them."""
    units: list[list[str]] = [[] for _ in range(max(1, min(2 * jobs, len(kernels))))]
    sizes = [0] * len(units)
    for name in sorted(kernels, key=lambda n: (-len(kernels[n]), n)):
        (work / f"{name}.c").write_text(kernels[name], encoding="utf-8")
        least = sizes.index(min(sizes))
        units[least].append(name)
        sizes[least] += len(kernels[name])
    sources: list[Path] = []
    for k, names in enumerate(units):
        source = work / f"unit{k}.c"
        lines = [f'#include "{HEADER_NAME}"', *(f'#include "{n}.c"' for n in sorted(names))]
        if k == 0:
            lines.append(f"const int64_t {LAYOUT_SYMBOL} = (int64_t)sizeof(tw_machine);")
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
        sources.append(source)
    return sources


def _compile(cc: Path, flags: Sequence[str], source: Path) -> Path:
    target = source.with_suffix(".o")
    _run([str(cc), *flags, "-c", str(source), "-o", str(target)], source.parent)
    return target


def _run(command: Sequence[str], cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
    )
    if done.returncode != 0:
        if os.strerror(errno.ENOSPC) in done.stderr:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # of the machine, not the code
        if done.returncode == -signal.SIGKILL or _KILLED.search(done.stderr):
            # The system was short of memory, or somebody stepped in; a crash of the compiler's own
            # has another signal, and comes again.
            raise CompilerError(TOOL_KILLED, "the C compiler was killed", stage="codegen")
        said = done.stderr.replace(f"{cwd}{os.sep}", "")  # a folder of a random name, gone by then
        raise InternalError(
            "TW-INT-001",
            f"the C compiler rejects generated code: {said[:2000]}",
            stage="codegen",
        )
    return done.stdout


@cache
def _identity(cc: Path) -> str:
    """The compiler's version and the target it builds for (its predefined macros)."""
    version = _run([str(cc), "--version"], Path("/"))
    macros = _run([str(cc), "-march=native", "-dM", "-E", "-x", "c", os.devnull], Path("/"))
    return version + macros

"""Loops that numba compiles: once for an installation, by a process outside the sandbox.

No payload leaves code behind for its successors (decision 0023), so each of them would compile what
it uses anew: 23 s of CPU for all of them.  What is compiled here comes of our own modules and the
example that ships with them alone; payloads get copies.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp

PACKAGE = Path(__file__).parents[1]
GIVEN = (
    "children/compile_loops.py",
    "compiler/tiling/nest/arrays.py",
    "compiler/tiling/nest/box_tables.py",
    "compiler/tiling/nest/price_tables.py",
)
"""What calls the loops, and what some of them are given."""
LOOPS = (
    "compiler/audit/walk.py",
    "compiler/cost/row_stationary.py",
    "compiler/lower/order/conflicts.py",
    "compiler/lower/order/sync.py",
    "compiler/lower/order/time_order.py",
    "compiler/memory/allocate.py",
    "compiler/tiling/nest/box_cut.py",
    "compiler/tiling/nest/box_loop.py",
    "compiler/tiling/nest/box_pool.py",
    "compiler/tiling/nest/price_loop.py",
    "compiler/tiling/nest/walk_steps.py",
    "simulator/attribution.py",
    "compiler/clock/cycles.py",
    "compiler/clock/forward.py",
    "compiler/clock/readiness.py",
    "compiler/clock/signals.py",
)
"""Where they are: compiled they are good while these files and those above stay."""
_KEPT = 8
"""Folders of other versions and installations that stay."""
_LIMIT_S = 300


def home() -> Path | None:
    """The folder of all compiled loops of this user; None: the user has no home."""
    try:
        return Path.home() / ".cache" / "tilewright" / "loops"
    except RuntimeError:
        return None


def folder_of(root: Path) -> Path:
    """Where those of this installation are below `root`, in the layout of NUMBA_CACHE_DIR."""
    stats = [(PACKAGE / name).stat() for name in (*GIVEN, *LOOPS)]
    key = (
        str(PACKAGE), version("numba"), sys.implementation.cache_tag, platform.machine(),
        *((stat.st_mtime_ns, stat.st_size) for stat in stats),
    )  # fmt: skip
    return root / sha256(repr(key).encode()).hexdigest()[:32]


def copy_compiled_loops(target: Path, root: Path | None = None) -> None:
    """Give a payload the loops, where they have been compiled.

    Raises:
        OSError: what stopped it, by its number: `shutil.copytree` collects errors without theirs,
            and a full disk passes where others do not.
    """
    top = root or home()
    found = None if top is None else folder_of(top)
    if found is None or not found.is_dir():
        return
    for folder, _, files in os.walk(found):
        copied = target / Path(folder).relative_to(found)
        copied.mkdir(parents=True, exist_ok=True)
        for name in files:
            shutil.copyfile(Path(folder, name), copied / name)


def has_compiled_loops(root: Path | None = None) -> bool:
    """Whether payloads get the loops; False also where they cannot be kept."""
    top = root or home()
    return top is not None and folder_of(top).is_dir()


def ensure_compiled_loops(root: Path | None = None) -> None:
    """Compile the loops unless they are there; for processes that payloads do not run in.

    Does nothing where no folder can be written, or while another process does it: payloads then
    compile what they use themselves.  An attempt that fails is not repeated.

    Cost: about 23 s of CPU, once.
    """
    top = root or home()
    if top is None or has_compiled_loops(top):
        return
    target = folder_of(top)
    try:
        top.mkdir(parents=True, exist_ok=True)
        with _alone(top / "lock") as alone:
            if alone and not target.is_dir():
                made = Path(mkdtemp(dir=top, prefix="making-"))
                compile_into(made)
                made.rename(target)
                _forget(top)
    except OSError:
        return


@contextmanager
def _alone(lock: Path) -> Iterator[bool]:
    """Whether nobody else is within the block."""
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def compile_into(folder: Path) -> None:
    """Run the example's compile in a process of its own; `folder` stays empty when it fails."""
    environment = {
        "PATH": os.defpath,
        "PYTHONPATH": str(PACKAGE.parent),
        "LANG": "C.UTF-8",
        "NUMBA_CACHE_DIR": str(folder),
    }
    command = (sys.executable, "-P", "-m", "worker.children.compile_loops")
    try:
        subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, check=False, timeout=_LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return


def _forget(top: Path) -> None:
    """Remove what has not been made for longest."""
    made = sorted((p for p in top.iterdir() if p.is_dir()), key=lambda p: -p.stat().st_mtime)
    for path in made[_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)

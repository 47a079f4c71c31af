"""Tiers of isolation for processes that run what users give us, and the one that works here.

`T1`: bubblewrap around the supervised payload.  `T0`: supervisor and limits alone.  `weak`: no
Linux, so not even the supervisor.  What each keeps is stated once, in `HOLDS` and `LACKS`, and
tested; nothing is claimed because a program is installed: it is tried.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from worker.compiler.errors import CompilerError

_PACKAGE = Path(__file__).parents[1]
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store",
           "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
           "/sys/devices/system/cpu")  # fmt: skip
"""What programs and the C compiler need of a Linux system; nothing that says who uses it."""
_COMPILERS = ("cc", "gcc", "clang")
_MEMORY_FOLDER_BYTES = 64 << 20
_PROBE_S = 20
_STRICT = ("--unshare-user", "--disable-userns")
"""Namespaces within the sandbox would bring back mounts without a limit of their size."""


class Tier(StrEnum):
    """How well a payload is kept apart."""

    BUBBLEWRAP = "T1"
    LIMITS = "T0"
    WEAK = "weak"


class IsolationChoice(StrEnum):
    """The setting."""

    AUTO = "auto"
    """bubblewrap where it works, limits elsewhere."""
    BUBBLEWRAP = "bubblewrap"
    """Nothing runs where bubblewrap does not work."""
    LIMITS = "limits"
    """Never bubblewrap."""


_SUPERVISED = (
    "limits in total over all processes, read four times a second: memory, processes, file bytes"
    " in its folders",
    "limits by the kernel: address space of a process, size of a file",
    "every process is gone when it ends, and when its worker dies",
    "nothing of the service's environment or open files is inherited",
)
HOLDS: dict[Tier, tuple[str, ...]] = {
    Tier.BUBBLEWRAP: (
        "sees a read-only Python, C compiler and its own folders: no home, data directory,"
        " database or other job",
        "no network, not even this machine's loopback",
        "its own processes, System V IPC and host name; no privileges to gain",
        *_SUPERVISED,
    ),
    Tier.LIMITS: _SUPERVISED,
    Tier.WEAK: ("limits by the kernel, where it has them",),
}
LACKS: dict[Tier, tuple[str, ...]] = {
    Tier.BUBBLEWRAP: (
        "a limit in total may be passed for up to a second before the payload is killed",
        "kernel memory (pipes, sockets, descriptors in flight), detached System V segments and"
        " 128 MiB of /tmp and /dev/shm are not counted",
    ),
    Tier.LIMITS: (
        "it can read and write every file its user can, the data directory included",
        "it can reach every network address this machine can",
        "files outside its folders are not counted",
        "a limit in total may be passed for up to a second before the payload is killed",
    ),
    Tier.WEAK: (
        "no limits in total, and processes may outlive it",
        "it can read and write every file, and reach every address, its user can",
    ),
}


@dataclass(frozen=True, slots=True)
class Mounts:
    """What a payload sees of the file system beside Python and the C compiler."""

    read_only: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    """Its own folders; their contents count against the limit of file bytes."""
    hidden: tuple[Path, ...] = ()
    """Folders that no mounted folder may show, should one contain them."""
    search_path: str = os.defpath
    """PATH of the payload: where its C compiler is looked for."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """The tier that was found, and how to get there."""

    tier: Tier
    reason: str
    """Why it is no better; empty for T1."""
    command: tuple[str, ...] = ()
    """bubblewrap and its namespaces, for T1."""

    @property
    def own_processes(self) -> int:
        """Processes around the payload that are not its own."""
        return 2 if self.tier is Tier.BUBBLEWRAP else 0

    def wrap(self, argv: Sequence[str], view: Mounts, cwd: Path) -> list[str]:
        """The command that runs `argv` in this tier; `argv` itself where nothing wraps it."""
        if self.tier is not Tier.BUBBLEWRAP:
            return list(argv)
        return [*self.command, *_mounts(view), "--chdir", str(cwd), "--", *argv]


def isolation(choice: IsolationChoice = IsolationChoice.AUTO) -> Isolation:
    """The isolation that `choice` gives on this machine.

    Raises:
        CompilerError: TW-SVC-018, bubblewrap is demanded and does not work here.
    """
    if choice is IsolationChoice.LIMITS:
        return _limits("the setting `isolation` is `limits`")
    found = probed()
    if choice is IsolationChoice.BUBBLEWRAP and found.tier is not Tier.BUBBLEWRAP:
        raise CompilerError(
            "TW-SVC-018",
            f"isolation by bubblewrap is demanded, and this machine has {found.tier} only:"
            f" {found.reason}",
            limit=str(Tier.BUBBLEWRAP),
            actual=str(found.tier),
        )
    return found


@cache
def probed() -> Isolation:
    """Try bubblewrap once per process, with the mounts and namespaces that payloads get."""
    program = shutil.which("bwrap")
    if sys.platform != "linux":
        return _limits("bubblewrap needs Linux")
    if program is None:
        return _limits("bubblewrap is not installed")
    said = ""
    for namespaces in (_STRICT, ("--unshare-user-try",)):
        command = (
            program, *namespaces, "--unshare-ipc", "--unshare-pid", "--unshare-net",
            "--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox",
            "--die-with-parent", "--new-session", "--cap-drop", "ALL",
        )  # fmt: skip
        found = Isolation(Tier.BUBBLEWRAP, "", command)
        argv = found.wrap((sys.executable, "-I", "-S", "-c", "print('works')"), Mounts(), Path("/"))
        try:
            tried = subprocess.run(
                argv, capture_output=True, text=True, timeout=_PROBE_S, check=False, env={}
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
            continue
        if tried.returncode == 0 and tried.stdout == "works\n":
            return found
        said = tried.stderr.strip().splitlines()[-1] if tried.stderr.strip() else "no message"
    return _limits(f"bubblewrap is installed and does not work: {said[:300]}")


def _limits(reason: str) -> Isolation:
    is_full = sys.platform == "linux" and hasattr(os, "pidfd_open")
    return Isolation(Tier.LIMITS if is_full else Tier.WEAK, reason)


def _mounts(view: Mounts) -> Iterator[str]:
    """bubblewrap's arguments for the file system of a payload, in order: later ones lie above."""
    yield from ("--proc", "/proc", "--dev", "/dev")
    for folder in ("/dev/shm", "/tmp"):
        # What lies in such a folder is memory that no process owns: it has to be small.
        yield from ("--size", str(_MEMORY_FOLDER_BYTES), "--tmpfs", folder)
    shown = _roots(view.search_path)  # above /tmp: virtual environments are made there, too
    for path in shown:
        yield from ("--ro-bind", str(path), str(path))
    for path in view.hidden:
        if path.exists() and any(path.is_relative_to(root) for root in shown):
            yield from ("--tmpfs", str(path))
    for path in view.read_only:
        yield from ("--ro-bind", str(path), str(path))
    for path in view.writable:
        yield from ("--bind", str(path), str(path))
    # Root may write the kernel's settings below /proc by owning them, whatever it was deprived of.
    yield from ("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/")


def _roots(search_path: str) -> list[Path]:
    """Files and folders of Python, this package and the C compiler; none within another."""
    found = [Path(name) for name in _SYSTEM]
    found += map(Path, (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix))
    # A package may be installed outside of the environment that a path file ties it to.
    found += [Path(name) for name in sys.path if name.endswith(("site-packages", "dist-packages"))]
    found.append(_dependencies() or _PACKAGE)
    for name in _COMPILERS:
        compiler = shutil.which(name, path=search_path)
        if compiler is not None:
            found += (_installation(Path(compiler)), _installation(Path(compiler).resolve()))
    kept: list[Path] = []
    for path in sorted({p for p in found if p.exists()}, key=lambda p: len(p.parts)):
        if len(path.parts) > 1 and not any(path.is_relative_to(root) for root in kept):
            kept.append(path)
    return kept


def _installation(program: Path) -> Path:
    """The folder a program of its `bin` was installed to; the program itself outside one."""
    prefix = program.parent.parent
    is_own = program.parent.name == "bin" and prefix not in (Path("/"), Path.home())
    return prefix if is_own else program


def _dependencies() -> Path | None:
    """The folder that holds this package, where its dependencies are installed beside it."""
    spec = find_spec("numpy")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parents[1]
    return folder if _PACKAGE.parent == folder else None

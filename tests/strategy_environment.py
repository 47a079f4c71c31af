"""An environment of its own that sees this one's packages, for strategies to be installed into."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment_like_this(folder: Path) -> Path:
    """Make it; gives its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    ours = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
    (_packages(python) / "inherited.pth").write_text("\n".join(ours) + "\n")
    return python


def pip_into(python: Path) -> dict[str, str]:
    """Variables with which this environment's pip installs into that one, from no index."""
    return {"PIP_TARGET": str(_packages(python)), "PIP_NO_INDEX": "1"}


def run_page(folder: Path, lines: Sequence[str]) -> Path:
    """Run the commands of a page in a checkout of their own, with `pip` and `tilewright` of an
    environment like this; what each printed is in `printed/<number>`.  Gives the checkout."""
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "printed").mkdir()
    python = environment_like_this(folder / "env")
    for name, line in (
        ("pip", f'exec "{sys.executable}" -m pip "$@"'),
        ("tilewright", f'exec "{python}" -P -m service.cli.main "$@"'),
    ):
        tool = python.parent / name
        tool.write_text(f"#!/bin/sh\n{line}\n")
        tool.chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TILEWRIGHT_")}
    environment |= pip_into(python) | {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "TILEWRIGHT_DATA_DIR": str(folder / "data"),
    }
    for number, command in enumerate(lines):
        done = subprocess.run(
            ["bash", "-euc", command], cwd=folder, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr}"
        (folder / "printed" / str(number)).write_text(done.stdout + done.stderr)
    return folder


def _packages(python: Path) -> Path:
    told = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return Path(told.stdout.strip())

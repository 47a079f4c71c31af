"""An environment of its own that sees this one's packages, for strategies to be installed into."""

from __future__ import annotations

import subprocess
import sys
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


def _packages(python: Path) -> Path:
    told = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return Path(told.stdout.strip())

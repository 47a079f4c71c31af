"""A virtual environment for every peer, made once and kept."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Environment:
    """What a peer is installed with."""

    requirements: tuple[str, ...]
    python: str = sys.executable
    """Interpreter to make it with."""


ENVIRONMENTS = {
    "accelforge": Environment(("accelforge==1.0.467",), python="python3.12"),
    # six: zigzag-dse imports it and does not ask for it.
    "zigzag": Environment(("zigzag-dse==3.9.1", "six")),
    "nn-dataflow": Environment(("nn-dataflow==2.1", "sympy==1.5")),
    "scalesim": Environment(("scalesim==3.0.0", "numpy<2.4")),
}


def python_of(peer: str, folder: Path) -> Path:
    """The interpreter of a peer's environment, which is made where it is missing.

    Raises:
        subprocess.CalledProcessError: the peer cannot be installed.
    """
    wanted = ENVIRONMENTS[peer]
    root = (folder / peer).resolve()
    python, done = root / "bin" / "python", root / "installed.json"
    asked = json.dumps(wanted.requirements)
    if not (done.exists() and done.read_text() == asked):
        subprocess.run([wanted.python, "-m", "venv", "--clear", str(root)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", *wanted.requirements], check=True
        )
        done.write_text(asked)
    return python


def run_peer(peer: str, python: Path, exported: Path, limit_s: float) -> dict[str, Any]:
    """Figures by kernel that the peer's runner prints for a folder of exported files.

    `failure` instead, with its last words, where it ends badly.
    """
    runner = Path(__file__).parent / f"{peer.replace('-', '_')}_run.py"
    try:
        child = subprocess.run(
            [str(python), str(runner), str(exported)],
            capture_output=True, text=True, check=False, timeout=limit_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"failure": f"stopped after {limit_s:g} s"}
    if child.returncode != 0:
        last = (child.stderr.strip().splitlines() or ["no output"])[-1]
        return {"failure": f"exit {child.returncode}: {last[:300]}"}
    found: dict[str, Any] = json.loads(child.stdout.strip().splitlines()[-1])
    return found

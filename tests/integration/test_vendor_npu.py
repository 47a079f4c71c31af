"""A vendor's NPU by the commands of its page (docs/vendor.md), and hostile images for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from document_commands import commands
from strategy_environment import run_page

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.document
COMMANDS = [command.line for command in commands((ROOT / "docs/vendor.md").read_text())]
FUZZ = """
import sys, numpy as np
from pathlib import Path
from vendor_npu.engine import opened

image = Path(sys.argv[1]).read_bytes()
simulator = opened(Path(sys.argv[2]))
simulator.load(image)
draw, refused, executed = np.random.default_rng(1), 0, 0
for number in range(400):
    bad = bytearray(image)
    for _ in range(1 + number % 4):
        at = int(draw.integers(512))
        bad[at if not 20 <= at < 24 else 0] = int(draw.integers(256))  # its memory stays small
    try:
        region = simulator.load(bytes(bad))
        region.bind({n: memoryview(bytearray(size)) for n, size in region.ports.items()})
        if region.expected_cycles < 100_000:
            region.execute()
            executed += 1
    except (ValueError, UnicodeDecodeError):
        refused += 1
assert refused > 50 and executed > 20, (refused, executed)
for cut in range(0, len(image), max(1, len(image) // 50)):
    try:
        simulator.load(image[:cut])
    except ValueError:
        continue
    raise SystemExit(f"a cut at {cut} was taken")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which they have run."""
    return run_page(tmp_path_factory.mktemp("checkout"), COMMANDS)


def image_of(folder: Path) -> bytes:
    with zipfile.ZipFile(folder / "out" / "model.twb") as archive:
        return archive.read("regions/0/vendor_npu.bin")


def test_its_bits_are_those_of_kernels_and_interpreter(folder: Path) -> None:
    found = []
    for name in ("npu", "kernels", "streams"):
        with np.load(folder / f"{name}.npz") as arrays:
            found.append({output: arrays[output].tobytes() for output in arrays.files})
    assert found[0] and found[0] == found[1] == found[2]
    ran = [line for line in COMMANDS if line.startswith("tilewright run")]
    printed = (folder / "printed" / str(COMMANDS.index(ran[0]))).read_text()
    assert "regions ran on vendor_npu_sim" in printed
    (row,) = [line for line in printed.splitlines() if "vendor_npu_sim" in line and "region" in line
              and "ran on" not in line]  # fmt: skip
    assert int(row.split("\t")[7].replace(",", "")) > 64  # cycles


def test_verification_ran_every_region_on_it(folder: Path) -> None:
    report = json.loads((folder / "out" / "report.json").read_bytes())
    assert report["verification"]["passed"] is True
    rows = [r for r in report["verification"]["outputs"] if "vendor_npu_sim" in r["name"]]
    assert rows and all(row["max_abs_err"] == 0 for row in rows)
    written = report["toolchain"]["serializers"]["vendor_npu"]
    assert (written["version"], written["distribution"]) == ("1.1", "vendor-npu 1.1")
    own = [row for row in report["images"] if row["serializer"] == "vendor_npu"]
    assert len(own) == len({row["region"] for row in report["images"]})
    assert image_of(folder).startswith(b"VNPU")
    assert not [row for row in report["warnings"] if row["code"] == "SERIALIZER_REFUSED"]


def test_hostile_images_are_refused_and_crash_nothing(folder: Path) -> None:
    """In a process of its own, which a stray access would end."""
    path = folder / "image.bin"
    path.write_bytes(image_of(folder))
    python = folder / "env" / "bin" / "python"
    done = subprocess.run(
        [str(python), "-P", "-c", FUZZ, str(path), str(folder)], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_without_the_package_its_bundle_says_what_to_do(folder: Path) -> None:
    command = [
        sys.executable, "-m", "service.cli.main", "run", "out/model.twb", "--input", "in.npz", "-o",
        "none.npz",
    ]  # fmt: skip
    environment = {**os.environ, "TILEWRIGHT_DATA_DIR": str(folder / "data")}
    done = subprocess.run(
        command, cwd=folder, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "TW-PLUG-001" in done.stderr and "--engine kernels" in done.stderr

"""`--link` from the command line, and what is made of a linked bundle afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from instruction_chips import chip, cv, quantised
from typer.testing import CliRunner
from vendor_libraries import SYMBOL, vendor_library

from service.cli.main import app


def said(words: list[str]) -> tuple[int, str]:
    found = CliRunner().invoke(app, words)
    return found.exit_code, found.output


@pytest.fixture
def linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A bundle that was compiled with a library, and the library."""
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    library = vendor_library(tmp_path / "lib")
    spec = tmp_path / "chip.json"
    spec.write_text(json.dumps(chip({**cv(10), "call": SYMBOL})))
    model = quantised(tmp_path / "net.onnx", 1)
    code, text = said(
        ["compile", str(model), "--hardware", str(spec), "--link", str(library),
         "-o", str(tmp_path / "out"), "--strategy", "naive"]
    )  # fmt: skip
    assert code == 0, text
    return tmp_path / "out" / "net.twb", library


def test_a_linked_bundle_runs_with_its_library_alone(
    linked: tuple[Path, Path], tmp_path: Path
) -> None:
    bundle, library = linked
    report = json.loads((bundle.parent / "report.json").read_bytes())
    assert report["toolchain"]["library"]["name"] == "vendor_mm"
    given = tmp_path / "in.npz"
    values = np.random.default_rng(3).normal(size=(1, 16, 16, 16)).astype(np.float32)
    np.savez(given, x=values)

    def run(out: str, *words: str) -> tuple[int, str]:
        return said(["run", str(bundle), "--input", str(given), "-o", str(tmp_path / out), *words])

    code, text = run("linked.npz", "--link", str(library))
    assert code == 0, text
    code, text = run("none.npz")
    assert code != 0 and "TW-LINK-006" in text and "vendor_mm 1.0" in text
    newer = vendor_library(tmp_path / "lib", "libnewer.so", version="2.0")
    code, text = run("newer.npz", "--link", str(newer))
    assert code != 0 and "TW-LINK-006" in text and "vendor_mm 2.0" in text
    code, text = run("streams.npz", "--interpret", "1")
    assert code == 0, text
    outputs = [np.load(tmp_path / f"{name}.npz")["y"] for name in ("linked", "streams")]
    assert outputs[0].tobytes() == outputs[1].tobytes()


def test_no_library_is_built_of_a_linked_bundle(linked: tuple[Path, Path], tmp_path: Path) -> None:
    bundle, _ = linked
    code, text = said(["build", str(bundle), "-o", str(tmp_path / "built")])
    assert code != 0 and "TW-LIB-010" in text and "vendor_mm 1.0" in text


def test_a_file_that_is_no_library_is_refused_at_once(tmp_path: Path) -> None:
    model = quantised(tmp_path / "net.onnx", 1)
    other = tmp_path / "notes.so"
    other.write_text("not a library")
    code, text = said(
        ["compile", str(model), "--hardware", "ethos-u65", "--link", str(other),
         "-o", str(tmp_path / "out")]
    )  # fmt: skip
    assert code != 0 and "TW-LINK-001" in text
    code, text = said(
        ["compile", str(model), "--hardware", "ethos-u65", "--link", str(tmp_path / "none.so"),
         "-o", str(tmp_path / "out")]
    )  # fmt: skip
    assert code != 0 and "none.so" in text

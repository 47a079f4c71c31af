"""The backend kit: what `backend new` writes is sound, works as generated, and replaces nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from service.cli.main import app
from worker.backend_kit.kit import kit_files, write_kit
from worker.compiler.codegen.runtime_header import runtime_header
from worker.compiler.errors import InputError
from worker.compiler.machine import lint_document, load_machine, parse_document
from worker.compiler.machine.spec import CapabilitiesSpec
from worker.conformance.cases import Selection
from worker.conformance.conform import check_machine
from worker.conformance.report import conformance_table

REPO = Path(__file__).resolve().parent.parent.parent


def test_the_spec_lints_clean_as_written() -> None:
    document = parse_document(kit_files("mychip")["mychip.yaml"])
    assert not lint_document(document)
    machine = load_machine(document)
    (target,) = machine.targets
    assert machine.name == "mychip" and target.layout is not None
    assert all("energy" in guess.pointer for guess in machine.guesses)  # left to the table
    assert target.capabilities.patterns and target.conversions and target.criteria.min_macs == 1
    assert any(op.limits for op in target.capabilities.ops)
    assert any(op.attributes for op in target.capabilities.ops)
    assert any(op.constant_inputs for op in target.capabilities.ops)


def test_the_spec_explains_every_section() -> None:
    text = kit_files("mychip")["mychip.yaml"]
    sections = set(yaml.safe_load(text)["capabilities"])
    assert sections >= {"ops", "patterns", "partition", "conversions", "layout", "launch_unit"}
    assert sections <= set(CapabilitiesSpec.model_fields)
    lines = text.splitlines()
    for section in ("levels:", "engines:", "host:", "capabilities:", "  ops:", "  patterns:",
                    "  partition:", "  conversions:", "  layout:"):  # fmt: skip
        assert lines[lines.index(section) - 1].lstrip().startswith("#"), section


@pytest.mark.parametrize("name", ["", "9chip", "my chip", "../evil", "a/b", "x" * 60, "a100"])
def test_bad_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        write_kit(name, tmp_path / "kit")
    assert refused.value.code == "TW-CLI-001" and not (tmp_path / "kit").exists()


def test_nothing_is_replaced_and_nothing_is_half_written(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(InputError, match=r"README\.md is there already"):
        write_kit("mychip", tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_the_header_keeps_every_declaration_of_the_portable_one() -> None:
    """Taking the vendor's places out again leaves the reference, line by line."""
    vendor = kit_files("my-chip")["tilewright_rt.h"].splitlines()
    added = iter(vendor)
    for line in runtime_header().splitlines():
        assert any(line == other for other in added), line
    places = ("TW_VENDOR_ENTER", "TW_VENDOR_DMA_3D", "TW_VENDOR_DMA_ELEMENTS", "TW_VENDOR_GEMM")
    text = "\n".join(vendor)
    assert all(f"#if defined({place})" in text for place in places)


VENDOR = """\
static inline void my_dma(unsigned char *d, const unsigned char *s, int64_t n0, int64_t n1,
    int64_t n2, int64_t bytes, int64_t d0, int64_t d1, int64_t d2, int64_t s0, int64_t s1,
    int64_t s2)
{
    for (int64_t t = 0; t < n0 * n1 * n2; ++t) {
        int64_t i = t / (n1 * n2), j = t / n2 % n1, k = t % n2;
        for (int64_t b = 0; b < bytes; ++b)
            d[i * d0 + j * d1 + k * d2 + b] = s[i * s0 + j * s1 + k * s2 + b];
    }
}
#define TW_VENDOR_ENTER(m, level, instance, address) \\
    ((m)->arena[level] + (instance) * (m)->instance_stride_bytes[level] + (address))
#define TW_VENDOR_DMA_3D my_dma
#define TW_VENDOR_DMA_ELEMENTS(size, d, s, n0, n1, n2, d0, d1, d2, s0, s1, s2) \\
    my_dma(d, s, n0, n1, n2, size, d0, d1, d2, s0, s1, s2)
#define TW_VENDOR_GEMM(type, ctype, mb, ldc, kb, a, b, c) \\
    do { \\
        for (int64_t i = 0; i < (mb); ++i) \\
            for (int64_t j = 0; j < (ldc); ++j) \\
                for (int64_t k = 0; k < (kb); ++k) \\
                    (c)[i * (ldc) + j] += (ctype)(SIGN \\
                        (a)[i / TW_MR * TW_MR * (kb) + k * TW_MR + i % TW_MR] * \\
                        (b)[j / TW_NR * TW_NR * (kb) + k * TW_NR + j % TW_NR]); \\
    } while (0)
"""


def with_instructions(header: str, sign: str) -> str:
    """The stub with every macro defined; a minus sign makes the matrix unit wrong."""
    at = header.index("/* ---- the machine ---")
    return header[:at] + VENDOR.replace("SIGN", sign) + header[at:]


def test_kernels_give_the_right_numbers_with_the_stub_and_with_instructions(
    tmp_path: Path,
) -> None:
    files = kit_files("mychip")
    machine = load_machine(parse_document(files["mychip.yaml"]))
    stub = files["tilewright_rt.h"]
    selection = Selection(("Gemm", "Transpose", "dense_relu"), is_quick=True)
    for header in (stub, with_instructions(stub, "")):
        found = check_machine(machine, tmp_path, selection, header)
        assert found.passed, conformance_table(found)
    wrong = check_machine(machine, tmp_path, selection, with_instructions(stub, "-"))
    bad = {row.op_type for row in wrong.failures}
    assert {"Gemm", "dense_relu"} <= bad and "Transpose" not in bad


def test_the_command_writes_the_kit_and_tests_it(tmp_path: Path) -> None:
    runner = CliRunner()
    folder = tmp_path / "chip"
    made = runner.invoke(app, ["backend", "new", "mychip", "-o", str(folder)])
    assert made.exit_code == 0, made.output
    compile((folder / "test_mychip.py").read_text(), "test_mychip.py", "exec")
    names = {path.name for path in folder.iterdir()}
    assert names == {"mychip.yaml", "tilewright_rt.h", "test_mychip.py", "README.md"}
    again = runner.invoke(app, ["backend", "new", "mychip", "-o", str(folder)])
    assert again.exit_code == 3
    spec, report = str(folder / "mychip.yaml"), tmp_path / "report.json"
    tested = runner.invoke(
        app, ["backend", "test", spec, "--op", "Relu", "--header",
              str(folder / "tilewright_rt.h"), "--report", str(report)],
    )  # fmt: skip
    assert tested.exit_code == 0, tested.output
    assert "mychip conforms" in tested.stdout
    assert json.loads(report.read_text())["passed"] is True
    unknown = runner.invoke(app, ["backend", "test", spec, "--op", "Einsum"])
    assert unknown.exit_code != 0 and unknown.exit_code != 1


def test_a_spec_that_lies_exits_with_one(tmp_path: Path) -> None:
    text = kit_files("mychip")["mychip.yaml"]
    spec = tmp_path / "liar.yaml"
    spec.write_text(text.replace("    - op_type: MatMul\n", "    - op_type: Det\n", 1))
    tested = CliRunner().invoke(app, ["backend", "test", str(spec), "--op", "Det", "--json"])
    assert tested.exit_code == 1
    found = json.loads(tested.stdout)
    assert not found["passed"] and "not expressible" in found["cases"][0]["reason"]


@pytest.mark.campaign
def test_the_generated_test_passes(tmp_path: Path) -> None:
    """The whole quick suite of the kit, as its reader would run it."""
    write_kit("mychip", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir",
         str(tmp_path), str(tmp_path / "test_mychip.py")],
        cwd=REPO, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "2 passed" in done.stdout

"""`run` on bundles that somebody changed: in the sandbox, on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_bundle import expected, inputs
from test_bundle_kernels import Members, tampered
from typer.testing import CliRunner

from service.cli.main import app
from worker.job.arrays import write_npz
from worker.sandbox.isolation import Tier, isolation

Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a bundle; give the exit code and the JSON answer."""
    write_npz(tmp_path / "in.npz", inputs())

    def invoke(bundle: Path, *more: str) -> tuple[int, dict[str, Any]]:
        arguments = ["run", str(bundle), "--input", str(tmp_path / "in.npz")]
        arguments += ["-o", str(tmp_path / "out.npz"), "--data-dir", str(tmp_path / "data")]
        done = CliRunner().invoke(app, [*arguments, *more, "--json"])
        return done.exit_code, json.loads(done.stdout)

    return invoke


def _constructor(escape: Path, secret: Path) -> Callable[[Members], None]:
    """C that acts when it is loaded: writes a file, and fails the run if it can read another."""

    def change(members: Members) -> None:
        text = members["kernels/tw_first.c"].decode()
        members["kernels/tw_first.c"] = (
            "#include <stdio.h>\n#include <stdlib.h>\n"
            f"{text}\n__attribute__((constructor)) static void evil(void) {{\n"
            f'  FILE *f = fopen("{escape}", "w"); if (f) fclose(f);\n'
            f'  if (fopen("{secret}", "r")) abort();\n}}\n'
        ).encode()

    return change


def test_changed_text_is_neither_run_nor_taken_for_good(tmp_path: Path, run: Run) -> None:
    escape, secret = tmp_path / "escape", tmp_path / "secret"
    secret.write_text("x")
    change = _constructor(escape, secret)
    code, answer = run(tampered(tmp_path / "evil.twb", change))
    assert (code, answer["code"]) == (3, "TW-RUN-005")
    assert "tw_first" in answer["detail"] and "--trust" in answer["remedy"]
    assert not (tmp_path / "out.npz").exists()
    older = tampered(
        tmp_path / "older.twb", change, toolchain=lambda made: {**made, "codegen": "0"}
    )
    code, answer = run(older)
    assert (code, answer["kernels"]) == (0, "regenerated")
    assert not escape.exists()
    if isolation().tier is Tier.BUBBLEWRAP:
        code, answer = run(older, "--trust")
        assert (code, answer["kernels"]) == (0, "trusted"), answer
        assert not escape.exists()  # it ran, where it sees neither file
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["s"], expected()[0], rtol=1e-5, atol=1e-6)


def test_a_good_bundle_runs_with_a_profile(tmp_path: Path, run: Run) -> None:
    code, answer = run(tampered(tmp_path / "good.twb", lambda _: None), "--profile")
    assert (code, answer["kernels"]) == (0, "compared")
    assert [call["kind"] for call in answer["profiles"][0]["calls"]] == ["kernel", "host", "kernel"]
    assert not (tmp_path / "data").exists()  # nothing is kept for the next


def test_format_1_is_refused_with_its_version(tmp_path: Path, run: Run) -> None:
    old = tampered(tmp_path / "old.twb", lambda _: None, format_version=lambda _: 1)
    code, answer = run(old)
    assert (code, answer["code"], answer["actual"]) == (3, "TW-RUN-004", 1)
    assert "format 1, made by Tilewright 0.1" in answer["detail"]


def _value(path: str, found: object) -> Callable[[Members], None]:
    """`model/graph.json` with another value at a place."""

    def change(members: Members) -> None:
        document = json.loads(members["model/graph.json"])
        *way, last = [int(step) if step.isdigit() else step for step in path.split("/")]
        place = document
        for step in way:
            place = place[step]
        place[last] = found
        members["model/graph.json"] = json.dumps(document).encode()

    return change


def _cut(members: Members) -> None:
    """A loop's kind is not whole."""
    name = next(name for name in members if name.startswith("schedules/"))
    head, _, _ = members[name].partition(b"loop ")
    members[name] = head + b"loop pa"


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (_value("tensors/0/shape/0", 10**15), "TW-RUN-001", "not the bytes of its shape"),
        (_value("tensors/0/shape/0", -1), "TW-RUN-001", "dimension -1"),
        (_value("tensors/0/dtype", "f31"), "TW-RUN-001", "'f31' is no type"),
        (_value("host_entries", [{"name": "v", "dtype": "f32", "shape": [1 << 40, 1 << 40]}]),
         "TW-RUN-001", "larger than any memory"),
        (_cut, "TW-RUN-005", "is no LoopKind"),
    ],
    ids=["vast", "negative", "type", "host value", "cut"],
)  # fmt: skip
def test_numbers_that_fit_nothing_are_refused(
    tmp_path: Path, run: Run, change: Callable[[Members], None], code: str, words: str
) -> None:
    ended, answer = run(tampered(tmp_path / "bad.twb", change))
    assert (ended, answer["code"]) == (3, code)
    assert words in answer["detail"]


def test_a_crash_of_the_run_is_said(tmp_path: Path, run: Run) -> None:
    def crash(members: Members) -> None:
        text = members["kernels/tw_first.c"].decode()
        members["kernels/tw_first.c"] = text.replace("{", "{ *(volatile int *)8 = 1;", 1).encode()

    code, answer = run(tampered(tmp_path / "crash.twb", crash), "--trust")
    assert (code, answer["code"]) == (4, "TW-RUN-006")
    assert "signal 11" in answer["detail"]

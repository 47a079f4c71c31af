"""Modules that most payloads import and never use run when they are used."""

from __future__ import annotations

import subprocess
import sys

START = """
import sys
from worker.sandbox.lazy_modules import import_lazily
import_lazily()
import_lazily()
import worker.job.job, onnx_ir
"""


def said(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", START + code], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_compiler_comes_up_without_sympy() -> None:
    assert said("print('sympy.core' in sys.modules, len(sys.meta_path))")[:5] == "False"


def test_it_is_there_when_it_is_asked_for() -> None:
    assert said("print(onnx_ir.SymbolicDim('N') + 1, 'sympy.core' in sys.modules)") == "N + 1 True"


def test_a_module_that_is_missing_is_missing_at_once() -> None:
    code = """
import worker.sandbox.lazy_modules as lazy
lazy.LAZY = ("no_such_module_anywhere",)
try:
    import no_such_module_anywhere
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert said(code) == "no_such_module_anywhere"

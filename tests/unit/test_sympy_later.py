"""A compile imports sympy when a symbolic size is calculated with, and not before."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
from worker.children.sandbox_child import load_runner
load_runner("worker.job.job:run_job")
assert "onnx_ir" in sys.modules and "sympy" not in sys.modules
import onnx_ir
size = onnx_ir.SymbolicDim("max(N, 3) + 1")
print((size + 2).evaluate({"N": 7}), "sympy" in sys.modules)
import sympy
print(sympy.Integer(3) + 1)
"""


def test_sympy_is_imported_when_it_is_asked_for() -> None:
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["10", "True", "4"]


NEEDY = """
import sys
from worker.compiler.frontend import sympy_later

class Needy:
    def find_spec(self, name, path=None, target=None):
        if name == "onnx_ir" and type(sys.modules.get("sympy")).__name__ == "_Later":
            {needs}

sys.meta_path.insert(0, Needy())
sympy_later.import_onnx_ir()
assert "sympy" not in sys.modules and "onnx_ir" not in sys.modules
import onnx_ir
print(onnx_ir.SymbolicDim("N").value, "sympy" in sys.modules)
"""


@pytest.mark.parametrize(
    "needs",
    [
        "from sympy import Expr",
        "import sympy; class_ = sympy.Expr",
        "import sympy; sympy.Max(1, 2)",
    ],
)
def test_a_version_that_needs_it_at_once_gets_it(needs: str) -> None:
    """A class, which no function can stand for, or a result."""
    code = NEEDY.replace("{needs}", needs)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["N", "True"]

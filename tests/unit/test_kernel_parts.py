"""A kernel of many layers is several C functions; it stays the kernel it would be as one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from multi_layer_schedules import ChainShape, chain, machine

from worker.compiler.codegen import parts
from worker.compiler.codegen.kernel import generate_kernel
from worker.compiler.errors import MemoryFault
from worker.compiler.isa.program import UnitProgram
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.package.build import build_library
from worker.compiler.package.emulator import Arena, Emulator
from worker.compiler.package.executable import level_specs
from worker.compiler.schedule.nodes import Schedule


def _deep(layers: int) -> tuple[Schedule, UnitProgram, Machine]:
    on = machine(2, 1, gb_bytes=2 * 4 * 8 * 4)
    schedule, _, _ = chain(ChainShape(layers=layers), on)
    return schedule, lower_unit(schedule, on, "k"), on


def _whole(monkeypatch: pytest.MonkeyPatch, layers: int) -> str:
    """The kernel as one function."""
    with monkeypatch.context() as patch:
        patch.setattr(parts, "PART_LINES", 1 << 30)
        return generate_kernel(*_deep(layers), "tw_whole")


def _load(kernels: dict[str, str], layers: int, folder: Path) -> Emulator:
    _, program, on = _deep(layers)
    return Emulator(build_library(kernels, folder), level_specs(on), [program])


def _results(emulator: Emulator, name: str, program: UnitProgram) -> list[bytes]:
    random = np.random.default_rng(7)
    homes: list[Arena] = []
    for operand in program.operands:
        home = Arena(operand.size_bytes + 64)
        values = random.standard_normal(operand.size_bytes // 4).astype(np.float32) * 0.3
        home.buffer()[: operand.size_bytes] = values.tobytes()
        homes.append(home)
    emulator.call(name, program, [home.address for home in homes])
    return [bytes(home.buffer()) for home in homes]


def test_parts_compute_what_one_function_computes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Bit for bit, in every operand."""
    layers = 24
    cut = generate_kernel(*_deep(layers), "tw_cut")
    assert cut.count("\nTW_PART void") >= 3
    whole = _whole(monkeypatch, layers)
    assert "TW_PART" not in whole
    _, program, _ = _deep(layers)
    emulator = _load({"tw_cut": cut, "tw_whole": whole}, layers, tmp_path)
    got, want = (_results(emulator, name, program) for name in ("tw_cut", "tw_whole"))
    assert got == want


def test_text_is_linear_in_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the layers, twice the text, but for the digits of more names."""
    short, long = (len(generate_kernel(*_deep(n), "k")) for n in (40, 80))
    assert long <= 2.2 * short
    assert len(_whole(monkeypatch, 80)) > 3 * len(_whole(monkeypatch, 40))
    deepest = max(
        len(line) - len(line.lstrip()) for line in generate_kernel(*_deep(80), "k").splitlines()
    )
    assert deepest <= 4 * parts.PART_LINES


def test_functions_and_macros_are_defined_once_before_their_use() -> None:
    text = generate_kernel(*_deep(60), "k")
    functions = re.findall(r"^TW_PART void (\w+)\(", text, re.MULTILINE)
    assert len(functions) == len(set(functions)) > 5
    for name in functions:
        defined, *calls = [m.start() for m in re.finditer(rf"\b{name}\b", text)]
        assert len(calls) == 1
        assert text.rfind("\n", 0, defined) == text.find(f"\nTW_PART void {name}(")
    macros = re.findall(r"^#define (k_at\d+) ", text, re.MULTILINE)
    assert len(macros) == len(set(macros)) > 5
    assert set(re.findall(r"\bk_at\d+\b", text)) == set(macros)


def _expanded(text: str) -> set[str]:
    """The node paths of a text, with its macros put in."""
    values: dict[str, str] = {}
    pattern = r'^#define (\w+_at\d+) (?:(\w+) )?"([\d.q]+)"$'
    defined = [m.groups() for m in re.finditer(pattern, text, re.MULTILINE)]
    while len(values) < len(defined):
        for name, outer, rest in defined:
            if outer is None or outer in values:
                values[name] = (values[outer] if outer else "") + rest
    found = re.findall(r'\(m, (?:TW_FAULT_INDEX, )?(?:(\w+_at\d+) )?"([\d.q]*)",', text)
    return {values.get(macro, "") + rest for macro, rest in found}


def test_macros_give_the_paths_of_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    _, program, _ = _deep(30)
    paths = _expanded(generate_kernel(*_deep(30), "k"))
    assert {b.path for b in program.buffers} <= paths
    assert paths == _expanded(_whole(monkeypatch, 30))


def test_fault_in_a_part_ends_the_kernel_and_names_the_path(tmp_path: Path) -> None:
    """The first buffer of the innermost part gets an address outside its arena."""
    layers = 24
    schedule, program, on = _deep(layers)
    text = generate_kernel(schedule, program, on, "tw_cut")
    last = program.buffers[-1]
    enter = re.compile(rf"(tw_enter\(m, [^,]+, {len(program.buffers) - 1}, \d+, [^,]+, )")
    broken, count = enter.subn(rf"\g<1>-{last.address + 64} + ", text)
    assert count == 1
    emulator = _load({"tw_cut": broken}, layers, tmp_path)
    with pytest.raises(MemoryFault, match=re.escape(last.path)):
        _results(emulator, "tw_cut", program)


def test_small_trees_stay_one_function() -> None:
    text = generate_kernel(*_deep(2), "k")
    assert "TW_PART" not in text
    assert "_at0" not in text

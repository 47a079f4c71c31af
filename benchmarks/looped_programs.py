"""What loops in programs save: size, lowering and simulation of a matrix product, with and without.

    python -m benchmarks.looped_programs [--shape 16384x14336x4096] [--preset a100] [--json]

Both programs come of the same schedule (the naive strategy's) and must be the same: the expansion
of the one equals the other byte for byte, and the simulations agree in every field.  Seconds are of
CPU, in this process, the compiled loops loaded before; the audit is of the program with loops, as
compiles have it and with all of its cores instead of few.  Exit 1: they are not the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import TypeVar
from unittest import mock

from worker.compiler.audit import few_cores
from worker.compiler.audit.audit import audit
from worker.compiler.errors import Shortfall
from worker.compiler.ir.affine import var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.isa.binary import encode_program
from worker.compiler.isa.program import Program, UnitProgram, expanded
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.strategies.naive.strategy import NaiveStrategy
from worker.simulator.results import UnitSimulation
from worker.simulator.run import simulate_unit

_EVERYTHING = 1 << 62
_Found = TypeVar("_Found")


def product(rows: int, columns: int, inner: int) -> Graph:
    """[rows, inner] x [inner, columns] in half precision."""
    axes = Axis("i", rows), Axis("j", columns), Axis("k", inner, AxisKind.REDUCE)
    op = TensorOp(
        "op0", axes,
        (Access("a", (var("i"), var("k"))), Access("b", (var("k"), var("j")))),
        Access("c", (var("i"), var("j"))), Apply(Fn.MUL, (Read(0), Read(1))), Reduce.ADD,
        Origin(("MatMul",), "MatMul"),
    )  # fmt: skip
    shapes = {"a": (rows, inner), "b": (inner, columns), "c": (rows, columns)}
    tensors = tuple(Tensor(name, shape, DType.F16) for name, shape in shapes.items())
    return Graph.build((op,), tensors, ("a", "b"), ("c",), ())


def measure(preset: str, shape: tuple[int, int, int]) -> dict[str, object]:
    """Figures of both programs."""
    machine = load_preset(preset)
    schedule = next(NaiveStrategy().candidates(product(*shape), machine))
    if isinstance(schedule, Shortfall):
        raise SystemExit(f"it does not fit: {schedule}")
    small = product(256, 256, 256)
    warm = next(NaiveStrategy().candidates(small, machine))
    assert not isinstance(warm, Shortfall)
    ready = lower_unit(warm, machine, "0", most_rows=0)
    simulate_unit(ready, machine)  # compiles the loops
    audit(warm, ready, machine)

    looped, lower_s = _timed(lambda: lower_unit(schedule, machine, "0", most_rows=0))
    _, audit_s = _timed(lambda: audit(schedule, looped, machine))
    with mock.patch.object(few_cores, "LEAST_CORES", 1 << 62):
        _, all_cores_s = _timed(lambda: audit(schedule, looped, machine))
    short, simulate_s = _timed(lambda: simulate_unit(looped, machine))
    full, full_lower_s = _timed(lambda: lower_unit(schedule, machine, "0", most_rows=_EVERYTHING))
    long, full_simulate_s = _timed(lambda: simulate_unit(full, machine))
    return {
        "preset": preset,
        "shape": "x".join(map(str, shape)),
        "cycles": short.cycles,
        "instructions": looped.num_instructions,
        "rows": looped.num_rows,
        "bytes": len(_bytes(looped)),
        "bytes_in_full": len(_bytes(full)),
        "lower_s": round(lower_s, 3),
        "lower_in_full_s": round(full_lower_s, 3),
        "audit_s": round(audit_s, 3),
        "audit_all_cores_s": round(all_cores_s, 3),
        "simulate_s": round(simulate_s, 3),
        "simulate_in_full_s": round(full_simulate_s, 3),
        "is_same": _bytes(expanded(looped)) == _bytes(full) and _same(short, long),
    }


def _timed(make: Callable[[], _Found]) -> tuple[_Found, float]:
    started = time.process_time()
    found = make()
    return found, time.process_time() - started


def _bytes(unit: UnitProgram) -> bytes:
    return encode_program(Program((unit,), (), 0, 0, 0))


def _same(one: UnitSimulation, other: UnitSimulation) -> bool:
    return all(getattr(one, f) == getattr(other, f) for f in UnitSimulation.__struct_fields__)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="a100")
    parser.add_argument("--shape", default="16384x14336x4096", help="MxNxK")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows, columns, inner = map(int, args.shape.split("x"))
    row = measure(args.preset, (rows, columns, inner))
    text = json.dumps(row) if args.json else "\n".join(f"{k:20} {v}" for k, v in row.items())
    sys.stdout.write(text + "\n")
    return 0 if row["is_same"] else 1


if __name__ == "__main__":
    raise SystemExit(main())

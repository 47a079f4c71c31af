"""Capacity: whether buffers fit a level, and what to say when they do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from worker.compiler.cost.compute import compute_dtype, rate
from worker.compiler.errors import Shortfall
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Tensor, TensorOp
from worker.compiler.machine.machine import EngineKind, Machine, MemoryLevel


def shortfall_of(
    level: MemoryLevel, terms: tuple[tuple[str, int], ...], sharers: int = 1
) -> Shortfall | None:
    """None when the buffers in `terms` fit one of `sharers` equal parts of `level`.

    Units: bytes.  `terms` name buffers (largest first); the Shortfall repeats them.
    """
    demand = sum(size for _, size in terms)
    bound = level.usable_bytes // max(1, sharers)
    if demand <= bound:
        return None
    name, size = terms[0]
    reserved = f" ({level.reserve_fraction:.0%} is reserved)" if level.reserve_fraction else ""
    levers = [
        f"raise the capacity of {level.name} so that {demand} bytes are usable by each of its"
        f" {max(1, sharers)} users{reserved}",
        f"shrink {name}, the largest buffer ({size} bytes)",
    ]
    if level.align_bytes > 1:
        levers.append(f"lower align_bytes of {level.name} (now {level.align_bytes})")
    return Shortfall(f"memory:{level.name}", demand, bound, "bytes", terms, tuple(levers))


def missing_engine(op: TensorOp, tensors: Mapping[str, Tensor], machine: Machine) -> Shortfall:
    """No compute engine has the rates that an operator needs.

    The first lever names the field to write, by engine: `/engines/VEC/macs_per_cycle/i64`.
    """
    dtype = compute_dtype(op, tensors)
    others = [
        e for kind in (EngineKind.VECTOR, EngineKind.SCALAR) for e in machine.engines_of(kind)
    ]
    fast = [engine for engine in others if rate(engine, dtype) > 0]
    if not others:
        what, lever = f"{dtype} operations", "let the target use a vector engine"
    elif fast:
        what = f"special {dtype} operations (exp, division, roots)"
        lever = f"give one a rate for them: /engines/{fast[0].name}/special_ops_per_cycle"
    else:
        what = f"{dtype} operations"
        lever = f"give one a rate for them: /engines/{others[0].name}/macs_per_cycle/{dtype}"
    levers = [lever]
    if others and not fast:
        levers += _conversions(dtype, machine)
    return Shortfall(
        "engine", 1, 0, f"engines with a rate for {what}", ((op.name, 1),),
        (*levers, f"run {op.name} on the host"),
    )  # fmt: skip


def _conversions(dtype: DType, machine: Machine) -> Iterator[str]:
    """What the option `precision` would turn a type into that engines have a rate for."""
    offered = {c.dtype for t in machine.targets for c in t.conversions if dtype in c.sources}
    rated = sorted(d for d in offered if any(rate(e, d) > 0 for e in machine.engines))
    if rated:
        yield f"convert the model: option precision={' or '.join(rated)}"


def not_fusible(names: tuple[str, ...]) -> Shortfall:
    """Operators that do not make one kernel: no loop nest serves all of them."""
    return Shortfall(
        "group", len(names), 1, "operators", tuple((name, 1) for name in names),
        ("run the operators one by one",),
    )  # fmt: skip

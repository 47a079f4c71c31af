"""Which operator, if the accelerator took it, would save most?

For every op type and kind of refusal that sends nodes to the host, the model is partitioned again
as if that refusal did not exist, and compared.  What the algebra cannot say, and what no engine has
a rate for, is listed apart: no change of the spec helps there.
Source: BYOC section 3.1.2 leaves it to the developer to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx_ir

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import AcceleratorTarget, Machine, OpSupport
from worker.compiler.partition.flow import read_flow
from worker.compiler.partition.measure import Ruler
from worker.compiler.partition.parts import Region
from worker.compiler.partition.plan import HOST, Partitioning
from worker.compiler.partition.rules import FREE_DTYPES, dtypes_text, element_type
from worker.compiler.partition.trials import Trials
from worker.compiler.rejection import ReasonCode

LIFTABLE = (
    ReasonCode.CAPABILITY_OP,
    ReasonCode.CAPABILITY_DTYPE,
    ReasonCode.CAPABILITY_ATTRIBUTE,
    ReasonCode.CONSTANT_INPUT,
)
"""Refusals that concern one op type: what a spec can lift by its row of the op list."""
_DECIDED = frozenset(
    {ReasonCode.CRITERION, ReasonCode.SINGLE_REGION, ReasonCode.WEIGHED, ReasonCode.BOUNDARY}
)
"""On the host by decision: the target takes the operator already."""


@dataclass(frozen=True, slots=True)
class Lift:
    """One kind of refusal of one op type, taken away."""

    op_type: str
    kind: ReasonCode
    """One of LIFTABLE."""


@dataclass(frozen=True, slots=True)
class Unlock:
    """What one lift would change, or why there is none."""

    op_type: str
    kind: ReasonCode
    nodes: tuple[str, ...]
    """Names of the nodes it concerns, in model order."""
    saves_s: float | None
    """Estimated seconds saved per run; negative: it would cost time.  None: cannot be lifted."""
    regions_before: int
    regions_after: int
    boundary_bytes_before: int
    """Activations that enter and leave regions."""
    boundary_bytes_after: int
    macs: int
    """Multiply-accumulates that move from the host to an accelerator."""
    sentence: str


def unlock_list(
    model: OnnxModel,
    machine: Machine,
    parts: Partitioning,
    repartition: Callable[[frozenset[Lift]], Partitioning],
    gain_of: Callable[[Partitioning], float],
) -> tuple[Unlock, ...]:
    """Ranked: most seconds saved first, then more nodes, then by op type; what cannot be lifted
    comes last.

    `parts` is the present partitioning.  `repartition` partitions as if lifts were granted, e.g.
    `partition(model, allowing(machine, lifts), ...)`.  `gain_of` gives the seconds a partitioning
    saves against the present one, e.g. by `estimated_seconds`.

    Cost: one repartition and one gain per op type and kind of refusal on the host.
    """
    nodes = tuple(model.ir.graph)
    trials = Trials(nodes, model.opset)
    ruler = Ruler(read_flow(model), nodes)
    groups: dict[tuple[str, ReasonCode, str], list[int]] = {}
    """(op type, kind, why it cannot be lifted or nothing) -> positions."""
    for k, row in enumerate(parts.placement):
        if row.target != HOST or row.is_inserted or row.reason_code in _DECIDED:
            continue
        unsaid = trials.rejection(k)
        if unsaid is not None:
            key = (row.op_type, unsaid.code, f"cannot be compiled: {unsaid.sentence}")
        else:
            why = _why_not(nodes[k], row.reason_code, machine)
            key = (row.op_type, row.reason_code, why)
        groups.setdefault(_merged(groups, key), []).append(k)
    before = _Size.of(parts, ruler)
    found: list[Unlock] = []
    for (op_type, kind, why), positions in groups.items():
        names = tuple(nodes[k].name or "" for k in positions)
        if why:
            text = f"{_count(names, op_type)} on the host {why}"
            found.append(
                Unlock(
                    op_type, kind, names, None, before.regions, before.regions,
                    before.boundary_bytes, before.boundary_bytes, 0, text,
                )
            )  # fmt: skip
            continue
        after_parts = repartition(frozenset({Lift(op_type, kind)}))
        after = _Size.of(after_parts, ruler)
        moved = [
            k
            for k, (old, new) in enumerate(zip(parts.placement, after_parts.placement, strict=True))
            if old.target == HOST and new.target != HOST
        ]
        saves_s = gain_of(after_parts)
        macs = ruler.macs(moved)
        text = _sentence(op_type, kind, names, saves_s, before, after, len(moved))
        found.append(
            Unlock(
                op_type, kind, names, saves_s, before.regions, after.regions,
                before.boundary_bytes, after.boundary_bytes, macs, text,
            )
        )  # fmt: skip
    return tuple(sorted(found, key=_rank))


def allowing(machine: Machine, lifts: frozenset[Lift]) -> Machine:
    """The machine whose target of highest priority makes none of these refusals.

    A lifted type is one that an engine of the target has a rate for.
    """
    target, *others = machine.targets
    ops = {support.op_type: support for support in target.capabilities.ops}
    for lift in sorted(lifts, key=lambda lift: (lift.op_type, lift.kind)):
        support = ops.get(lift.op_type)
        match lift.kind:
            case ReasonCode.CAPABILITY_OP:
                support = support or OpSupport(lift.op_type, ())
            case ReasonCode.CAPABILITY_DTYPE if support is not None:
                known = support.dtypes or target.capabilities.dtypes
                extra = [d for d in _computed(machine, target) if d not in known]
                support = replace(support, dtypes=(*known, *extra))
            case ReasonCode.CAPABILITY_ATTRIBUTE if support is not None:
                support = replace(support, limits=(), attributes=(), conditions=())
            case ReasonCode.CONSTANT_INPUT if support is not None:
                support = replace(support, constant_inputs=())
        if support is not None:
            ops[lift.op_type] = support
    capabilities = replace(target.capabilities, ops=tuple(ops[name] for name in sorted(ops)))
    return replace(machine, targets=(replace(target, capabilities=capabilities), *others))


@dataclass(frozen=True, slots=True)
class _Size:
    regions: int
    boundary_bytes: int

    @classmethod
    def of(cls, parts: Partitioning, ruler: Ruler) -> _Size:
        measured = [ruler.measure(Region(p.target, p.nodes, p.composites)) for p in parts.regions]
        return cls(len(measured), sum(m.boundary_bytes for m in measured))


def _merged(
    groups: dict[tuple[str, ReasonCode, str], list[int]], key: tuple[str, ReasonCode, str]
) -> tuple[str, ReasonCode, str]:
    """The first group of the same op type and kind that cannot be lifted either: sentences name
    single nodes, one of them is enough."""
    if not key[2]:
        return key
    return next((k for k in groups if k[:2] == key[:2] and k[2]), key)


def _why_not(node: onnx_ir.Node, kind: ReasonCode, machine: Machine) -> str:
    """Why no row of the op list can lift a refusal; empty when one can."""
    if kind not in LIFTABLE:
        return f"is there for a reason that the op list does not decide ({kind})"
    if node.domain not in ("", "ai.onnx"):
        return f"belongs to the domain {node.domain!r}"
    if kind is not ReasonCode.CAPABILITY_DTYPE:
        return ""
    computed = _computed(machine, machine.targets[0])
    for value in (*node.inputs, *node.outputs):
        found = None if value is None else element_type(value)
        dtype = None if found is None else DTYPES.get(found)
        if dtype is not None and dtype not in computed and dtype not in FREE_DTYPES:
            return f"needs {dtype}, and engines have rates for {dtypes_text(computed)} only"
    return ""


def _computed(machine: Machine, target: AcceleratorTarget) -> tuple[DType, ...]:
    """Types that an engine of the target has a rate for."""
    engines = machine.restricted(target).engines
    return tuple(d for d in DType if any(engine.macs_per_cycle.get(d) for engine in engines))


def _count(names: Sequence[str], op_type: str) -> str:
    return f"{op_type} ({names[0]})" if len(names) == 1 else f"{len(names)} {op_type}"


def _sentence(
    op_type: str,
    kind: ReasonCode,
    names: Sequence[str],
    saves_s: float,
    before: _Size,
    after: _Size,
    num_moved: int,
) -> str:
    what = {
        ReasonCode.CAPABILITY_OP: f"listing {op_type}",
        ReasonCode.CAPABILITY_DTYPE: f"more types for {op_type}",
        ReasonCode.CAPABILITY_ATTRIBUTE: f"wider limits for {op_type}",
        ReasonCode.CONSTANT_INPUT: f"computed operands for {op_type}",
    }[kind]
    if not num_moved:
        return f"{what} alone would leave {_count(names, op_type)} on the host"
    effect = "save" if saves_s >= 0 else "cost"
    return (
        f"{what} would move {_plural(num_moved, 'operator')} and {effect} {abs(saves_s):.3g} s:"
        f" {_plural(before.regions, 'region')} become {after.regions}, their boundaries"
        f" {before.boundary_bytes} bytes become {after.boundary_bytes}"
    )


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _rank(row: Unlock) -> tuple[bool, float, int, str, str]:
    saves_s = 0.0 if row.saves_s is None else row.saves_s
    return (row.saves_s is None, -saves_s, -len(row.nodes), row.op_type, row.kind)

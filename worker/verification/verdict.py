"""From rows to a verdict: wrong, passed, or not verified, with the reason.

A value that is the same for other inputs may be right by accident: a kernel that writes a constant
would pass too.  So a kernel counts as judged when the oracle sampled it, or when a value that moves
with the inputs was compared; kernels without any comparable value are judged by the model's outputs
as long as one of these moves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import isfinite

from worker.report.node_names import node_span
from worker.report.verified_row import VerifiedRow
from worker.verification.measured import OwnErrors

MOVES = 2.0
"""A value moves with the inputs when it does by more than this many tolerances."""
_MOST_NAMED = 4


@dataclass(slots=True)
class Found:
    """Everything that was compared, as it was found."""

    rows: list[VerifiedRow] = field(default_factory=list)
    value_of: dict[str, str] = field(default_factory=dict)
    """By a row's name: the value of the model that it judges."""
    why: dict[str, str] = field(default_factory=dict)
    """By a row's name: what two numbers do not say."""
    kernels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Kernels that ran, with the ONNX nodes of their first calls."""
    sampled: set[str] = field(default_factory=set)
    """Kernels that the oracle judged."""
    rows_of: dict[str, list[str]] = field(default_factory=dict)
    """By kernel: names of the rows of its values."""
    num_inner: int = 0
    """Rows of inner tensors."""
    unknown: int = 0
    """Values that kernels handed over and the reference does not have."""
    orders: int = 0
    """In how many other orders kernels have run."""
    interleaved: tuple[str, ...] = ()
    """Kernels that have."""
    not_interleaved: dict[str, str] = field(default_factory=dict)
    """By kernel: why it has not."""
    moves: dict[str, float] = field(default_factory=dict)
    """By value: how far it moves when the inputs are others; empty without inputs."""

    def add(
        self,
        row: VerifiedRow,
        value: str,
        why: str = "",
        kernels: Collection[str] = (),
        is_inner: bool = False,
    ) -> None:
        """Keep a row that judges `value` ("": none of the model's) of some kernels."""
        self.rows.append(row)
        if value:
            self.value_of[row.name] = value
        if why:
            self.why[row.name] = why
        for kernel in kernels:
            self.rows_of.setdefault(kernel, []).append(row.name)
        self.num_inner += is_inner

    def of_engine(self, row: VerifiedRow, why: str) -> None:
        """Keep a row of what an engine gave; it judges no value of the model's."""
        self.add(row, "", why)

    def is_still(self, row: VerifiedRow) -> bool:
        """Whether the row's value does not depend on the inputs, as far as its tolerance sees."""
        moved = self.moves.get(self.value_of.get(row.name, ""))
        return moved is not None and moved <= MOVES * row.tolerance


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict."""

    passed: bool | None
    detail: str
    insensitive: tuple[str, ...]
    """Outputs that do not depend on the inputs."""
    unproven: tuple[str, ...] = ()
    """Kernels of which nothing was compared that does."""


def verdict(found: Found, outputs: Sequence[str], own: OwnErrors | None) -> Judged:
    """Judge everything that was compared; `outputs` are the model's."""
    still = {row.name for row in found.rows if found.is_still(row)}
    insensitive = tuple(name for name in outputs if name in still)
    wrong = [row for row in found.rows if row.is_wrong]
    if wrong:
        detail = "; ".join(_complaint(row, found.why.get(row.name, "")) for row in wrong[:4])
        return Judged(False, detail, insensitive)
    unsettled = {row.name: row.reason for row in found.rows if row.is_open}
    reasons = [f"{name}: {unsettled[name]}" for name in outputs if name in unsettled]
    blind = still | set(unsettled)
    unproven = [
        kernel
        for kernel in found.kernels
        if kernel not in found.sampled
        and found.rows_of.get(kernel)
        and blind.issuperset(found.rows_of[kernel])
    ]
    if unproven and not reasons:
        nodes = ", ".join(node_span(found.kernels[k]) for k in unproven[:_MOST_NAMED])
        first = next((unsettled[n] for n in found.rows_of[unproven[0]] if n in unsettled), "")
        reasons.append(
            f"{len(unproven)} kernels ({nodes}) write only values that do not depend on the inputs,"
            f" and nothing inside them that does has a reference{first and f', or {first}'}"
        )
    alone = [k for k in found.kernels if k not in found.sampled and k not in found.rows_of]
    if alone and blind.issuperset(outputs):
        nodes = ", ".join(node_span(found.kernels[k]) for k in alone[:_MOST_NAMED])
        reasons.append(
            f"{len(alone)} kernels ({nodes}) could be judged by the outputs alone, and none of"
            " these depends on the inputs"
        )
    if reasons:
        detail = "not verified, because " + "; ".join(reasons)
        return Judged(None, detail, insensitive, tuple(unproven))
    return Judged(True, _summary(found, len(outputs), alone, insensitive, own), insensitive)


def _summary(
    found: Found,
    num_outputs: int,
    alone: Sequence[str],
    insensitive: Sequence[str],
    own: OwnErrors | None,
) -> str:
    """What was compared, in words."""
    parts = [f"{num_outputs} outputs"]
    if found.sampled:
        parts.append(f"{len(found.sampled)} kernels sampled")
    whole = len({name for names in found.rows_of.values() for name in names}) - found.num_inner
    if found.rows_of or alone:
        unknown = f" ({found.unknown} more have no reference)" if found.unknown else ""
        parts.append(
            f"{whole + found.num_inner} tensors of {len(found.rows_of)} kernels in whole{unknown},"
            f" {found.num_inner} of them inside kernels"
        )
    if alone:
        parts.append(f"{len(alone)} kernels judged by the outputs alone")
    if found.interleaved:
        parts.append(f"{len(found.interleaved)} kernels in {found.orders} orders of instructions")
    if found.not_interleaved:
        name, why = next(iter(found.not_interleaved.items()))
        count = len(found.not_interleaved)
        parts.append(f"{count} kernels not interleaved (first {name}, because {why})")
    if insensitive:
        named = ", ".join(insensitive[:_MOST_NAMED])
        parts.append(
            f"{len(insensitive)} outputs do not depend on the inputs ({named}): comparing them"
            " proves nothing"
        )
    if own is not None:
        parts.append(f"tolerances from the reference's own error, {own.method}")
    return ", ".join(parts)


def _complaint(row: VerifiedRow, why: str) -> str:
    """What is wrong with a row, in words; `why` where more is known than two numbers."""
    if why and not isfinite(row.error):
        return f"{row.name}: {why}"
    own = "" if row.own_error is None else f" (the reference's own error is {row.own_error:.3g})"
    reason = f": {why}" if why else ""
    return f"{row.name}: {row.error:.3g} > {row.tolerance:.3g}{own}{reason}"

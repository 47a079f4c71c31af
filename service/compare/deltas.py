"""The values of a comparison.  Every one gives itself as JSON (`as_json`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from worker.compiler.errors import Detail


class Verdict(StrEnum):
    """What the head is, compared with the base."""

    SAME = "same"
    """No figure, row, kernel or placement differs."""
    FASTER = "faster"
    SLOWER = "slower"
    EQUAL_LATENCY = "equal-latency"
    """It takes as long, and something else differs."""


class RowKind(StrEnum):
    """What became of the rows."""

    SAME = "same"
    CHANGED = "changed"
    """The same nodes, with other figures."""
    REGROUPED = "regrouped"
    """The same nodes in other rows, or with others that one side lacks."""
    ADDED = "added"
    REMOVED = "removed"


class ReasonKind(StrEnum):
    """What differs between the runs; the first four are what went in, the others were decided."""

    SPEC = "spec"
    MODEL = "model"
    TOOLCHAIN = "toolchain"
    OPTION = "option"
    STRATEGY = "strategy"
    GROUPING = "grouping"
    SCHEDULE = "schedule"
    PLACEMENT = "placement"
    VERIFICATION = "verification"

    @property
    def is_input(self) -> bool:
        """Whether it is something that went in."""
        return self in (self.SPEC, self.MODEL, self.TOOLCHAIN, self.OPTION)


@dataclass(frozen=True, slots=True)
class FigureDelta:
    """One number of the summary; None where a side has none."""

    name: str
    """As in the summary of report.json, nested ones with dots: `traffic_bytes.DRAM.read`."""
    base: float | None
    head: float | None

    @property
    def delta(self) -> float | None:
        """Head less base."""
        return None if self.base is None or self.head is None else self.head - self.base

    @property
    def ratio(self) -> float | None:
        """Head over base; None where the base is 0 or has none."""
        return None if self.head is None or not self.base else self.head / self.base

    def as_json(self) -> dict[str, Detail]:
        return {"name": self.name, "base": self.base, "head": self.head, "delta": self.delta,
                "ratio": self.ratio}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CauseDelta:
    """Cycles by what they are spent on."""

    cause: str
    """As in report.json: `engine:PE`, `port:DRAM.read`, `launch`, ..."""
    base_cycles: int
    head_cycles: int

    @property
    def delta_cycles(self) -> int:
        return self.head_cycles - self.base_cycles

    def as_json(self) -> dict[str, Detail]:
        return {"cause": self.cause, "base_cycles": self.base_cycles,
                "head_cycles": self.head_cycles, "delta_cycles": self.delta_cycles}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerDelta:
    """Rows of both sides that cover the same nodes: groups of nodes, whole kernels, host parts."""

    kind: RowKind
    is_rest: bool
    """Cycles of fused kernels that none of their groups has: launches, waits."""
    op_type: str
    base_nodes: tuple[str, ...]
    head_nodes: tuple[str, ...]
    """In the names of each side."""
    base_rows: tuple[int, ...]
    head_rows: tuple[int, ...]
    """Places in `Run.rows`."""
    base_kernels: tuple[int, ...]
    head_kernels: tuple[int, ...]
    """`index` of the layers in each report."""
    base_cycles: int
    head_cycles: int
    base_macs: int | None
    head_macs: int | None
    causes: tuple[CauseDelta, ...]
    """Those that differ; the others are equal.  They sum to the delta."""

    @property
    def delta_cycles(self) -> int:
        return self.head_cycles - self.base_cycles

    @property
    def nodes(self) -> tuple[str, ...]:
        """As the head calls them, or the base where the head has none."""
        return self.head_nodes or self.base_nodes

    def as_json(self) -> dict[str, Detail]:
        return {
            "kind": str(self.kind),
            "is_rest": self.is_rest,
            "op_type": self.op_type,
            "base_nodes": list(self.base_nodes),
            "head_nodes": list(self.head_nodes),
            "base_rows": len(self.base_rows),
            "head_rows": len(self.head_rows),
            "base_kernels": list(self.base_kernels),
            "head_kernels": list(self.head_kernels),
            "base_cycles": self.base_cycles,
            "head_cycles": self.head_cycles,
            "delta_cycles": self.delta_cycles,
            "base_macs": self.base_macs,
            "head_macs": self.head_macs,
            "causes": [cause.as_json() for cause in self.causes],
        }


@dataclass(frozen=True, slots=True)
class Change:
    """Something that has another value."""

    what: str
    base: Detail
    head: Detail

    def as_json(self) -> dict[str, Detail]:
        return {"what": self.what, "base": self.base, "head": self.head}


@dataclass(frozen=True, slots=True)
class KernelDelta:
    """Kernels and host parts of both sides that cover the same nodes."""

    kind: RowKind
    op_type: str
    base_nodes: tuple[str, ...]
    head_nodes: tuple[str, ...]
    base_kernels: tuple[int, ...]
    head_kernels: tuple[int, ...]
    """`index` of the layers in each report."""
    base_cycles: int
    head_cycles: int
    base_energy_pj: float
    head_energy_pj: float
    changes: tuple[Change, ...]
    """Of strategy, placement, tile, cores, peak_buffer_bytes, traffic, loops (`schedule`); with
    several kernels on a side, the list of their values."""

    @property
    def delta_cycles(self) -> int:
        return self.head_cycles - self.base_cycles

    @property
    def nodes(self) -> tuple[str, ...]:
        """As the head calls them, or the base where the head has none."""
        return self.head_nodes or self.base_nodes

    def as_json(self) -> dict[str, Detail]:
        return {
            "kind": str(self.kind),
            "op_type": self.op_type,
            "base_nodes": list(self.base_nodes),
            "head_nodes": list(self.head_nodes),
            "base_kernels": list(self.base_kernels),
            "head_kernels": list(self.head_kernels),
            "base_cycles": self.base_cycles,
            "head_cycles": self.head_cycles,
            "delta_cycles": self.delta_cycles,
            "base_energy_pj": self.base_energy_pj,
            "head_energy_pj": self.head_energy_pj,
            "changes": [change.as_json() for change in self.changes],
        }


@dataclass(frozen=True, slots=True)
class PlacementDelta:
    """A node that runs elsewhere, or where it did for another reason."""

    base_node: str
    head_node: str
    base_target: str
    head_target: str
    base_reason_code: str
    head_reason_code: str
    base_reason: str
    head_reason: str

    def as_json(self) -> dict[str, Detail]:
        return {
            "base_node": self.base_node,
            "head_node": self.head_node,
            "base_target": self.base_target,
            "head_target": self.head_target,
            "base_reason_code": self.base_reason_code,
            "head_reason_code": self.head_reason_code,
            "base_reason": self.base_reason,
            "head_reason": self.head_reason,
        }


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that differs.  That it differs is shown; that it is why something moved is not."""

    kind: ReasonKind
    where: str
    """JSON pointer of a field or an option, name of an attribute, part of the toolchain, strategy
    or kernel."""
    base: Detail
    head: Detail
    sentence: str
    nodes: tuple[str, ...] = ()
    """Nodes it is about, as the head calls them (removed ones as the base does)."""
    cycles: int | None = None
    """By how much the cycles of causes changed that name this part of the machine, or the cycles of
    the kernels it is about; None: nothing tells."""

    def as_json(self) -> dict[str, Detail]:
        return {
            "kind": str(self.kind),
            "where": self.where,
            "base": self.base,
            "head": self.head,
            "sentence": self.sentence,
            "nodes": list(self.nodes),
            "cycles": self.cycles,
        }


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """How the nodes of the two models were matched."""

    by: Mapping[str, int]
    """Pairs by what told: `provenance`, `signature`, `neighbourhood`."""
    renamed: int
    added: tuple[str, ...]
    removed: tuple[str, ...]

    def as_json(self) -> dict[str, Detail]:
        return {"by": dict(self.by), "renamed": self.renamed, "added": list(self.added),
                "removed": list(self.removed)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Side:
    """What was compared, in a line."""

    name: str
    model: str
    hardware: str
    strategy: str | None
    """Of the chosen program."""
    cycles: int
    latency_s: float
    missing: tuple[str, ...]
    """Sentences: what could not be told, for want of which document."""

    def as_json(self) -> dict[str, Detail]:
        return {"name": self.name, "model": self.model, "hardware": self.hardware,
                "strategy": self.strategy, "latency_cycles": self.cycles,
                "latency_s": self.latency_s, "missing": list(self.missing)}  # fmt: skip


COMPARISON_VERSION = 1
"""Of the JSON document."""


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Two runs, set against each other."""

    base: Side
    head: Side
    verdict: Verdict
    headline: str
    """One sentence: the verdict, and the largest cause, with figures."""
    figures: tuple[FigureDelta, ...]
    """All numbers of the summaries, equal ones too; latency first."""
    causes: tuple[CauseDelta, ...]
    """All causes of either side, the largest change first; they sum to the cycles' delta."""
    layers: tuple[LayerDelta, ...]
    """All rows of both sides, in the order of the head; they sum to the cycles' delta."""
    kernels: tuple[KernelDelta, ...]
    placement: tuple[PlacementDelta, ...]
    """What differs."""
    reasons: tuple[Reason, ...]
    """What went in otherwise, then what was decided otherwise."""
    nodes: NodeCounts

    def __repr__(self) -> str:
        return f"<Comparison: {self.headline}>"

    @property
    def is_same(self) -> bool:
        """Whether nothing that came out differs; what went in may."""
        return self.verdict is Verdict.SAME

    @property
    def delta_cycles(self) -> int:
        """Head less base, of the whole."""
        return self.head.cycles - self.base.cycles

    @property
    def moved(self) -> tuple[LayerDelta, ...]:
        """Layers that are not the same, the largest change of cycles first."""
        found = [row for row in self.layers if row.kind is not RowKind.SAME]
        return tuple(sorted(found, key=lambda row: -abs(row.delta_cycles)))

    def figure(self, name: str) -> FigureDelta:
        """One figure by its name.

        Raises:
            KeyError: neither side has it.
        """
        for each in self.figures:
            if each.name == name:
                return each
        raise KeyError(name)

    def as_json(self) -> dict[str, Detail]:
        """The document that the API and `--json` give."""
        return {
            "schema_version": COMPARISON_VERSION,
            "base": self.base.as_json(),
            "head": self.head.as_json(),
            "verdict": str(self.verdict),
            "headline": self.headline,
            "figures": _all(self.figures),
            "causes": _all(self.causes),
            "layers": _all(self.layers),
            "kernels": _all(self.kernels),
            "placement": _all(self.placement),
            "reasons": _all(self.reasons),
            "nodes": self.nodes.as_json(),
        }


def _all(rows: Sequence[Any]) -> list[Detail]:
    return [row.as_json() for row in rows]

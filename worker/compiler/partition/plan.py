"""What partitioning hands on: parts, composites, placement rows and region decisions, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from worker.compiler.rejection import ReasonCode

HOST = "host"
"""Target name of everything no accelerator takes."""


class RegionRule(StrEnum):
    """How the regions of one program are chosen."""

    WEIGHED = "weighed"
    """By the targets' criteria, then dropped, trimmed or joined by what their nodes cost."""
    CRITERIA = "criteria"
    """By the targets' criteria, those of greedy targets ignored where the spec's mode is asked."""
    GREEDY = "greedy"
    """As large as they can be."""
    HOST = "all-host"
    """None: the user's model, as it was before conversion, on the host."""

    @property
    def words(self) -> str:
        """In names of programs."""
        return "the host alone" if self is RegionRule.HOST else f"regions {_WORDS[self]}"


_WORDS = {
    RegionRule.WEIGHED: "by cost",
    RegionRule.CRITERIA: "as they were",
    RegionRule.GREEDY: "as large as they can be",
}


class CompositeKind(StrEnum):
    PATTERN = "pattern"
    """Matched by the target's pattern table."""
    CLUSTER = "cluster"
    """Dequantise, operator, quantise: one integer operator."""


@dataclass(frozen=True, slots=True)
class Composite:
    """Nodes that the target runs as one operator."""

    name: str
    """Of the pattern, or `qdq_<op type>` of a cluster that none matches."""
    kind: CompositeKind
    nodes: tuple[int, ...]
    """Positions in the model, ascending."""
    intrinsic: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one ONNX node goes and why.  One row per node of the model, in model order."""

    node: str
    op_type: str
    target: str
    """Name of an accelerator target, or HOST."""
    reason_code: ReasonCode
    reason: str
    composite: str = ""
    """Name of the composite it belongs to, if any."""
    is_inserted: bool = False
    """A conversion added it (quantise, dequantise, cast): not counted in ratios."""


@dataclass(frozen=True, slots=True)
class Part:
    """A convex set of nodes that runs as one piece."""

    target: str
    nodes: tuple[int, ...]
    """Positions in the model, ascending."""
    inputs: tuple[str, ...]
    """Values from outside, in order of first use; initializers excluded."""
    outputs: tuple[str, ...]
    """Values used outside, in order of definition."""
    composites: tuple[Composite, ...] = ()

    @property
    def is_host(self) -> bool:
        return self.target == HOST


class Action(StrEnum):
    """What happened to a candidate region."""

    KEPT = "kept"
    SPLIT = "split"
    DROPPED = "dropped"
    """Back to the host."""
    TRIMMED = "trimmed"
    """Some of its nodes went back to the host."""
    JOINED = "joined"


@dataclass(frozen=True, slots=True)
class RegionDecision:
    """One candidate region, what it would cost on both sides, and what decided."""

    first_node: str
    """Name of its first node: the region's name in reports."""
    target: str
    action: Action
    num_ops: int
    macs: int
    weight_bytes: int
    boundary_bytes: int
    """Activations that enter and leave."""
    rule: str
    """Name of the criterion that decided, e.g. `min_macs`, `max_ops`, `weighed cost`."""
    sentence: str
    """Limit against actual, in words."""
    accelerator_cycles: int | None = None
    """Work on the accelerator; None: not weighed."""
    transfer_cycles: int | None = None
    launch_cycles: int | None = None
    host_cycles: int | None = None
    """The same nodes on the host."""


@dataclass(frozen=True, slots=True)
class Partitioning:
    """Parts in execution order, a placement row for every node, decisions in model order."""

    parts: tuple[Part, ...]
    placement: tuple[Placement, ...]
    decisions: tuple[RegionDecision, ...] = ()

    @property
    def regions(self) -> tuple[Part, ...]:
        """The accelerator's parts."""
        return tuple(part for part in self.parts if not part.is_host)

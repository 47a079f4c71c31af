"""Two jobs, set against each other."""

from __future__ import annotations

from typing import Self

from pydantic import Field, JsonValue

from service.api.schemas.base import AnswerModel
from service.compare import Comparison, ReasonKind, RowKind, Verdict


class SideAnswer(AnswerModel):
    """One of the two runs."""

    name: str = Field(examples=["main"])
    """Job id or label, as it was asked for."""
    model: str
    """Name of the model."""
    hardware: str
    """Name of the machine."""
    strategy: str | None
    """Whose program won; null in reports that do not say."""
    latency_cycles: int
    """Cycles of the machine's clock."""
    latency_s: float
    """Seconds."""
    missing: list[str]
    """What could not be told of it, for want of which document."""


class FigureAnswer(AnswerModel):
    """One number of the summaries; null where a side has none."""

    name: str = Field(examples=["energy_pj", "traffic_bytes.DRAM.read"])
    """As in the summary of the report; nested ones with dots."""
    base: int | float | None
    """Null where the base has none."""
    head: int | float | None
    """Null where the head has none."""
    delta: int | float | None
    """Head less base."""
    ratio: float | None = Field(examples=[1.139])
    """Head over base; null where the base is 0 or has none."""


class CauseAnswer(AnswerModel):
    """Cycles by what they are spent on."""

    cause: str = Field(examples=["port:DRAM.read", "engine:PE"])
    """What the cycles are spent on."""
    base_cycles: int
    """Cycles of the base."""
    head_cycles: int
    """Cycles of the head."""
    delta_cycles: int
    """Head less base."""


class LayerAnswer(AnswerModel):
    """Rows of both sides that cover the same nodes."""

    kind: RowKind
    """What became of these rows: the same, changed, regrouped, added or removed."""
    is_rest: bool
    """Cycles of fused kernels that none of their groups has: launches, waits."""
    op_type: str
    """Operators, as the report joins them."""
    base_nodes: list[str]
    """Nodes in the names of the base."""
    head_nodes: list[str]
    """Nodes in the names of the head."""
    base_rows: int
    """How many rows of the report these are."""
    head_rows: int
    """How many rows of the report these are."""
    base_kernels: list[int]
    """`index` of the layers in the base's report."""
    head_kernels: list[int]
    """`index` of the layers in the head's report."""
    base_cycles: int
    """Cycles of the base."""
    head_cycles: int
    """Cycles of the head."""
    delta_cycles: int
    """Head less base."""
    base_macs: int | None
    """Multiply-accumulates of the base; null where no row tells."""
    head_macs: int | None
    """Multiply-accumulates of the head; null where no row tells."""
    causes: list[CauseAnswer]
    """Those that differ; they sum to the delta."""


class ChangeAnswer(AnswerModel):
    """Something of a kernel that has another value."""

    what: str = Field(examples=["tile", "cores", "peak_buffer_bytes"])
    """Name of the figure or setting."""
    base: JsonValue
    """Its value in the base; a list where there are several kernels."""
    head: JsonValue
    """Its value in the head; a list where there are several kernels."""


class KernelAnswer(AnswerModel):
    """Kernels and host parts of both sides that cover the same nodes."""

    kind: RowKind
    """What became of the kernels."""
    op_type: str
    """Operators, as the report joins them."""
    base_nodes: list[str]
    """Nodes in the names of the base."""
    head_nodes: list[str]
    """Nodes in the names of the head."""
    base_kernels: list[int]
    """`index` of the layers in the base's report."""
    head_kernels: list[int]
    """`index` of the layers in the head's report."""
    base_cycles: int
    """Cycles of the base."""
    head_cycles: int
    """Cycles of the head."""
    delta_cycles: int
    """Head less base."""
    base_energy_pj: float
    """Energy of the base."""
    head_energy_pj: float
    """Energy of the head."""
    changes: list[ChangeAnswer]
    """Strategy, placement, tile, cores, buffer, traffic and loops that differ."""


class PlacementAnswer(AnswerModel):
    """A node that runs elsewhere, or where it did for another reason."""

    base_node: str
    """As the base calls it."""
    head_node: str
    """As the head calls it."""
    base_target: str
    """Where it runs in the base."""
    head_target: str
    """Where it runs in the head."""
    base_reason_code: str
    """Why, as a code."""
    head_reason_code: str
    """Why, as a code."""
    base_reason: str
    """Why, as a sentence of the report."""
    head_reason: str
    """Why, as a sentence of the report."""


class ReasonAnswer(AnswerModel):
    """One thing that differs."""

    kind: ReasonKind
    """What it is about: what went in (spec, model, toolchain, option) or what was decided."""
    where: str = Field(examples=["/levels/DRAM/read_bytes_per_cycle"])
    """JSON pointer, attribute, part of the toolchain, strategy or kernel."""
    base: JsonValue
    """Value in the base; null where it has none."""
    head: JsonValue
    """Value in the head; null where it has none."""
    sentence: str
    """The difference in words."""
    nodes: list[str]
    """Nodes it is about; none where it is about the whole."""
    cycles: int | None
    """By how much causes changed that name this part of the machine, or the kernels it is about;
    null where nothing tells."""


class NodesAnswer(AnswerModel):
    """How nodes were matched."""

    by: dict[str, int] = Field(examples=[{"provenance": 53, "signature": 2}])
    """Pairs of nodes by what told that they are one."""
    renamed: int
    """Pairs whose names differ."""
    added: list[str]
    """Nodes of the head alone."""
    removed: list[str]
    """Nodes of the base alone."""


class ComparisonAnswer(AnswerModel):
    """What differs between two runs; `layers`, and `causes`, sum to the cycles' difference."""

    schema_version: int
    """Of this document."""
    base: SideAnswer
    """What was compared."""
    head: SideAnswer
    """What it was compared with."""
    verdict: Verdict
    """By latency; `same` where nothing that came out differs."""
    headline: str = Field(
        examples=[
            "slower by 13.9 %: 217.5 us -> 247.8 us, 108,727 -> 123,877 cycles; most by"
            " port:DRAM.read (+20,718 cycles) and in block1/depthwise (+5,395)"
        ]
    )
    """One sentence: the verdict and the largest cause, with figures."""
    figures: list[FigureAnswer]
    """All numbers of the summaries, equal ones too."""
    causes: list[CauseAnswer]
    """All, the largest change first; they sum to the difference in cycles."""
    layers: list[LayerAnswer]
    """All, in the order of the head; they sum to the difference in cycles."""
    kernels: list[KernelAnswer]
    """All kernels and host parts."""
    placement: list[PlacementAnswer]
    """What differs."""
    reasons: list[ReasonAnswer]
    """What went in otherwise, then what was decided otherwise.  That it differs is shown; that it
    is the cause is not."""
    nodes: NodesAnswer
    """What told which node is which."""

    @classmethod
    def of(cls, found: Comparison) -> Self:
        """Build the answer."""
        return cls.model_validate(found.as_json())

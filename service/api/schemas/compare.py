"""Two jobs, set against each other."""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict, Field, JsonValue

from service.api.schemas.base import AnswerModel
from service.compare import Comparison, ReasonKind, RowKind, Verdict


class SideAnswer(AnswerModel):
    """One of the two runs."""

    name: str = Field(description="Job id or label, as it was asked for.", examples=["main"])
    model: str
    hardware: str
    strategy: str | None = Field(description="Whose program won.")
    latency_cycles: int
    latency_s: float
    missing: list[str] = Field(
        description="What could not be told of it, for want of which document."
    )


class FigureAnswer(AnswerModel):
    """One number of the summaries; null where a side has none."""

    name: str = Field(examples=["energy_pj", "traffic_bytes.DRAM.read"])
    base: int | float | None
    head: int | float | None
    delta: int | float | None = Field(description="Head less base.")
    ratio: float | None = Field(description="Head over base.", examples=[1.139])


class CauseAnswer(AnswerModel):
    """Cycles by what they are spent on."""

    cause: str = Field(examples=["port:DRAM.read", "engine:PE"])
    base_cycles: int
    head_cycles: int
    delta_cycles: int


class LayerAnswer(AnswerModel):
    """Rows of both sides that cover the same nodes."""

    kind: RowKind
    is_rest: bool = Field(
        description="Cycles of fused kernels that none of their groups has: launches, waits."
    )
    op_type: str
    base_nodes: list[str]
    head_nodes: list[str]
    base_rows: int = Field(description="How many rows of the report these are.")
    head_rows: int
    base_kernels: list[int] = Field(description="`index` of the layers in the report.")
    head_kernels: list[int]
    base_cycles: int
    head_cycles: int
    delta_cycles: int
    base_macs: int | None
    head_macs: int | None
    causes: list[CauseAnswer] = Field(description="Those that differ; they sum to the delta.")


class ChangeAnswer(AnswerModel):
    """Something of a kernel that has another value."""

    what: str = Field(examples=["tile", "cores", "peak_buffer_bytes"])
    base: JsonValue
    head: JsonValue


class KernelAnswer(AnswerModel):
    """Kernels and host parts of both sides that cover the same nodes."""

    kind: RowKind
    op_type: str
    base_nodes: list[str]
    head_nodes: list[str]
    base_kernels: list[int]
    head_kernels: list[int]
    base_cycles: int
    head_cycles: int
    delta_cycles: int
    base_energy_pj: float
    head_energy_pj: float
    changes: list[ChangeAnswer]


class PlacementAnswer(AnswerModel):
    """A node that runs elsewhere, or where it did for another reason."""

    base_node: str
    head_node: str
    base_target: str
    head_target: str
    base_reason_code: str
    head_reason_code: str
    base_reason: str
    head_reason: str


class ReasonAnswer(AnswerModel):
    """One thing that differs."""

    kind: ReasonKind
    where: str = Field(examples=["/levels/DRAM/read_bytes_per_cycle"])
    base: JsonValue
    head: JsonValue
    sentence: str
    nodes: list[str]
    cycles: int | None = Field(
        description="By how much causes changed that name this part of the machine, or the kernels"
        " it is about; null: nothing tells."
    )


class NodesAnswer(AnswerModel):
    """How nodes were matched."""

    by: dict[str, int] = Field(examples=[{"provenance": 53, "signature": 2}])
    renamed: int
    added: list[str]
    removed: list[str]


class ComparisonAnswer(AnswerModel):
    """What differs between two runs; `layers`, and `causes`, sum to the cycles' difference."""

    model_config = ConfigDict(frozen=True, title="Comparison")

    schema_version: int
    base: SideAnswer
    head: SideAnswer
    verdict: Verdict
    headline: str = Field(
        examples=[
            "slower by 13.9 %: 217.5 us -> 247.8 us, 108,727 -> 123,877 cycles; most by"
            " port:DRAM.read (+20,718 cycles) and in block1/depthwise (+5,395)"
        ]
    )
    figures: list[FigureAnswer]
    causes: list[CauseAnswer] = Field(description="All, the largest change first.")
    layers: list[LayerAnswer] = Field(description="All, in the order of the head.")
    kernels: list[KernelAnswer]
    placement: list[PlacementAnswer] = Field(description="What differs.")
    reasons: list[ReasonAnswer] = Field(
        description="What went in otherwise (spec, model, toolchain, option), then what was decided"
        " otherwise.  That it differs is shown; that it is the cause is not."
    )
    nodes: NodesAnswer

    @classmethod
    def of(cls, found: Comparison) -> Self:
        """Build the answer."""
        return cls.model_validate(found.as_json())

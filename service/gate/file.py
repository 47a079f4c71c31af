"""What a team writes into `tilewright.yaml`, as types: the one source of its checks and its schema.

Strict: a field that is not known is refused, and so is one that would change nothing.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from service.gate.figures import FIGURES, OF_A_LEVEL, figure_of

ARRAYS = ("calibration", "inputs")
"""Options of compile that are files: they stand beside the model."""
UNLINKED = ("link",)
"""Options of compile that a gate has not: a kernel library changes none of the figures that it
compares."""
Text = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Name = Annotated[str, StringConstraints(pattern=r"^[^\s*?\[\]/][^*?\[\]/\n]*$", max_length=100)]
Bound = Annotated[float, Field(ge=0, le=1e30)]


class _Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )


def _figure(name: str) -> str:
    if figure_of(name) is None:
        known = ", ".join((*FIGURES, *(f"{stem}:MEMORY" for stem in OF_A_LEVEL)))
        raise ValueError(f"there is no figure {name[:80]!r}; figures: {known}")
    return name


FigureName = Annotated[
    str,
    AfterValidator(_figure),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(FIGURES)},
                {"type": "string", "pattern": f"^({'|'.join(OF_A_LEVEL)}):.+$"},
            ]
        }
    ),
]


def _relative(path: str) -> str:
    parts = path.split("/")
    if path.startswith(("/", "\\")) or ":" in parts[0] or ".." in parts or "" in parts:
        raise ValueError(
            "must be relative to the gate file's folder, with / and without .. or empty parts"
        )
    return path


TreePath = Annotated[
    str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_relative)
]


def _day(value: object) -> object:
    """JSON has no dates: a text that is one will do."""
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError as error:
            raise ValueError(f"{value[:40]!r} is no day; write YYYY-MM-DD") from error
    return value


Day = Annotated[date, BeforeValidator(_day), WithJsonSchema({"type": "string", "format": "date"})]


class ModelEntry(_Strict):
    """A model, or all models of a glob."""

    path: TreePath
    """File of the repository (.onnx, or a .zip with external data); `*`, `?` and `**` find more."""
    name: Name | None = None
    """What messages call it (default: the file's name); of one file only."""
    hardware: list[Text] = Field(default=["*"], min_length=1)
    """Names of the chips that it is compiled for, as patterns."""
    symbols: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """Symbolic dimensions, as `--set` binds them."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of `tilewright compile`, on top of the chip's."""
    calibration: TreePath | None = None
    """Sample inputs (.npz) for quantisation."""
    inputs: TreePath | None = None
    """Inputs (.npz) of the verification."""


class HardwareEntry(_Strict):
    """A chip: a preset, or the specs of a glob."""

    preset: Text | None = None
    """Name of a preset."""
    spec: TreePath | None = None
    """Spec of the repository; `*`, `?` and `**` find more."""
    name: Name | None = None
    """What messages call it (default: the preset's or the file's name); of one chip only."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of `tilewright compile`, on top of the file's."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.preset is None) == (self.spec is None):
            raise ValueError("give a preset or a spec, one of the two")
        return self


class _Rule(_Strict):
    figure: FigureName
    """What is looked at: simulated, with its unit in its name."""
    model: Text = "*"
    """Models that the rule is for, as a pattern of names."""
    hardware: Text = "*"
    """Chips that the rule is for, as a pattern of names."""
    node: Text | None = None
    """Every layer with a node of this pattern, instead of the whole run."""
    cause: Text | None = None
    """Only what causes of this pattern are to blame for (`port:*`, `engine:MXU`, `launch`)."""

    def _check_scope(self) -> None:
        figure = figure_of(self.figure)
        assert figure is not None
        if self.node is not None and not figure.of_layers:
            raise ValueError(f"layers have no {self.figure}: leave node out")
        if self.cause is not None and not figure.of_causes:
            raise ValueError(f"causes share out time, not {self.figure}: leave cause out")


class Budget(_Rule):
    """A limit that holds whatever was before."""

    at_most: Bound | None = None
    at_least: Bound | None = None

    @model_validator(mode="after")
    def _is_a_limit(self) -> Self:
        self._check_scope()
        if self.at_most is None and self.at_least is None:
            raise ValueError("a budget has at_most or at_least")
        low, high = self.at_least, self.at_most
        if low is not None and high is not None and low > high:
            raise ValueError("at_least is more than at_most: nothing is within")
        return self


class Regression(_Rule):
    """How much worse than the base a figure may become."""

    percent: Bound | None = None
    """Of the base.  With `absolute`, what is within either is allowed."""
    absolute: Bound | None = None
    """In the figure's own unit."""

    @model_validator(mode="after")
    def _is_a_limit(self) -> Self:
        self._check_scope()
        if self.percent is None and self.absolute is None:
            raise ValueError("a regression has percent, absolute, or both; 0 allows nothing")
        return self


Level = Literal["fail", "warn", "ignore"]


class Changes(_Strict):
    """What is done about changes that are no figures."""

    failing: Level = "fail"
    """A model that cannot be compiled any more."""
    host: Level = "fail"
    """A node that goes to the host and did not before."""
    missing: Level = "fail"
    """A model or chip that the base has and this tree has not."""
    new: Level = "ignore"
    """A model or chip that the base has not."""
    unmatched: Level = "fail"
    """A rule that looked at nothing: no such node, memory or figure."""


class Waiver(_Strict):
    """A failure that somebody has taken on, until a day.  What is left out covers everything."""

    check: (
        Literal["budget", "regression", "failing", "host", "missing", "new", "unmatched"] | None
    ) = None
    model: Text = "*"
    hardware: Text = "*"
    figure: FigureName | None = None
    node: Text | None = None
    """A pattern of nodes; failures of whole runs have none and are not covered then."""
    cause: Text | None = None
    owner: Text
    """Who is asked."""
    reason: Text
    expires: Day
    """The last day on which it holds."""


class MergeBase(_Strict):
    """The commit that this tree and a branch have in common, compiled by the present toolchain."""

    source: Literal["merge-base"]
    branch: Text


class BaselineFile(_Strict):
    """Results that `tilewright gate --write-baseline` wrote."""

    source: Literal["file"]
    path: TreePath
    branch: Text | None = None
    """Read it as it was where this tree and the branch parted; default: as it is here."""


class ServerRuns(_Strict):
    """The latest jobs of a server that succeeded, by label."""

    source: Literal["server"]
    label: Text | None = None
    """Of the jobs."""
    branch: Text | None = None
    """Instead: jobs of the commit that this tree and the branch have in common (`gate:COMMIT`)."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.label is None) == (self.branch is None):
            raise ValueError("give a label or a branch, one of the two")
        return self


Baseline = Annotated[MergeBase | BaselineFile | ServerRuns, Field(discriminator="source")]


class GateFile(_Strict):
    """A gate for pull requests."""

    version: Literal[1] = Field(alias="schema")
    """Version of this format."""
    models: list[ModelEntry] = Field(min_length=1)
    hardware: list[HardwareEntry] = Field(min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of `tilewright compile`, for every compile."""
    baseline: Baseline | None = None
    """What this tree is compared with; without one there are budgets only."""
    budgets: list[Budget] = Field(default_factory=list)
    regressions: list[Regression] = Field(default_factory=list)
    changes: Changes = Field(default_factory=Changes)
    waivers: list[Waiver] = Field(default_factory=list)

    @model_validator(mode="after")
    def _has_a_base(self) -> Self:
        if self.regressions and self.baseline is None:
            raise ValueError("regressions need a baseline")
        return self

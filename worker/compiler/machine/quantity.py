"""Numbers, words and flags of a hardware document, with their evidence and allowed ranges."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

Tag = Literal["P", "S", "R", "K", "D", "G"]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class Quantity(Part):
    """A number with its evidence."""

    value: float
    tag: Tag | None = None
    """Absent: the author of the document vouches for it."""
    note: str = Field(default="", max_length=500)

    @model_validator(mode="before")
    @classmethod
    def _accept_plain(cls, raw: object) -> object:
        if isinstance(raw, dict | Quantity):
            return raw
        return {"value": raw}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        tagged = handler.resolve_ref_schema(handler(schema))
        return {"anyOf": [{"type": "number"}, dict(tagged)]}


class Estimate(Quantity):
    """A number that may as well be any other of a range."""

    low: float | None = None
    """Absent: of a guess a factor below the value (`energy_table.py`), else the value itself."""
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """Allowed values of one Quantity field."""

    low: float
    high: float
    integer: bool = False

    def __str__(self) -> str:
        kind = "integer " if self.integer else ""
        return f"{kind}>= {self.low:g} and <= {self.high:g}"

    def allows(self, value: float) -> bool:
        if not isfinite(value) or value > self.high or (self.integer and value != int(value)):
            return False
        return value >= self.low

    def check(self, quantity: Quantity) -> Quantity:
        if not self.allows(quantity.value):
            raise _out_of_range(quantity.value, str(self))
        return quantity

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        bounds = self._bounds
        tagged = {
            "value": bounds,
            "tag": {"enum": ["P", "S", "R", "K", "D", "G", None]},
            "note": {"type": "string", "maxLength": 500},
            **{end: {**bounds, "type": [bounds["type"], "null"]} for end in self._ends},
        }
        return {
            "anyOf": [
                bounds,
                {
                    "type": "object",
                    "properties": tagged,
                    "required": ["value"],
                    "additionalProperties": False,
                },
            ]
        }

    @property
    def _bounds(self) -> dict[str, Any]:
        kind = "integer" if self.integer else "number"
        return {"minimum": self.low, "maximum": self.high, "type": kind}

    @property
    def _ends(self) -> tuple[str, ...]:
        return ()


class NoneOrRange(Range):
    """Allowed values of a Quantity field that may also be 0: there is nothing of the kind."""

    def __str__(self) -> str:
        return f"0, or {Range.__str__(self)}"

    def allows(self, value: float) -> bool:
        return value == 0 or Range.allows(self, value)

    @property
    def _bounds(self) -> dict[str, Any]:
        return {"type": "number", "anyOf": [{"const": 0}, {"minimum": self.low}],
                "maximum": self.high}  # fmt: skip


class RangeOfEstimates(Range):
    """Allowed values of one Estimate field and of both its ends."""

    def check(self, quantity: Quantity) -> Quantity:
        Range.check(self, quantity)
        assert isinstance(quantity, Estimate)
        if quantity.low is not None and not self.low <= quantity.low <= quantity.value:
            allowed = f">= {self.low:g} and <= the value, {quantity.value:g}"
            raise _out_of_range(quantity.low, allowed)
        if quantity.high is not None and not quantity.value <= quantity.high <= self.high:
            allowed = f">= the value, {quantity.value:g}, and <= {self.high:g}"
            raise _out_of_range(quantity.high, allowed)
        return quantity

    @property
    def _ends(self) -> tuple[str, ...]:
        return ("low", "high")


def _out_of_range(actual: float, allowed: str) -> PydanticCustomError:
    return PydanticCustomError(
        "out_of_range",
        "{actual} is not allowed here: must be {allowed}",
        {"allowed": allowed, "actual": actual},
    )


Count = Annotated[Quantity, Range(1, 65536, integer=True)]
Bytes = Annotated[Quantity, Range(1, 2.0**50, integer=True)]
LEAST_RATE = 1e-6
"""Per cycle, or of a peak.  Less is a slip, and its figures overflow (1e-300 bytes per second)."""
BytesPerCycle = Annotated[Quantity, Range(LEAST_RATE, 1e6)]
Cycles = Annotated[Quantity, Range(0, 1e9, integer=True)]
PicoJoule = Annotated[Estimate, RangeOfEstimates(0, 1e6)]
Watts = Annotated[Estimate, RangeOfEstimates(0, 1e5)]
OpsPerCycle = Annotated[Quantity, Range(LEAST_RATE, 1e7)]
OpsPerCycleOrNone = Annotated[Quantity, NoneOrRange(LEAST_RATE, 1e7)]
PerSecond = Annotated[Quantity, Range(1, 1e18)]
Seconds = Annotated[Quantity, Range(0, 100)]
Extent = Annotated[Quantity, Range(1, 1 << 20, integer=True)]
LimitBound = Annotated[Quantity, Range(0, 2.0**40, integer=True)]


class _Tagged(Part):
    """A word or a yes with its evidence; the subclass says which."""

    tag: Tag | None = None
    note: str = Field(default="", max_length=500)

    @model_validator(mode="before")
    @classmethod
    def _accept_plain(cls, raw: object) -> object:
        return raw if isinstance(raw, dict | _Tagged) else {"value": raw}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        tagged = handler.resolve_ref_schema(handler(schema))
        return {"anyOf": [dict(tagged["properties"]["value"]), dict(tagged)]}


class Duplex(_Tagged):
    """Whether a memory reads and writes at the same time."""

    value: Literal["full", "half"]
    """`full`: a port for each direction; `half`: one port, which serves one at a time."""


class EnginePorts(_Tagged):
    """Which ports of a memory its engines draw and return through."""

    value: Literal["own", "shared"]
    """`own`: beside those of transfers; `shared`: those that transfers use."""


class Kept(_Tagged):
    """What an array keeps while the rest streams past it."""

    value: Literal["weight", "input", "output", "row"]


class Numbered(_Tagged):
    """In what order the nodes of a mesh are numbered."""

    value: Literal["rows", "home"]


class Flag(_Tagged):
    """Yes or no."""

    value: bool

"""What a user may choose for a training step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from worker.compiler.errors import Detail, OptionError


class Loss(StrEnum):
    """What a step lowers; the mean over all samples."""

    MSE = "mse"
    """Mean squared difference between an output and a target of its shape."""
    CROSS_ENTROPY = "cross-entropy"
    """Softmax cross entropy of logits and int64 labels."""


class Optimizer(StrEnum):
    """How parameters follow from their gradients."""

    SGD = "sgd"
    ADAM = "adam"
    NONE = "none"
    """Not at all: the step gives gradients, and the update is the user's."""


_RATES = {Optimizer.SGD: 0.01, Optimizer.ADAM: 0.001}
_RANGES = {
    "learning_rate": (0.0, math.inf), "momentum": (0.0, 1.0), "beta1": (0.0, 1.0),
    "beta2": (0.0, 1.0), "epsilon": (0.0, math.inf),
}  # fmt: skip
"""Exclusive bounds of the numbers."""
_USES = {
    Optimizer.SGD: ("learning_rate", "momentum"),
    Optimizer.ADAM: ("learning_rate", "beta1", "beta2", "epsilon"),
    Optimizer.NONE: (),
}
_ADAM = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """A training step.  None is the default that the chosen loss or optimizer has."""

    loss: Loss
    optimizer: Optimizer = Optimizer.SGD
    learning_rate: float | None = None
    """0.01 for SGD, 0.001 for Adam."""
    momentum: float | None = None
    """SGD's; without, no state is kept."""
    beta1: float | None = None
    """Adam's, 0.9."""
    beta2: float | None = None
    """Adam's, 0.999."""
    epsilon: float | None = None
    """Adam's, 1e-8."""
    output: str | None = None
    """Value that the loss is taken of: the model's only output by default."""
    target: str | None = None
    """Name of the input with labels or targets: `labels` or `target` by default."""
    class_axis: int | None = None
    """Axis of the classes in the logits, 1 by default; cross entropy only."""
    freeze: tuple[str, ...] = ()
    """Initializers that stay constants."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TrainOptions:
        """Read and check options as JSON.

        Raises:
            OptionError: TW-OPT-001 with a pointer to the first that is unknown, out of range, or
                would change nothing beside the others.
        """
        known = {field.name for field in fields(cls)}
        given = {name: value for name, value in document.items() if value not in (None, [], ())}
        for name in given:
            if name not in known:
                raise _wrong(
                    name, "is no option of a training step", list[Detail](sorted(known)), name
                )
        loss = _choice(Loss, "loss", given.pop("loss", None))
        optimizer = _choice(Optimizer, "optimizer", given.pop("optimizer", Optimizer.SGD))
        for name in _RANGES:
            if name in given:
                given[name] = _number(name, given[name])
                if name not in _USES[optimizer]:
                    raise _wrong(
                        name, f"changes nothing with optimizer {optimizer}",
                        list(_USES[optimizer]), name,
                    )  # fmt: skip
        axis = given.get("class_axis")
        if axis is not None and loss is not Loss.CROSS_ENTROPY:
            raise _wrong("class_axis", f"changes nothing with loss {loss}", None, axis)
        if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int)):
            raise _wrong("class_axis", "is not an integer", "an integer", str(axis))
        freeze = given.pop("freeze", ())
        if not isinstance(freeze, list | tuple) or not all(isinstance(n, str) for n in freeze):
            raise _wrong("freeze", "is not a list of names", "names of initializers", str(freeze))
        for name in ("output", "target"):
            if not isinstance(given.get(name, "a name"), str):
                raise _wrong(name, "is not a name", "a name", str(given[name]))
        return cls(loss, optimizer, freeze=tuple(freeze), **given)

    @property
    def rate(self) -> float:
        """The learning rate."""
        return _RATES[self.optimizer] if self.learning_rate is None else self.learning_rate

    def adam(self, name: str) -> float:
        """One of Adam's numbers."""
        found: float | None = getattr(self, name)
        return _ADAM[name] if found is None else found

    @property
    def axis(self) -> int:
        """Axis of the classes."""
        return 1 if self.class_axis is None else self.class_axis

    @property
    def target_name(self) -> str:
        """Name of the input with what the output should be."""
        return self.target or ("target" if self.loss is Loss.MSE else "labels")


def _choice(kind: type[Any], name: str, value: object) -> Any:
    allowed: list[Detail] = [str(member) for member in kind]
    if value not in allowed:
        raise _wrong(
            name, f"{value!r} is not known", allowed, None if value is None else str(value)
        )
    return kind(value)


def _number(name: str, value: object) -> float:
    low, high = _RANGES[name]
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (low < value < high and math.isfinite(value))
    ):
        raise _wrong(
            name, f"{value!r} is out of range",
            f"a number above {low:g}" + ("" if high == math.inf else f", below {high:g}"),
            str(value),
        )  # fmt: skip
    return float(value)


def _wrong(name: str, why: str, allowed: Detail, actual: Detail) -> OptionError:
    return OptionError(
        "TW-OPT-001", f"{name}: {why}", pointer=f"/train/{name}", limit=allowed, actual=actual,
        remedy="See `tilewright model train --help` for what goes together.",
    )  # fmt: skip

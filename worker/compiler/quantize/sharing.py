"""One set of parameters per class of values: data that only moves keeps its integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from worker.compiler.machine.machine import Conversion
from worker.compiler.quantization import Quantization
from worker.compiler.quantize.bending import bent_by
from worker.compiler.quantize.clipping import range_of
from worker.compiler.quantize.parameters import QuantParameters, finer_power, from_range
from worker.compiler.quantize.ranges import Observed
from worker.compiler.quantize.roles import Role
from worker.compiler.quantize.select import Key, Member, Selection

_JOIN_FACTOR = 2.0
"""A Concat's input shares the result's parameters when its own step would be at least half as
wide: at most one bit is lost.  Other inputs are requantised as they are joined."""


class _Classes:
    """Union-find over values; every class knows the range of all its members."""

    def __init__(self, ranges: Mapping[Key, tuple[float, float]]) -> None:
        self._parent: dict[Key, Key] = {key: key for key in ranges}
        self._range = dict(ranges)

    def root(self, key: Key) -> Key:
        while self._parent[key] != key:
            self._parent[key] = self._parent[self._parent[key]]
            key = self._parent[key]
        return key

    def span(self, key: Key) -> float:
        low, high = self.range(key)
        return max(high, 0.0) - min(low, 0.0)

    def range(self, key: Key) -> tuple[float, float]:
        return self._range[self.root(key)]

    def unite(self, first: Key, second: Key) -> None:
        a, b = self.root(first), self.root(second)
        if a == b:
            return
        low, high = zip(self._range[a], self._range[b], strict=True)
        self._parent[b] = a
        self._range[a] = (min(low), max(high))


def parameters_of(
    selection: Selection,
    choices: Mapping[str, Conversion],
    observed: Mapping[str, Observed],
    chosen: Quantization,
) -> dict[Key, QuantParameters]:
    """Parameters of every key of the selection; members of one class get the same object.

    Args:
        observed: of every value of the selection, by name.
        chosen: says which range of the observed values gets integers.

    Raises:
        ModelError: TW-CAL-004, a range is not finite; names the node that computes the value.

    Cost: nearly linear in members.
    """
    keys = {
        key: range_of(
            observed[key[0].name or ""], chosen, choices[key[1]], bent_by(key[0], observed)
        )
        for key in selection.keys
    }
    classes = _Classes(keys)
    for member in selection.members:
        if member.role is Role.SHARED:
            for value in member.writes:
                for _, source in member.reads:
                    classes.unite((source, member.target), (value, member.target))
    _join(selection.members, classes)
    members_of: dict[Key, list[Key]] = {}
    for key in keys:
        members_of.setdefault(classes.root(key), []).append(key)
    found: dict[Key, QuantParameters] = {}
    for root, members in members_of.items():
        conversion = choices[root[1]]
        producer = members[0][0].producer()
        low, high = classes.range(root)
        made = from_range(
            low, high, conversion.dtype, symmetric=conversion.symmetric,
            power_of_two=conversion.power_of_two,
            node=(producer.name if producer is not None else members[0][0].name) or "",
        )  # fmt: skip
        if conversion.symmetric and conversion.power_of_two:
            samples = [observed[value.name or ""].sample for value, _ in members]
            made = finer_power(np.concatenate(samples), made)
        found.update(dict.fromkeys(members, made))
    return found


def _join(members: Sequence[Member], classes: _Classes) -> None:
    for member in members:
        if member.role is not Role.JOINED or not member.writes:
            continue
        result = (member.writes[0], member.target)
        for _, value in member.reads:
            source = (value, member.target)
            low, high = zip(classes.range(result), classes.range(source), strict=True)
            united = max(*high, 0.0) - min(*low, 0.0)
            if united <= _JOIN_FACTOR * min(classes.span(source), classes.span(result)):
                classes.unite(result, source)

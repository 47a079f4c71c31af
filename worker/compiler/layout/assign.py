"""Decide the layout of every tensor of a region, and in which form every operator reads it.

Any access map can read any order of dimensions, so an unblocked layout never needs a conversion
inside a region: only inputs that an anchor reads and outputs that an anchor touches do.  A blocked
layout also asks that indices stay linear once axes are split into digits (`digits.py`); where they
would not, the tensor, or that one reader, gets the unblocked form.

Source: BYOC paper section 3.2 (figure 4b).  Deviates: layouts are properties of tensors and access
maps here, not operator attributes, so pointwise operators at the boundary convert as they go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from worker.compiler.frontend.ops.emitter import MAX_RANK
from worker.compiler.ir.footprint import full_box
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.layout import ACTIVATIONS, WEIGHTS, Layout, parse_layout
from worker.compiler.ir.op import Access, TensorOp
from worker.compiler.layout.change import ChangeKind, LayoutChange
from worker.compiler.layout.demand import find_demand
from worker.compiler.layout.digits import Digits
from worker.compiler.layout.roles import Anchor
from worker.compiler.machine.layout_policy import LayoutPolicy


@dataclass(frozen=True, slots=True)
class Reading:
    """How one operator is rewritten."""

    forms: tuple[Layout | None, ...]
    """Per read slot; None: the ONNX layout."""
    digits: Digits


@dataclass(frozen=True, slots=True)
class Assignment:
    """Layouts of a region."""

    home: Mapping[str, Layout]
    """Form in which a tensor is written; ONNX's where absent."""
    readings: Mapping[int, Reading]
    """By position of the operator."""
    refused: tuple[LayoutChange, ...]


def assign(graph: Graph, policy: LayoutPolicy, composites: Sequence[tuple[str, ...]]) -> Assignment:
    """Choose layouts.

    Raises:
        ValueError: a layout of the policy is not in the notation, or of the wrong kind.

    Cost: linear in the region, times the number of composites whose inner tensors must be
    unblocked (none in a region without blocked layouts).
    """
    return _Assigner(graph, policy, composites).run()


def _parsed(text: str, lead: str) -> Layout:
    layout = parse_layout(text)
    if not layout.logical.startswith(lead):
        raise ValueError(f"layout {text!r}: one with {lead[0]} and {lead[1]} is needed here")
    return layout


def _unblocked(layout: Layout) -> Layout | None:
    """The form without blocks; None when that is ONNX's."""
    bare = layout.without_blocks(layout.blocked_letters)
    return None if bare.is_plain else bare


def _too_deep(layout: Layout) -> str:
    return f"{layout} has {len(layout.dims)} dimensions, {MAX_RANK} are supported: not blocked"


class _Assigner:
    """The steps of `assign` over one region."""

    def __init__(
        self, graph: Graph, policy: LayoutPolicy, composites: Sequence[tuple[str, ...]]
    ) -> None:
        self._graph = graph
        self._activations = _parsed(policy.activations, ACTIVATIONS)
        self._weights = _parsed(policy.weights, WEIGHTS)
        self._demand = find_demand(graph, policy, composites)
        self._composites_of: dict[str, set[int]] = {}
        for number, members in enumerate(composites):
            for name in members:
                self._composites_of.setdefault(name, set()).add(number)
        self._writers: dict[str, list[int]] = {}
        for k, op in enumerate(graph.ops):
            name = op.write.tensor
            self._writers.setdefault(name, []).append(k)
        self._constants = frozenset(graph.constants)
        self._refused: dict[str, LayoutChange] = {}
        self._target: dict[str, Layout | None] = {}
        self._home: dict[str, Layout] = {}

    def run(self) -> Assignment:
        for k in self._demand.foreign:
            self._refuse_foreign(k)
        for name in self._graph.tensors:
            if name in self._demand.following and name not in self._constants:
                self._target[name] = self._wanted(name)
        self._choose_homes()
        while True:
            readings = dict(self._readings())
            broken = [name for name in self._broken_composites(readings) if name in self._home]
            if not broken:
                break
            for name in broken:
                self._unblock_home(name)
        return Assignment(self._home, readings, tuple(self._refused.values()))

    def _wanted(self, name: str) -> Layout | None:
        """The policy's layout for a tensor, as far as its extents allow; None: ONNX's."""
        shape = self._graph.tensors[name].shape
        layout = self._activations.for_rank(len(shape))
        odd = [s for s in layout.blocked_letters if shape[layout.position(s)] % layout.block(s)]
        if odd:
            extents = ", ".join(
                f"{s} is {shape[layout.position(s)]}, no multiple of {layout.block(s)}" for s in odd
            )
            self._refuse(name, layout.without_blocks(odd), layout, f"{extents}: not blocked")
        layout = layout.without_blocks(odd)
        if len(layout.dims) > MAX_RANK:
            bare = layout.without_blocks(layout.blocked_letters)
            self._refuse(name, bare, layout, _too_deep(layout))
            layout = bare
        return None if layout.is_plain else layout

    def _choose_homes(self) -> None:
        """The form in which each tensor is written."""
        outputs = frozenset(self._graph.outputs)
        for name, layout in self._target.items():
            if layout is None or name not in self._writers:
                continue
            if name in outputs and name not in self._demand.wanted:
                continue  # what writes it can write ONNX's layout as well
            self._home[name] = layout
            for k in self._writers[name]:
                op = self._graph.ops[k]
                if not Digits(op).accept(op.write, layout):
                    self._unblock_home(name)
                    break

    def _unblock_home(self, name: str) -> None:
        bare = _unblocked(self._home.pop(name))
        if bare is not None:
            self._home[name] = bare

    def _readings(self) -> Iterator[tuple[int, Reading]]:
        """Anchors first: what they have converted, other operators may read as well."""
        copies: set[tuple[str, Layout]] = set()
        anchors = self._demand.anchors
        order = [*sorted(anchors), *(k for k in range(len(self._graph.ops)) if k not in anchors)]
        for k in order:
            op = self._graph.ops[k]
            digits = Digits(op)
            home = self._home.get(op.write.tensor)
            if home is not None:
                accepted = digits.accept(op.write, home)
                assert accepted, op.name  # `_choose_homes` has tried
            forms: list[Layout | None] = [None] * len(op.reads)
            anchor = anchors.get(k)
            for slot, read in enumerate(op.reads):
                if read.tensor in self._constants or (anchor and slot == anchor.weight):
                    continue
                wanted = self._form(op, read, anchor is not None, copies)
                forms[slot] = self._accepted(read, wanted, digits, anchor is not None)
                found = forms[slot]
                if anchor is not None and found is not None:
                    copies.add((read.tensor, found))
            if anchor is not None and anchor.weight is not None:
                forms[anchor.weight] = self._packed(op, anchor, digits)
            yield k, Reading(tuple(forms), digits)

    def _form(
        self, op: TensorOp, read: Access, is_anchor: bool, copies: set[tuple[str, Layout]]
    ) -> Layout | None:
        """The form an operator asks for, before its access is tried."""
        home = self._home.get(read.tensor)
        if self._is_inside_composite(op, read.tensor):
            return home
        target = self._target.get(read.tensor)
        if is_anchor and read.tensor in self._demand.wanted:
            return target
        follows = op.write.tensor in self._home
        if target is not None and follows and (read.tensor, target) in copies:
            return target
        return home

    def _accepted(
        self, read: Access, wanted: Layout | None, digits: Digits, is_anchor: bool
    ) -> Layout | None:
        """`wanted`, or the form without blocks when its index would not be linear."""
        if wanted is None or digits.accept(read, wanted):
            return wanted
        bare = _unblocked(wanted)
        if is_anchor:
            self._refuse(
                read.tensor,
                wanted.without_blocks(wanted.blocked_letters),
                wanted,
                f"{digits.op.origin.op_type} {digits.op.name} does not walk the blocks in steps",
            )
            return bare
        home = self._home.get(read.tensor)
        return home if home is None or not home.blocked_letters else bare

    def _packed(self, op: TensorOp, anchor: Anchor, digits: Digits) -> Layout | None:
        """The layout in which the weights of an anchor are packed; None: as they are."""
        assert anchor.weight is not None
        access = op.reads[anchor.weight]
        shape = self._graph.tensors[access.tensor].shape
        full = self._weights.for_rank(len(shape))
        full = full.reordered(anchor.weight_order + full.logical[2:])
        if full.is_plain:
            return None
        if len(full.dims) > MAX_RANK:
            bare = full.without_blocks(full.blocked_letters)
            self._refuse(access.tensor, bare, full, _too_deep(full))
            full = bare
        if access.tensor not in self._constants:
            self._refuse(access.tensor, None, full, "weights are computed at run time")
            return None
        layout = full.without_blocks(
            [s for s in full.blocked_letters if not self._fits(op, access, full, s)]
        )
        if not digits.accept(access, layout):
            for letter in layout.blocked_letters:
                others = [s for s in layout.blocked_letters if s != letter]
                if not Digits(op, dict(digits.factors)).accept(
                    access, layout.without_blocks(others)
                ):
                    layout = layout.without_blocks([letter])
            if not digits.accept(access, layout):
                layout = layout.without_blocks(layout.blocked_letters)
        if layout != full:
            lost = [s for s in full.blocked_letters if s not in layout.blocked_letters]
            extents = ", ".join(
                f"{s} is {shape[full.position(s)]} in blocks of {full.block(s)}" for s in lost
            )
            self._refuse(access.tensor, layout, full, f"{extents}: not blocked")
        return None if layout.is_plain else layout

    def _fits(self, op: TensorOp, access: Access, layout: Layout, letter: str) -> bool:
        """Whether a dimension of the weights may be blocked: whole blocks, or one padded block.

        A single channel is not padded: depthwise weights would grow by the block.  Padding must
        never be read, so every index has to stay inside the dimension.
        """
        at = layout.position(letter)
        extent, block = self._graph.tensors[access.tensor].shape[at], layout.block(letter)
        if extent % block == 0:
            return True
        expr = access.index[at]
        if not 1 < extent < block or expr.has_lookup:
            return False
        low, high, _ = expr.bounds(full_box(op))
        return low >= 0 and high < extent

    def _is_inside_composite(self, op: TensorOp, name: str) -> bool:
        mine = self._composites_of.get(op.name)
        return mine is not None and any(
            not mine.isdisjoint(self._composites_of.get(self._graph.ops[k].name, ()))
            for k in self._writers.get(name, ())
        )

    def _broken_composites(self, readings: Mapping[int, Reading]) -> Iterator[str]:
        """Tensors that a member of a composite would read converted from another member."""
        for k, reading in readings.items():
            op = self._graph.ops[k]
            for read, form in zip(op.reads, reading.forms, strict=True):
                if form != self._home.get(read.tensor) and self._is_inside_composite(
                    op, read.tensor
                ):
                    yield read.tensor

    def _refuse(self, tensor: str, kept: Layout | None, wanted: Layout, reason: str) -> None:
        start = wanted.logical if kept is None else str(kept)
        self._refused.setdefault(
            tensor, LayoutChange(tensor, start, str(wanted), ChangeKind.REFUSED, reason)
        )

    def _refuse_foreign(self, k: int) -> None:
        op = self._graph.ops[k]
        self._refused.setdefault(
            op.write.tensor,
            LayoutChange(
                op.write.tensor, "", str(self._activations), ChangeKind.REFUSED,
                f"{op.origin.op_type} has no batch, channel and spatial dimensions",
            ),
        )  # fmt: skip

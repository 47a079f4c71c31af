"""Teams of cores, stages, parts of a domain and splits: cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from machine_rates import with_rate

from worker.compiler.ir.affine import var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.tiling.nest.facts import Facts, facts_of, sliced
from worker.compiler.tiling.nest.levels import Sizes, StageFrame, levels_of
from worker.compiler.tiling.nest.plan import Team, stages_of
from worker.compiler.tiling.nest.splits import ranked_splits


@pytest.fixture(scope="module")
def stcp() -> Machine:
    """32 cores, 4 LLBs of 8 cores each; FP32 on the array, as the sizes are of 4-byte words."""
    return with_rate(load_preset("stcp920-inferred"), "MME", DType.F32, 512)


def convolution(channels: int, size: int, depth: int, pad: int) -> Facts:
    """3 x 3, stride 1; y[c, h, w] += x[d, h + i - pad, w + j - pad] * k[c, d, i, j]."""
    h, w = var("h") + var("i") - pad, var("w") + var("j") - pad
    wide = size if pad else size + 2
    op = TensorOp(
        "conv",
        (Axis("c", channels), Axis("h", size), Axis("w", size), Axis("d", depth, AxisKind.REDUCE),
         Axis("i", 3, AxisKind.REDUCE), Axis("j", 3, AxisKind.REDUCE)),
        (Access("x", (var("d"), h, w), 0.0 if pad else None),
         Access("k", (var("c"), var("d"), var("i"), var("j")))),
        Access("y", (var("c"), var("h"), var("w"))), Apply(Fn.MUL, (Read(0), Read(1))),
        Reduce.ADD, Origin((), "Conv"),
    )  # fmt: skip
    tensors = (
        Tensor("x", (depth, wide, wide), DType.F32),
        Tensor("k", (channels, depth, 3, 3), DType.F32),
        Tensor("y", (channels, size, size), DType.F32),
    )
    return facts_of(op, {t.name: t for t in tensors})


def test_everyone_splits_over_clusters_then_cores(stcp: Machine) -> None:
    memories = (stcp.level("LLB"), stcp.level("L1"))
    outer, inner = stages_of(stcp, memories)
    assert (outer.units, outer.stride, outer.sharers) == (4, 8, 1)
    assert (inner.units, inner.stride, inner.sharers) == (8, 1, 1)
    assert outer.inside == {"LLB", "L1"}
    assert inner.inside == {"L1"}
    assert outer.capacity_bytes == stcp.level("LLB").usable_bytes


def test_a_cluster_has_one_buffer_and_all_of_its_cores(stcp: Machine) -> None:
    memories = (stcp.level("LLB"), stcp.level("L1"))
    outer, inner = stages_of(stcp, memories, Team(8, 4, 4), {"LLB": 1000, "L1": 1 << 30})
    assert (outer.units, outer.stride, outer.sharers) == (1, 8, 1)
    assert (inner.units, inner.stride, inner.sharers) == (8, 1, 1)
    assert outer.capacity_bytes == 1000
    assert inner.capacity_bytes == stcp.level("L1").usable_bytes


def test_the_innermost_stage_alone_takes_every_core(stcp: Machine) -> None:
    (stage,) = stages_of(stcp, (stcp.level("L1"),))
    assert (stage.units, stage.stride) == (32, 1)
    (stage,) = stages_of(stcp, (stcp.level("L1"),), Team(8, 1, 4))
    assert (stage.units, stage.stride) == (8, 1)


@pytest.mark.parametrize(
    ("copies", "ddr", "llb", "l1"), [(1, 1, 1, 8), (2, 1, 2, 16), (4, 1, 4, 32)]
)
def test_instances_of_working_teams(
    stcp: Machine, copies: int, ddr: int, llb: int, l1: int
) -> None:
    team = Team(8, copies, 4)
    found = [team.instances(level) for level in stcp.levels]
    assert found == [ddr, llb, l1]


def test_a_part_of_the_rows_reads_a_halo() -> None:
    facts = convolution(4, 12, 2, pad=0)
    part = sliced(facts, {**facts.extents, "h": 3})
    (x,) = [o for o in part.reads if o.tensor == "x"]
    assert x.widths(part.extents, part.extents) == (2, 5, 14)
    assert part.out is not None
    assert part.out.widths(part.extents, part.extents) == (4, 3, 12)
    # The rows are cut in the middle of the tensor, and the kernel's rows share their dimension:
    # no tile of either may hang over.
    assert part.exact == {"h", "i"}
    assert facts.exact == frozenset()


def test_a_part_with_padding_reads_past_the_edge() -> None:
    facts = convolution(4, 12, 2, pad=1)
    part = sliced(facts, {**facts.extents, "h": 3})
    (x,) = [o for o in part.reads if o.tensor == "x"]
    assert x.limits[1] == (-1, 5)
    assert x.widths(part.extents, part.extents) == (2, 5, 14)


def test_an_axis_of_one_step_moves_no_box() -> None:
    facts = convolution(4, 12, 2, pad=1)
    part = sliced(facts, {**facts.extents, "c": 1, "h": 1})
    by_name = {o.tensor: o.axes for o in part.reads}
    assert by_name == {"x": {"w", "d", "i", "j"}, "k": {"d", "i", "j"}}


def test_the_whole_domain_is_no_part() -> None:
    facts = convolution(4, 12, 2, pad=1)
    assert sliced(facts, dict(facts.extents)) is facts


def test_many_channels_are_split_when_weights_are_dear(stcp: Machine) -> None:
    """512 channels of 7 x 7: splitting rows makes every core read all the weights."""
    best = ranked_splits(
        convolution(512, 7, 512, pad=1), stcp.engine("MME"), stcp, Team.everyone(stcp)
    )[0]
    assert set(best) == {"c"}


def test_few_channels_of_a_large_image_split_its_rows(stcp: Machine) -> None:
    """8 channels fill no array; splitting them wastes it, and every core reads the image."""
    best = ranked_splits(
        convolution(8, 112, 8, pad=1), stcp.engine("MME"), stcp, Team.everyone(stcp)
    )[0]
    assert "c" not in best
    assert np.prod(list(best.values())) > 16


def test_steps_that_divide_badly_use_fewer_cores(stcp: Machine) -> None:
    """7 rows on 8 cores: 7 parts of one row, not 8; 12 on 8: 6 parts of two."""
    for rows, parts in ((7, 7), (12, 6), (16, 8)):
        splits = ranked_splits(
            convolution(1, rows, 4, pad=1), stcp.engine("MME"), stcp, Team(8, 1, 4)
        )
        assert {"h": parts} in splits


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (1, True), (-1, False)])
def test_cores_that_share_a_buffer_share_its_room(stcp: Machine, spare: int, fits: bool) -> None:
    """2 of 4 channels of 4 x 4 on each of two cores: x 288, k 144, y 128 bytes."""
    facts = convolution(4, 4, 2, pad=1)
    (stage,) = stages_of(stcp, (stcp.level("L1"),), Team(8, 1, 4))
    level = replace(stage.level, align_bytes=16)
    room = 2 * (288 + 144 + 128) + spare
    stage = replace(stage, level=level, capacity_bytes=room, sharers=2)
    tile = {n: 2 if n == "c" else e for n, e in facts.extents.items()}
    found = levels_of(StageFrame(facts, (stage,)), Sizes((tile,), True, ({"c": 2},)))
    assert (found is not None) == fits

"""Operators that only move elements: Transpose, the Reshape family, Expand, Tile, depth/space."""

from __future__ import annotations

from math import prod

from worker.compiler.frontend.ops.body import lit
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.pointwise import broadcast_index, broadcast_shape
from worker.compiler.frontend.ops.reduce import normal_axis
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch, unsupported_attribute
from worker.compiler.ir.affine import Affine, const
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Tensor
from worker.compiler.rejection import ReasonCode


def reshape_to(call: Call, out: Tensor, source: Tensor) -> Tensor:
    """Emit out = source in row-major order, as an index map.

    Runs of dimensions with equal products are matched, so that a kept dimension is a plain index,
    a split one is linear, and only a merged one needs // and %.
    """
    nest = call.nest()
    index = nest.axes("i", out.shape)
    found: list[Affine] = []
    position = 0
    for source_run, out_run in _runs(source.shape, out.shape):
        flat: Affine = const(0)
        for extent in out_run:
            flat = flat * extent + index[position]
            position += 1
        stride = prod(source_run)
        for k, extent in enumerate(source_run):
            stride //= extent
            digit = flat.floordiv(stride)
            found.append(digit if k == 0 else digit.mod(extent))
    return nest.write(out, index, nest.read(source, found))


def _runs(
    left: tuple[int, ...], right: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Cut two shapes of equal size into the shortest runs with equal products."""
    runs: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(left) or j < len(right):
        start_i, start_j = i, j
        a = b = 1
        if i < len(left):
            a, i = left[i], i + 1
        if j < len(right):
            b, j = right[j], j + 1
        while a != b:
            if a < b:
                a, i = a * left[i], i + 1
            else:
                b, j = b * right[j], j + 1
        runs.append((left[start_i:i], right[start_j:j]))
    return runs


def _reshaped(call: Call, shape: tuple[int, ...]) -> None:
    x = call.tensor(0)
    if prod(shape) != x.num_elems:
        raise shape_mismatch(f"{call.node.op_type} of {x.shape} to {shape}")
    reshape_to(call, call.output(0, shape, x.dtype), x)


def reshape(call: Call) -> None:
    """Reshape: 0 copies a dimension (unless allowzero), -1 is inferred."""
    x = call.shape(0)
    keeps_zero = call.attrs.integer("allowzero", 0) != 0
    target = call.attrs.integers("shape")  # opset < 5
    wanted = list(call.integers(1) if target is None else target)
    for k, extent in enumerate(wanted):
        if extent == 0 and not keeps_zero:
            if k >= len(x):
                raise shape_mismatch(f"Reshape copies dimension {k} of {x}")
            wanted[k] = x[k]
    if wanted.count(-1) > 1:
        raise shape_mismatch(f"Reshape to {wanted}: more than one -1")
    if -1 in wanted:
        known = prod(w for w in wanted if w != -1)
        if known == 0 or prod(x) % known:
            raise shape_mismatch(f"Reshape of {x} to {wanted}")
        wanted[wanted.index(-1)] = prod(x) // known
    _reshaped(call, tuple(wanted))


def flatten(call: Call) -> None:
    """Flatten to a matrix at `axis`."""
    x = call.shape(0)
    axis = call.attrs.integer("axis", 1)
    if not -len(x) <= axis <= len(x):
        raise shape_mismatch(f"axis {axis} of a tensor of rank {len(x)}")
    axis = axis + len(x) if axis < 0 else axis
    _reshaped(call, (prod(x[:axis]), prod(x[axis:])))


def _axes(call: Call, rank: int) -> tuple[int, ...] | None:
    axes = call.attrs.integers("axes")
    if axes is None and call.has_input(1):
        axes = call.integers(1)
    return None if axes is None else tuple(normal_axis(a, rank) for a in axes)


def squeeze(call: Call) -> None:
    """Squeeze: drop the given (or all) dimensions of extent 1."""
    x = call.shape(0)
    axes = _axes(call, len(x))
    if axes is None:
        axes = tuple(d for d, n in enumerate(x) if n == 1)
    if any(x[d] != 1 for d in axes):
        raise shape_mismatch(f"Squeeze of {x} along {axes}: extents must be 1")
    _reshaped(call, tuple(n for d, n in enumerate(x) if d not in axes))


def unsqueeze(call: Call) -> None:
    """Unsqueeze: insert dimensions of extent 1; axes count in the result."""
    x = call.shape(0)
    given = call.attrs.integers("axes")
    count = len(call.integers(1) if given is None else given)
    axes = _axes_of_result(call, given, len(x) + count)
    rest = iter(x)
    _reshaped(call, tuple(1 if d in axes else next(rest) for d in range(len(x) + count)))


def _axes_of_result(call: Call, given: tuple[int, ...] | None, rank: int) -> tuple[int, ...]:
    axes = tuple(normal_axis(a, rank) for a in (call.integers(1) if given is None else given))
    if len(set(axes)) != len(axes):
        raise shape_mismatch(f"Unsqueeze axes repeat: {axes}")
    return axes


def transpose(call: Call) -> None:
    """Transpose: out axis k is in axis perm[k]."""
    x = call.tensor(0)
    rank = len(x.shape)
    perm = call.attrs.integers("perm") or tuple(reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        raise unsupported_attribute(f"perm {perm} is no permutation of {rank} axes")
    out = call.output(0, tuple(x.shape[p] for p in perm), x.dtype)
    nest = call.nest()
    index = nest.axes("i", out.shape)
    nest.write(out, index, nest.read(x, [index[perm.index(d)] for d in range(rank)]))


def copy(call: Call) -> None:
    """Identity."""
    x = call.tensor(0)
    reshape_to(call, call.output(0, x.shape, x.dtype), x)


def dropout(call: Call) -> None:
    """Dropout at inference is Identity, its mask is all ones; training is refused."""
    call.attrs.ignore("seed", "ratio", "is_test")
    if call.has_input(2) and any(call.array(2).reshape(-1)):
        raise Refusal(ReasonCode.UNSUPPORTED_INPUT, "Dropout in training mode is random")
    if call.uses_output(1):
        kind = call.output_dtype(1) or DType.BOOL
        mask = call.output(1, call.shape(0), kind)
        nest = call.nest()
        nest.write(mask, nest.axes("i", mask.shape), lit(1, kind))
    copy(call)


def expand(call: Call) -> None:
    """Expand: numpy broadcasting with a constant shape."""
    x = call.tensor(0)
    shape = broadcast_shape([x.shape, call.integers(1)])
    out = call.output(0, shape, x.dtype)
    nest = call.nest()
    index = nest.axes("i", shape)
    nest.write(out, index, nest.read(x, broadcast_index(x.shape, index)))


def tile(call: Call) -> None:
    """Tile: out index modulo the input's extent."""
    x, repeats = call.tensor(0), call.integers(1)
    if len(repeats) != len(x.shape):
        raise shape_mismatch(f"Tile of {x.shape} by {repeats}")
    out = call.output(0, tuple(n * r for n, r in zip(x.shape, repeats, strict=True)), x.dtype)
    nest = call.nest()
    index = nest.axes("i", out.shape)
    nest.write(out, index, nest.read(x, [e.mod(n) for e, n in zip(index, x.shape, strict=True)]))


def depth_to_space(call: Call) -> None:
    """DepthToSpace, both channel orders."""
    x = call.tensor(0)
    block, mode = call.attrs.integer("blocksize"), call.attrs.choice("mode", "DCR", ("DCR", "CRD"))
    if len(x.shape) != 4 or block < 1 or x.shape[1] % (block * block):
        raise shape_mismatch(f"DepthToSpace of {x.shape} with blocks of {block}")
    batch, depth, height, width = x.shape
    channels = depth // (block * block)
    out = call.output(0, (batch, channels, height * block, width * block), x.dtype)
    nest = call.nest()
    n, c, h, w = nest.axes("i", out.shape)
    within = h.mod(block) * block + w.mod(block)
    channel = within * channels + c if mode == "DCR" else c * (block * block) + within
    value = nest.read(x, (n, channel, h.floordiv(block), w.floordiv(block)))
    nest.write(out, (n, c, h, w), value)


def space_to_depth(call: Call) -> None:
    """SpaceToDepth, both channel orders."""
    x = call.tensor(0)
    block = call.attrs.integer("blocksize")
    mode = call.attrs.choice("mode", "DCR", ("DCR", "CRD"))
    if len(x.shape) != 4 or block < 1 or x.shape[2] % block or x.shape[3] % block:
        raise shape_mismatch(f"SpaceToDepth of {x.shape} with blocks of {block}")
    batch, channels, height, width = x.shape
    shape = (batch, channels * block * block, height // block, width // block)
    out = call.output(0, shape, x.dtype)
    nest = call.nest()
    n, c, h, w = nest.axes("i", shape)
    if mode == "DCR":
        within, channel = c.floordiv(channels), c.mod(channels)
    else:
        within, channel = c.mod(block * block), c.floordiv(block * block)
    rows, columns = h * block + within.floordiv(block), w * block + within.mod(block)
    nest.write(out, (n, c, h, w), nest.read(x, (n, channel, rows, columns)))


EXPRESSIONS: dict[str, Expression] = {
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Transpose": transpose,
    "Identity": copy,
    "Dropout": dropout,
    "Expand": expand,
    "Tile": tile,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
}

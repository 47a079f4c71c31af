"""One case or more for every operator with a gradient rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """Nodes, with every float operand a parameter."""

    name: str
    nodes: tuple[onnx.NodeProto, ...]
    parameters: Mapping[str, Array]
    constants: Mapping[str, Array] = field(default_factory=dict)
    inputs: Mapping[str, Array] = field(default_factory=dict)
    seed: int = 0
    output: str | None = None


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    names = [name.strip("_") for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), name=f"the_{op}", **attributes)


def whole(seed: int, *shape: int) -> Array:
    """Small integers."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float64)


def real(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def positive(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).uniform(0.5, 2.0, shape)


def apart(seed: int, *shape: int) -> Array:
    """Numbers that differ by 0.05 at least and are none of 0, 1, -1: no kink is near."""
    count = int(np.prod(shape))
    values = (np.arange(count) - count // 2) * 0.05 + 0.0173
    return np.random.default_rng(seed).permutation(values).reshape(shape)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def one(name: str, op: str, x: Array, outputs: str = "y", **attributes: Any) -> Case:
    return Case(name, (node(op, "x", outputs, **attributes),), {"x": x})


def _convolutions() -> Iterator[Case]:
    """Strides, pads, groups and dilations drawn at random, sizes that leave rows unread."""
    for seed in range(24):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(1, 3))
        groups = int(rng.choice([1, 1, 2, 3]))
        share, each = (int(n) for n in rng.integers(1, 3, 2))
        kernel = [int(n) for n in rng.integers(1, 4, count)]
        dilations = [int(n) for n in rng.integers(1, 3, count)]
        strides = [int(n) for n in rng.integers(1, 4, count)]
        pads = [int(n) for n in rng.integers(0, 3, 2 * count)]
        extents = [
            (k - 1) * d + 1 + int(rng.integers(0, 6))
            for k, d in zip(kernel, dilations, strict=True)
        ]
        attributes = {
            "group": groups, "dilations": dilations, "strides": strides, "pads": pads,
            "kernel_shape": kernel,
        }  # fmt: skip
        parameters = {
            "x": whole(seed, 2, groups * share, *extents),
            "w": whole(seed + 1, groups * each, share, *kernel),
            "b": whole(seed + 2, groups * each),
        }
        nodes = (node("Conv", "x w b", **attributes),)
        yield Case(f"conv-{seed}", nodes, parameters, seed=seed)
        if seed % 2:
            continue
        # The same, the other way round: pads must not eat all there is.
        attributes["pads"] = [min(p, (k - 1) * d // 2) for p, k, d in zip(
            pads, kernel * 2, dilations * 2, strict=True
        )]  # fmt: skip
        swapped = {
            "x": whole(seed, 2, groups * each, *(min(n, 4) for n in extents)),
            "w": whole(seed + 1, groups * each, share, *kernel),
            "b": whole(seed + 2, groups * share),
        }
        nodes = (node("ConvTranspose", "x w b", **attributes),)
        yield Case(f"conv-transpose-{seed}", nodes, swapped, seed=seed)


def _products() -> Iterator[Case]:
    for seed, (trans_a, trans_b) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        a, b = whole(seed, 3, 4), whole(seed + 9, 4, 5)
        parameters = {
            "a": a.T.copy() if trans_a else a, "b": b.T.copy() if trans_b else b,
            "c": whole(seed, 1, 5) if seed % 2 else whole(seed, 5),
        }  # fmt: skip
        gemm = node("Gemm", "a b c", transA=trans_a, transB=trans_b, alpha=2.0, beta=3.0)
        yield Case(f"gemm-{trans_a}{trans_b}", (gemm,), parameters)
    shapes = (
        ((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (3, 4, 5)), ((3, 4), (2, 4, 5)),
        ((4,), (2, 4, 5)), ((2, 3, 4), (4,)),
    )  # fmt: skip
    for a_shape, b_shape in shapes:
        parameters = {"a": whole(1, *a_shape), "b": whole(2, *b_shape)}
        yield Case(f"matmul-{a_shape}-{b_shape}", (node("MatMul", "a b"),), parameters)


def _layouts() -> Iterator[Case]:
    x = whole(3, 2, 3, 4)
    yield one("identity", "Identity", x)
    yield one("flatten", "Flatten", x, axis=2)
    yield one("transpose", "Transpose", x, perm=[2, 0, 1])
    yield one("transpose-reversed", "Transpose", x)
    yield one("depth-to-space-dcr", "DepthToSpace", whole(1, 1, 8, 2, 3), blocksize=2)
    yield one("depth-to-space-crd", "DepthToSpace", whole(1, 1, 8, 2, 3), blocksize=2, mode="CRD")
    yield one("space-to-depth", "SpaceToDepth", whole(1, 1, 2, 4, 6), blocksize=2)
    yield one("global-average", "GlobalAveragePool", whole(1, 2, 3, 4, 4))
    for name, op, constant in (
        ("reshape", "Reshape", ints(4, -1)), ("unsqueeze", "Unsqueeze", ints(0, 2)),
        ("expand", "Expand", ints(2, 2, 3, 4)), ("tile", "Tile", ints(2, 1, 3)),
        ("pad", "Pad", ints(1, 0, 2, 0, 3, 1)), ("pad-cuts", "Pad", ints(0, 0, 2, 0, 1, 0)),
    ):  # fmt: skip
        yield Case(name, (node(op, "x c"),), {"x": x}, {"c": constant})
    squeezed = (node("Squeeze", "x c"),)
    yield Case("squeeze", squeezed, {"x": whole(3, 2, 1, 4)}, {"c": ints(1)})
    wide = (node("Expand", "x c"),)
    yield Case("expand-broadcasts", wide, {"x": whole(3, 3, 1)}, {"c": ints(2, 1, 5)})
    for name, cut in (
        ("forward", (1, 4, 1, 1)), ("steps", (0, 9, 1, 3)), ("steps-inside", (1, 8, 1, 2)),
        ("backward", (7, 1, 1, -2)), ("backward-all", (-1, -10, 1, -1)),
        ("from-behind", (-4, -1, -1, 1)),
    ):  # fmt: skip
        constants = dict(zip("abcd", map(ints, cut), strict=True))
        sliced = (node("Slice", "x a b c d"),)
        yield Case(f"slice-{name}", sliced, {"x": whole(5, 2, 9)}, constants)
    joined = (node("Concat", "x u x", axis=1),)
    yield Case("concat", joined, {"x": whole(1, 2, 3), "u": whole(2, 2, 1)})
    split = (node("Split", "x c", "p q r", axis=1), node("Concat", "r p", axis=1))
    yield Case("split", split, {"x": whole(1, 2, 6)}, {"c": ints(1, 3, 2)})
    cast = (node("Cast", "x", "h", to=1), node("CastLike", "h x", "y"))
    yield Case("cast", cast, {"x": x})
    where = ints(0, 2, 2, -1).reshape(2, 2)
    taken = (node("Gather", "x i", axis=1),)
    yield Case("gather", taken, {"x": whole(1, 2, 3, 2)}, inputs={"i": where})
    yield Case("gather-rows", (node("Gather", "x i"),), {"x": whole(1, 3, 2)}, {"i": where})
    elements = (node("GatherElements", "x i", axis=1),)
    yield Case("gather-elements", elements, {"x": whole(1, 2, 3)}, inputs={"i": where})
    upper = (node("Trilu", "x c", upper=0),)
    yield Case("trilu", upper, {"x": x}, {"c": np.array(-1)})
    for mode, around in (("edge", (0, 3, 0, 0, 1, 2)), ("reflect", (1, 2, 0, 0, 1, 3)),
                         ("wrap", (0, 1, 4, 2, 0, 3))):  # fmt: skip
        padded = (node("Pad", "x c", mode=mode),)
        yield Case(f"pad-{mode}", padded, {"x": x}, {"c": ints(*around)})
    for reverse in (0, 1):
        summed = (node("CumSum", "x c", reverse=reverse, exclusive=1 - reverse),)
        yield Case(f"cumsum-{reverse}", summed, {"x": x}, {"c": np.array(1)})


def _lookups() -> Iterator[Case]:
    """Rows read twice, from behind, of batches; writes over and on top of what is there."""
    tuples = ints(0, 2, 1, -1, 0, -1, -2, 0).reshape(4, 2)
    for name, batch, x in (
        ("rows", 0, whole(1, 2, 3, 2)), ("elements", 0, whole(1, 2, 3)),
        ("batches", 1, whole(1, 4, 2, 3)),
    ):  # fmt: skip
        taken = (node("GatherND", "x i", batch_dims=batch),)
        yield Case(f"gather-nd-{name}", taken, {"x": x}, inputs={"i": tuples})
    more = ints(*range(2), -1, 0, 1, 1, 0, 0).reshape(2, 2, 2)
    for batch in (0, 1):
        taken = (node("GatherND", "x i", batch_dims=batch),)
        yield Case(f"gather-nd-deep-{batch}", taken, {"x": whole(2, 2, 2, 2, 3)}, {"i": more})
    x, u = whole(1, 3, 4), whole(2, 2, 2)
    apart = ints(0, 2, 1, -1).reshape(2, 2)
    for how in ("none", "add"):
        put = (node("ScatterElements", "x i u", axis=1, reduction=how),)
        yield Case(f"scatter-elements-{how}", put, {"x": x, "u": u}, inputs={"i": apart})
        rows = (node("ScatterND", "x i u", reduction=how),)
        deep = ints(2, 0).reshape(2, 1)
        wide = {"x": x, "u": whole(3, 2, 4)}
        yield Case(f"scatter-nd-{how}", rows, wide, inputs={"i": deep})


def _contractions() -> Iterator[Case]:
    """Two operands, three and one; broadcast dots, indices that one operand alone has."""
    a, b, c = whole(1, 2, 3), whole(2, 3, 4), whole(3, 4, 2)
    for equation, operands in (
        ("ij,jk->ik", (a, b)), ("ij,jk->ki", (a, b)), ("ij,jk", (a, b)), ("ij->ji", (a,)),
        ("ij->", (a,)), ("ij,jk,ki->", (a, b, c)), ("ij,jk,kl->il", (a, b, c)),
        ("ij,jk->i", (a, b)), ("i,j->ij", (a[0], b[0])), ("...ij,...jk->...ik",
        (whole(4, 5, 2, 3), whole(5, 1, 3, 4))), ("...ij,jk->...ik", (whole(4, 5, 2, 3), b)),
        ("b...d,d->b...", (whole(4, 5, 2, 3), a[0])), ("...j,jk", (whole(4, 5, 2, 3), b)),
    ):  # fmt: skip
        names = "abc"[: len(operands)]
        made = (node("Einsum", " ".join(names), equation=equation),)
        yield Case(f"einsum-{equation}", made, dict(zip(names, operands, strict=True)))


def _sums() -> Iterator[Case]:
    for axes in (ints(0), ints(1, -1), ints(0, 1, 2)):
        for keep in (0, 1):
            summed = (node("ReduceSum", "x c", keepdims=keep),)
            name = f"sum-{axes.tolist()}-{keep}"
            yield Case(name, summed, {"x": whole(1, 2, 3, 4)}, {"c": axes})
    mean = (node("ReduceMean", "x c"),)
    yield Case("mean", mean, {"x": whole(1, 2, 4, 4)}, {"c": ints(1)})
    a, b, c = whole(1, 2, 3, 4), whole(2, 3, 1), whole(3, 4)
    yield Case("add", (node("Add", "a b"),), {"a": a, "b": b})
    yield Case("sub", (node("Sub", "b a"),), {"a": a, "b": b})
    yield Case("mul", (node("Mul", "a b"),), {"a": a, "b": b})
    yield Case("sum", (node("Sum", "a b c"),), {"a": a, "b": b, "c": c})
    yield Case("mean-of-two", (node("Mean", "a c"),), {"a": a, "c": c})
    yield Case("neg", (node("Neg", "a"),), {"a": a})
    yield Case("twice", (node("Add", "a a"),), {"a": a})
    chosen = (node("Where", "t a b"),)
    yield Case("where", chosen, {"a": a, "b": b}, inputs={"t": whole(4, 2, 3, 4) > 0})


def _averages() -> Iterator[Case]:
    """Counts are powers of two, so that means of integers are exact."""
    for name, attributes in (
        ("plain", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("overlap", {"kernel_shape": [2, 4], "strides": [1, 3]}),
        ("padded", {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 0, 1, 0],
                    "count_include_pad": 1}),
        ("corners", {"kernel_shape": [2, 2], "strides": [1, 2], "pads": [1, 1, 0, 1]}),
        ("same", {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ):  # fmt: skip
        yield one(f"average-{name}", "AveragePool", whole(1, 2, 2, 5, 7), **attributes)


def _pools() -> Iterator[Case]:
    for name, attributes in (
        ("plain", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("overlap", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("uneven", {"kernel_shape": [3, 2], "strides": [1, 3], "pads": [0, 1, 1, 0]}),
        ("unread", {"kernel_shape": [2, 2], "strides": [3, 3]}),
        ("ceil", {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    ):  # fmt: skip
        yield one(f"max-{name}", "MaxPool", apart(1, 2, 2, 5, 7), **attributes)
    yield one("global-max", "GlobalMaxPool", apart(1, 2, 2, 3, 3))


def _functions() -> Iterator[Case]:
    x = apart(1, 3, 8)
    for name, attributes in (("", {}), ("-smallest", {"largest": 0, "axis": 0})):
        top = (node("TopK", "x k", "y where", **attributes),)
        yield Case(f"top{name}", top, {"x": x}, {"k": ints(2)}, output="y")
    for size in (1, 2, 5):
        response = {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5}
        yield one(f"lrn-{size}", "LRN", real(1, 2, 4, 2, 3), **response)
    for op in ("Relu", "LeakyRelu", "Elu", "HardSigmoid", "Sigmoid", "Tanh", "Erf", "Exp", "Abs",
               "Sin", "Cos", "Tan", "Sinh", "Cosh", "Asin", "Acos", "Atan", "Asinh", "Atanh",
               "Softplus", "Softsign", "Neg", "Softmax", "LogSoftmax"):  # fmt: skip
        yield one(op.lower(), op, x)
    yield one("acosh", "Acosh", 1 + positive(1, 3, 4))
    for op in ("Log", "Sqrt", "Reciprocal"):
        yield one(op.lower(), op, positive(1, 3, 4))
    for op in ("Gelu", "HardSwish", "Mish", "Selu", "ThresholdedRelu"):
        yield one(f"function-{op}", op, x)
    yield one("softmax-1", "Softmax", real(1, 2, 3, 4), axis=1)
    yield one("log-softmax-1", "LogSoftmax", real(1, 2, 3, 4), axis=1)
    limits = {"low": np.array(-0.3), "high": np.array(0.3)}
    yield Case("clip", (node("Clip", "x low high"),), {"x": x}, limits)
    yield Case("clip-above", (node("Clip", "x low"),), {"x": x}, {"low": limits["low"]})
    a, b = apart(2, 2, 3, 4), apart(3, 3, 1) + 0.01
    yield Case("max", (node("Max", "a b"),), {"a": a, "b": b})
    yield Case("min", (node("Min", "b a"),), {"a": a, "b": b})
    yield Case("div", (node("Div", "a b"),), {"a": a, "b": positive(3, 3, 1)})
    yield Case("pow", (node("Pow", "a b"),), {"a": positive(1, 2, 3), "b": real(2, 3)})
    yield Case("pow-2", (node("Pow", "a b"),), {"a": real(1, 2, 3)}, {"b": np.array(2.0)})
    yield Case("mod", (node("Mod", "a b", fmod=1),), {"a": a}, {"b": np.array(0.5)})
    yield Case("prelu", (node("PRelu", "a b"),), {"a": a, "b": real(1, 3, 1)})


def _reductions() -> Iterator[Case]:
    for op in ("SumSquare", "L1", "L2", "LogSumExp", "Max", "Min"):
        reduced = (node(f"Reduce{op}", "x c", keepdims=0),)
        yield Case(op.lower(), reduced, {"x": apart(1, 2, 3, 4)}, {"c": ints(0, 2)})
    for zeros in range(3):
        factors = apart(1, 2, 3, 4)
        factors.reshape(-1)[:zeros] = 0
        product = (node("ReduceProd", "x c", keepdims=1 - zeros % 2),)
        yield Case(f"product-{zeros}", product, {"x": factors}, {"c": ints(0, 2)})
    yield one("product-of-all", "ReduceProd", apart(1, 2, 3))
    yield one("sum-of-all", "ReduceSum", real(1, 2, 3))
    none = (node("ReduceMean", "x c", noop_with_empty_axes=1),)
    yield Case("mean-of-none", none, {"x": real(1, 2, 3)}, {"c": ints()})


def _normalisations() -> Iterator[Case]:
    yield one("norm-2", "LpNormalization", apart(2, 2, 3, 4), axis=1)
    # ONNX's own evaluator takes no absolute values.
    yield one("norm-1", "LpNormalization", positive(1, 2, 3, 4), axis=0, p=1)
    x, scale, bias = real(1, 3, 4, 5), positive(2, 4), real(3, 4)
    named = {"x": x, "g": scale, "b": bias}
    layer = (node("LayerNormalization", "x g b", axis=1),)
    yield Case("layer", layer, {"x": x, "g": real(2, 4, 5), "b": real(3, 4, 5)})
    yield Case("layer-last", (node("LayerNormalization", "x g"),), {"x": x, "g": real(2, 5)})
    yield Case("instance", (node("InstanceNormalization", "x g b"),), named)
    group = (node("GroupNormalization", "x g b", num_groups=2),)
    yield Case("group", group, named)
    batch = (node("BatchNormalization", "x g b m v", "y rm rv", training_mode=1),)
    yield Case("batch", batch, named, {"m": real(4, 4), "v": positive(5, 4)}, output="y")


def _resamplings() -> Iterator[Case]:
    for name, attributes in (
        ("half-pixel", {}),
        ("asymmetric", {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
    ):
        resized = (node("Resize", "x __ scales", **attributes),)
        scales = {"scales": np.array([1, 1, 2, 3], np.float32)}
        yield Case(f"resize-{name}", resized, {"x": whole(1, 1, 2, 3, 2)}, scales)
    for name, by, attributes in (
        ("uneven", (1, 1, 1.7, 0.6), {}), ("linear", (1, 1, 2, 1), {"mode": "linear"}),
        ("linear-asymmetric", (1, 1, 2, 4), {"mode": "linear",
         "coordinate_transformation_mode": "asymmetric"}),
        ("linear-smaller", (1, 1, 0.5, 0.5), {"mode": "linear"}),
    ):  # fmt: skip
        resized = (node("Resize", "x __ scales", **attributes),)
        scales = {"scales": np.array(by, np.float32)}
        yield Case(f"resize-{name}", resized, {"x": whole(1, 1, 2, 6, 4)}, scales)


def _interpolations() -> Iterator[Case]:
    """Weights are no powers of two, but of cubic ones: the evaluator computes those in float32."""
    for name, attributes in (
        ("linear", {"mode": "linear"}), ("cubic", {"mode": "cubic"}),
        ("corners", {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
        ("outside", {"mode": "linear", "exclude_outside": 1}),
        ("antialias", {"mode": "linear", "antialias": 1}),
        ("symmetric", {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}),
        ("axes", {"mode": "linear", "axes": [3]}),
        ("not-larger", {"mode": "linear", "keep_aspect_ratio_policy": "not_larger",
                        "axes": [2, 3]}),
    ):  # fmt: skip
        count = len(attributes.get("axes", range(4)))
        sizes = ints(*(1, 2, 8, 2)[-count:] if name == "cubic" else (1, 2, 7, 3)[-count:])
        resized = (node("Resize", "x __ __ sizes", **attributes),)
        yield Case(f"resize-to-{name}", resized, {"x": real(1, 1, 2, 4, 4)}, {"sizes": sizes})


LINEAR = (
    *_convolutions(), *_products(), *_contractions(), *_layouts(), *_lookups(), *_sums(),
    *_averages(), *_resamplings(),
)  # fmt: skip
SMOOTH = (
    *_pools(), *_functions(), *_reductions(), *_normalisations(), *_interpolations(),
)  # fmt: skip

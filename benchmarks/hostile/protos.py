"""Mutations of ONNX models: each changes one thing of a `ModelProto`, most make it illegal.

A mutation gives a sentence about what it did, or None where the model has nothing of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

Rng: TypeAlias = np.random.Generator
Mutation: TypeAlias = Callable[[onnx.ModelProto, Rng], str | None]

INTEGERS = (0, 1, -1, 2, 3, 7, -2, 255, 2**31 - 1, -(2**31), 2**40, 2**62, -(2**63), 2**63 - 1)
FLOATS = (0.0, -0.0, -1.0, 1e-45, 1e38, -1e38, float("nan"), float("inf"), float("-inf"))
TEXTS = ("", "x", "NOTSET", "SAME_UPPER", "a,b->c", "ij...,jk->ik", "\x00", "é" * 40, "x" * 5000)
OPERATORS = (
    "Relu", "Conv", "MatMul", "Reshape", "Concat", "Loop", "If", "Softmax", "Gather", "Resize",
    "Expand", "Einsum", "Attention", "TopK", "NonZero", "Cast", "NoSuchOperator", "Slice", "Pad",
)  # fmt: skip


def _node(model: onnx.ModelProto, rng: Rng) -> onnx.NodeProto | None:
    nodes = model.graph.node
    return nodes[int(rng.integers(len(nodes)))] if nodes else None


def _pick(rng: Rng, values: Sequence[object]) -> object:
    return values[int(rng.integers(len(values)))]


def change_attribute(model: onnx.ModelProto, rng: Rng) -> str | None:
    """Another value of the same kind."""
    node = _node(model, rng)
    if node is None or not node.attribute:
        return None
    attribute = node.attribute[int(rng.integers(len(node.attribute)))]
    match attribute.type:
        case AttributeProto.INT:
            attribute.i = int(str(_pick(rng, INTEGERS)))
        case AttributeProto.FLOAT:
            attribute.f = float(str(_pick(rng, FLOATS)))
        case AttributeProto.STRING:
            attribute.s = str(_pick(rng, TEXTS)).encode()
        case AttributeProto.INTS:
            _change_list(attribute.ints, [int(str(_pick(rng, INTEGERS))) for _ in range(4)], rng)
        case AttributeProto.FLOATS:
            _change_list(attribute.floats, [float(str(_pick(rng, FLOATS)))] * 2, rng)
        case _:
            return None
    return f"{node.op_type}.{attribute.name} changed"


def _change_list(values: list[int] | list[float], new: list[int] | list[float], rng: Rng) -> None:
    way = int(rng.integers(4))
    if way == 0 and len(values):
        values[int(rng.integers(len(values)))] = new[0]
    elif way == 1 and len(values):
        del values[-1]
    elif way == 2:
        values.append(new[0])  # type: ignore[arg-type]  # a repeated field of either kind
    else:
        del values[:]
        values.extend(new)  # type: ignore[arg-type]


def retype_attribute(model: onnx.ModelProto, rng: Rng) -> str | None:
    """A value of another kind under the same name."""
    node = _node(model, rng)
    if node is None or not node.attribute:
        return None
    place = int(rng.integers(len(node.attribute)))
    name = node.attribute[place].name
    value = _pick(rng, (1, 1.5, "text", [1, 2], [1.5], ["a", "b"]))
    node.attribute[place].CopyFrom(helper.make_attribute(name, value))
    return f"{node.op_type}.{name} of another kind"


def drop_attribute(model: onnx.ModelProto, rng: Rng) -> str | None:
    node = _node(model, rng)
    if node is None or not node.attribute:
        return None
    place = int(rng.integers(len(node.attribute)))
    name = node.attribute[place].name
    del node.attribute[place]
    return f"{node.op_type}.{name} dropped"


def add_attribute(model: onnx.ModelProto, rng: Rng) -> str | None:
    node = _node(model, rng)
    if node is None:
        return None
    name = str(_pick(rng, ("axis", "axes", "group", "pads", "strides", "to", "mode", "surplus")))
    node.attribute.append(helper.make_attribute(name, _pick(rng, (0, -3, 2.5, "x", [1, 1]))))
    return f"{node.op_type}.{name} added (twice, where it was there)"


def rewire(model: onnx.ModelProto, rng: Rng) -> str | None:
    """An input from another tensor: wrong shapes, wrong types, or a cycle."""
    node = _node(model, rng)
    if node is None or not node.input:
        return None
    names = [n for m in model.graph.node for n in (*m.input, *m.output)]
    names += [value.name for value in model.graph.input] + ["", "nowhere"]
    place = int(rng.integers(len(node.input)))
    node.input[place] = str(_pick(rng, names))
    return f"input {place} of {node.op_type} is {node.input[place]!r}"


def drop_input(model: onnx.ModelProto, rng: Rng) -> str | None:
    node = _node(model, rng)
    if node is None or not node.input:
        return None
    del node.input[int(rng.integers(len(node.input)))]
    return f"{node.op_type} lost an input"


def rename_output(model: onnx.ModelProto, rng: Rng) -> str | None:
    node = _node(model, rng)
    if node is None or not node.output:
        return None
    names = [n for m in model.graph.node for n in (*m.input, *m.output)] + ["", "fresh"]
    node.output[0] = str(_pick(rng, names))
    return f"{node.op_type} writes {node.output[0]!r}"


def change_operator(model: onnx.ModelProto, rng: Rng) -> str | None:
    node = _node(model, rng)
    if node is None:
        return None
    old, node.op_type = node.op_type, str(_pick(rng, OPERATORS))
    if rng.integers(4) == 0:
        node.domain = str(_pick(rng, ("com.microsoft", "ai.onnx.ml", "my.own", "ai.onnx")))
    return f"{old} is {node.domain or 'ai.onnx'}.{node.op_type}"


def copy_node(model: onnx.ModelProto, rng: Rng) -> str | None:
    """The same node again, with its outputs: defined twice, or with a fresh name."""
    node = _node(model, rng)
    if node is None:
        return None
    twin = model.graph.node.add()
    twin.CopyFrom(node)
    if rng.integers(2):
        for place, name in enumerate(twin.output):
            twin.output[place] = f"{name}_twin" if name else ""
        model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in twin.output if n)
    return f"{node.op_type} twice"


def drop_node(model: onnx.ModelProto, rng: Rng) -> str | None:
    if not model.graph.node:
        return None
    place = int(rng.integers(len(model.graph.node)))
    kind = model.graph.node[place].op_type
    del model.graph.node[place]
    return f"{kind} dropped"


def change_shape(model: onnx.ModelProto, rng: Rng) -> str | None:
    """A dimension of a graph input or output: other, symbolic, zero, negative or vast."""
    values = [*model.graph.input, *model.graph.output]
    if not values:
        return None
    value = values[int(rng.integers(len(values)))]
    dims = value.type.tensor_type.shape.dim
    if not dims or rng.integers(8) == 0:
        value.type.tensor_type.ClearField("shape")
        return f"{value.name} has no shape"
    dim = dims[int(rng.integers(len(dims)))]
    if rng.integers(3) == 0:
        dim.dim_param = str(_pick(rng, ("N", "", "batch size", "?", "é")))
    else:
        dim.dim_value = int(str(_pick(rng, INTEGERS)))
    return f"{value.name} has another dimension"


def change_type(model: onnx.ModelProto, rng: Rng) -> str | None:
    values = [*model.graph.input, *model.graph.output]
    if not values:
        return None
    value = values[int(rng.integers(len(values)))]
    kind = int(rng.integers(0, 30))
    value.type.tensor_type.elem_type = kind
    return f"{value.name} has element type {kind}"


def change_constant(model: onnx.ModelProto, rng: Rng) -> str | None:
    """Bytes, type or shape of an initializer or of a Constant's tensor."""
    tensors = list(model.graph.initializer)
    tensors += [
        a.t for n in model.graph.node for a in n.attribute if a.type == AttributeProto.TENSOR
    ]
    if not tensors:
        return None
    tensor = tensors[int(rng.integers(len(tensors)))]
    way = int(rng.integers(6))
    if way == 0:
        tensor.data_type = int(rng.integers(0, 30))
    elif way == 1 and tensor.dims:
        tensor.dims[int(rng.integers(len(tensor.dims)))] = int(str(_pick(rng, INTEGERS)))
    elif way == 2 and tensor.raw_data:
        tensor.raw_data = tensor.raw_data[: int(rng.integers(len(tensor.raw_data)))]
    elif way == 3:
        return _replace_values(tensor, rng)
    elif way == 4:
        tensor.data_location = TensorProto.EXTERNAL
        where = str(_pick(rng, ("../../etc/passwd", "/etc/passwd", "weights.bin", "", "a/../../b")))
        tensor.external_data.add(key="location", value=where)
        tensor.external_data.add(key="offset", value=str(_pick(rng, ("0", "-1", "9" * 30, "x"))))
    else:
        tensor.dims.append(1)
    return f"constant {tensor.name!r} changed in way {way}"


def _replace_values(tensor: TensorProto, rng: Rng) -> str | None:
    try:
        array = onnx.numpy_helper.to_array(tensor).copy()
    except Exception:  # an earlier mutation broke it: nothing to replace
        return None
    if not array.size or array.dtype.kind not in "iuf":
        return None
    pool = FLOATS if array.dtype.kind == "f" else INTEGERS
    with np.errstate(all="ignore"):
        value = np.array([_pick(rng, pool)], dtype=object)[0]
        try:
            array.reshape(-1)[int(rng.integers(array.size))] = array.dtype.type(value)
        except OverflowError:
            array.reshape(-1)[0] = np.iinfo(array.dtype).min
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return f"a value of {tensor.name!r} replaced"


def change_outputs(model: onnx.ModelProto, rng: Rng) -> str | None:
    """An inner tensor, an input or an initializer as an output, or an output twice."""
    names = [n for m in model.graph.node for n in (*m.input, *m.output) if n]
    names += [value.name for value in (*model.graph.input, *model.graph.output)]
    if not names:
        return None
    name = str(_pick(rng, names))
    model.graph.output.append(onnx.ValueInfoProto(name=name))
    return f"{name} is an output too"


def wrap_in_body(model: onnx.ModelProto, rng: Rng) -> str | None:
    """Many bodies inside each other, the innermost refers outward."""
    node = _node(model, rng)
    if node is None or not node.output:
        return None
    depth = int(rng.integers(1, 18))  # deeper ones cannot even be copied, or written to a file
    inner = helper.make_graph([helper.make_node("Identity", [node.output[0]], ["deep"])], "g", [],
                              [onnx.ValueInfoProto(name="deep")])  # fmt: skip
    for level in range(depth):
        other = helper.make_node("Identity", [node.output[0]], [f"e{level}"])
        plain = helper.make_graph([other], "e", [], [onnx.ValueInfoProto(name=f"e{level}")])
        branch = helper.make_node(
            "If", ["flag"], [f"o{level}"], then_branch=inner, else_branch=plain
        )
        inner = helper.make_graph([branch], "g", [], [onnx.ValueInfoProto(name=f"o{level}")])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "flag"))
    model.graph.node.extend(inner.node)
    model.graph.output.append(onnx.ValueInfoProto(name=f"o{depth - 1}"))
    return f"{depth} bodies inside each other"


def grow(model: onnx.ModelProto, rng: Rng) -> str | None:
    """A chain that doubles a tensor, or asks for a vast one."""
    values = [value.name for value in model.graph.input] or [
        t.name for t in model.graph.initializer
    ]
    if not values:
        return None
    name = str(_pick(rng, values))
    way = int(rng.integers(3))
    if way == 0:
        for step in range(int(rng.integers(8, 60))):
            made = f"{name}_{step}x"
            model.graph.node.append(helper.make_node("Concat", [name, name], [made], axis=0))
            name = made
    else:
        vast = np.array([int(str(_pick(rng, (2**20, 2**33, 2**50))))] * 2, np.int64)
        model.graph.initializer.append(onnx.numpy_helper.from_array(vast, "vast"))
        kind = ("ConstantOfShape", "Expand")[way - 1]
        given = ["vast"] if kind == "ConstantOfShape" else [name, "vast"]
        model.graph.node.append(helper.make_node(kind, given, ["grown"]))
        name = "grown"
    model.graph.output.append(onnx.ValueInfoProto(name=name))
    return f"{name} is vast"


def recurse(model: onnx.ModelProto, rng: Rng) -> str | None:
    """Functions that call themselves or each other, or fan out without end."""
    node = _node(model, rng)
    if node is None or not node.input or not node.output:
        return None
    width = int(rng.integers(1, 4))
    other = f"F{int(rng.integers(2))}"
    for name, callee in (("F0", other), ("F1", "F0")):
        calls = [helper.make_node(callee, ["x"], [f"y{k}"], domain="mine") for k in range(width)]
        last = helper.make_node("Identity", ["y0"], ["y"])
        model.functions.append(
            helper.make_function("mine", name, ["x"], ["y"], [*calls, last],
                                 [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)])
        )  # fmt: skip
    model.opset_import.append(helper.make_opsetid("mine", 1))
    node.op_type, node.domain = "F0", "mine"
    return "functions that call each other"


def change_opset(model: onnx.ModelProto, rng: Rng) -> str | None:
    if rng.integers(3) == 0 and model.opset_import:
        del model.opset_import[0]
        return "no opset"
    for entry in model.opset_import:
        entry.version = int(str(_pick(rng, (0, 1, 6, 11, 13, 21, 25, 99, 2**40, -1))))
    if rng.integers(2):
        model.ir_version = int(str(_pick(rng, (0, 1, 3, 7, 10, 99, 2**40))))
    return "another opset or IR version"


def change_names(model: onnx.ModelProto, rng: Rng) -> str | None:
    """Names that collide, are vast, empty, or hold what files and terminals dislike."""
    name = str(_pick(rng, ("../../x", "\x1b[2J", "x" * 70000, "é", "a/b", "%s%n", "<script>", "-")))
    for node in model.graph.node:
        node.name = name
    model.graph.name = name
    if model.graph.input and rng.integers(2):
        old = model.graph.input[0].name
        for node in model.graph.node:
            for place, given in enumerate(node.input):
                if given == old:
                    node.input[place] = name
        model.graph.input[0].name = name
    model.producer_name = name
    return "names changed"


MUTATIONS: tuple[Mutation, ...] = (
    change_attribute, change_attribute, change_attribute, retype_attribute, drop_attribute,
    add_attribute, rewire, drop_input, rename_output, change_operator, copy_node, drop_node,
    change_shape, change_type, change_constant, change_constant, change_outputs, wrap_in_body, grow,
    recurse, change_opset, change_names,
)  # fmt: skip
"""Drawn evenly; what is listed twice is where exporters err most."""


def mutated(model: onnx.ModelProto, rng: Rng) -> tuple[bytes, str]:
    """One to three mutations, and now and then flipped bytes: the file, and what was done."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    done: list[str] = []
    for _ in range(int(rng.choice((1, 1, 1, 2, 3)))):
        mutation = MUTATIONS[int(rng.integers(len(MUTATIONS)))]
        done += [what] if (what := mutation(changed, rng)) else []
    raw = changed.SerializeToString()
    if not done or rng.integers(12) == 0:
        raw, what = flipped(raw, rng)
        done.append(what)
    return raw, "; ".join(done)


def flipped(raw: bytes, rng: Rng) -> tuple[bytes, str]:
    """A few bytes changed, or the tail cut off."""
    array = bytearray(raw)
    if rng.integers(4) == 0:
        return bytes(array[: int(rng.integers(len(array) + 1))]), "cut short"
    for _ in range(int(rng.integers(1, 6))):
        if array:
            array[int(rng.integers(len(array)))] = int(rng.integers(256))
    return bytes(array), "bytes flipped"

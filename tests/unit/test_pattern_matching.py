"""The pattern language, feature by feature; the paper's vectors; sentences about near misses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import pytest
from counted_work import calls_of

from worker.compiler.ir.dtype import DType
from worker.compiler.machine.pattern import (
    Alternatives,
    AnyValue,
    AttributeRule,
    OpMatch,
    PathTo,
    Pattern,
    PatternRule,
    SameValue,
    ValueRule,
)
from worker.compiler.partition.patterns.matching import match_patterns, near_misses

ANY = AnyValue()
CONSTANT = AnyValue(ValueRule(constant=True))
CONV = OpMatch(("Conv",), (ANY, CONSTANT))
CONV_BIAS_RELU = OpMatch(
    ("Relu",), (OpMatch(("Add",), (CONV, CONSTANT), commutative=True, optional=True),)
)


class Toy:
    """A model under construction; every value is f32 of shape 1x8x4x4 unless said otherwise."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.outputs: list[str] = []
        self.x = self.value("x")

    def value(self, name: str, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
        return ir.val(name, type=ir.TensorType(dtype), shape=ir.Shape([1, 8, 4, 4]))

    def weight(self, *shape: int) -> ir.Value:
        tensor = ir.tensor(np.ones(shape, np.float32), name=f"w{len(self.nodes)}")
        kind = ir.TensorType(ir.DataType.FLOAT)
        return ir.val(str(tensor.name), type=kind, shape=ir.Shape(shape), const_value=tensor)

    def add(
        self, op_type: str, *inputs: ir.Value | None, name: str = "", num_outputs: int = 1,
        domain: str = "", **attributes: int | float | str | Sequence[int],
    ) -> ir.Value:  # fmt: skip
        made = ir.node(
            op_type, inputs, attributes, domain=domain, num_outputs=num_outputs, version=18,
            name=name or f"{op_type.lower()}{len(self.nodes)}",
        )  # fmt: skip
        for k, out in enumerate(made.outputs):
            out.name = f"{made.name}_out{k or ''}"
            out.type, out.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([1, 8, 4, 4])
        self.nodes.append(made)
        return made.outputs[0]

    def conv(self, value: ir.Value, name: str = "", **attributes: int | Sequence[int]) -> ir.Value:
        return self.add("Conv", value, self.weight(8, 8, 3, 3), name=name, **attributes)

    def found(self, *rules: PatternRule | Pattern) -> list[tuple[str, ...]]:
        """Names of the nodes of every composite, in order of the roots."""
        matches = match_patterns(self.nodes, table(*rules), self.outputs)
        return [tuple(str(self.nodes[k].name) for k in m.nodes) for m in matches]

    def sentences(self, *rules: PatternRule | Pattern) -> list[str]:
        rows = table(*rules)
        matches = match_patterns(self.nodes, rows, self.outputs)
        return [m.sentence for m in near_misses(self.nodes, rows, self.outputs, matches)]


def table(*rules: PatternRule | Pattern) -> tuple[PatternRule, ...]:
    return tuple(
        rule if isinstance(rule, PatternRule) else PatternRule(f"p{k}", rule)
        for k, rule in enumerate(rules)
    )


@pytest.fixture
def toy() -> Toy:
    return Toy()


class TestPaper:
    def test_by_1_composites_of_a_detector_chain(self, toy: Toy) -> None:
        """TV-BY-1: conv, bias, relu, pool, NMS, conv, relu."""
        conv = toy.conv(toy.x, "c1")
        relu = toy.add("Relu", toy.add("Add", conv, toy.weight(8, 1, 1), name="bias"), name="r1")
        pool = toy.add("MaxPool", relu, name="pool", kernel_shape=[2, 2])
        boxes = toy.add("NonMaxSuppression", pool, pool, name="nms")
        toy.outputs = [str(toy.add("Relu", toy.conv(boxes, "c2"), name="r2").name)]
        assert toy.found(CONV_BIAS_RELU) == [("c1", "bias", "r1"), ("c2", "r2")]

    def test_by_5_the_bias_is_optional_the_relu_is_not(self, toy: Toy) -> None:
        bias = toy.weight(8, 1, 1)
        toy.add("Relu", toy.conv(toy.x, "c1"), name="r1")
        toy.add("Relu", toy.add("Add", toy.conv(toy.x, "c2"), bias, name="b2"), name="r2")
        alone = toy.add("Add", toy.conv(toy.x, "c3"), bias, name="b3")
        toy.outputs = ["r1_out", "r2_out", str(alone.name)]
        assert toy.found(CONV_BIAS_RELU) == [("c1", "r1"), ("c2", "b2", "r2")]

    def test_by_5_a_value_that_is_also_a_graph_output_is_not_absorbed(self, toy: Toy) -> None:
        relu = toy.add("Relu", toy.conv(toy.x, "conv1"), name="relu")
        toy.outputs = ["conv1_out", str(relu.name)]
        assert toy.found(CONV_BIAS_RELU) == []
        assert toy.sentences(CONV_BIAS_RELU) == [
            "conv1: the value conv1_out is also an output of the model, so it cannot disappear "
            "inside the composite"
        ]


class TestLanguage:
    def test_a_value_read_outside_stops_the_match(self, toy: Toy) -> None:
        conv = toy.conv(toy.x, "conv1")
        toy.add("Relu", conv, name="relu")
        toy.add("Neg", conv, name="Neg_7")
        assert toy.found(CONV_BIAS_RELU) == []
        assert toy.sentences(CONV_BIAS_RELU) == [
            "conv1: the value conv1_out is also read by Neg_7, so it cannot disappear inside the "
            "composite"
        ]

    def test_a_second_output_that_is_read_outside_escapes(self, toy: Toy) -> None:
        pool = toy.add("MaxPool", toy.x, name="pool", num_outputs=2, kernel_shape=[2, 2])
        toy.add("Relu", pool, name="relu")
        pattern = OpMatch(("Relu",), (OpMatch(("MaxPool",)),))
        assert toy.found(pattern) == [("pool", "relu")]
        toy.add("Neg", toy.nodes[0].outputs[1])
        assert toy.found(pattern) == []

    def test_patterns_refer_to_first_outputs(self, toy: Toy) -> None:
        toy.add("MaxPool", toy.x, name="pool", num_outputs=2, kernel_shape=[2, 2])
        toy.add("Relu", toy.nodes[0].outputs[1], name="relu")
        pattern = OpMatch(("Relu",), (OpMatch(("MaxPool",)),))
        assert toy.found(pattern) == []
        assert toy.sentences(pattern) == [
            "relu: input 0 is output 1 of pool; patterns refer to first outputs"
        ]

    def test_commutative_operands_come_in_either_order(self, toy: Toy) -> None:
        toy.add("Relu", toy.add("Add", toy.weight(8, 1, 1), toy.conv(toy.x, "c"), name="b"))
        assert toy.found(CONV_BIAS_RELU) == [("c", "b", "relu2")]
        fixed = OpMatch(("Relu",), (OpMatch(("Add",), (CONV, CONSTANT)),))
        assert toy.found(fixed) == []

    def test_choices_below_a_commutative_node_are_tried_again(self, toy: Toy) -> None:
        """The first order takes the Relu as the optional node; only then is the Conv missing."""
        gated = toy.add("Relu", toy.conv(toy.x, "c"), name="gate")
        toy.add("Add", toy.add("Neg", toy.x, name="neg"), gated, name="sum")
        maybe = OpMatch(("Neg", "Relu"), (ANY,), optional=True)
        pattern = OpMatch(("Add",), (maybe, OpMatch(("Relu",), (CONV,))), commutative=True)
        assert toy.found(pattern) == [("c", "gate", "neg", "sum")]

    def test_a_later_way_is_taken_when_the_first_lets_a_value_escape(self, toy: Toy) -> None:
        conv = toy.conv(toy.x, "conv")
        toy.add("Neg", conv)
        toy.add("Relu", toy.add("Add", conv, toy.weight(1), name="add"), name="relu")
        either = OpMatch(("Relu",), (OpMatch(("Add",), (Alternatives((CONV, ANY)), ANY)),))
        assert toy.found(either) == [("add", "relu")]

    def test_optional_stands_through_the_named_input(self, toy: Toy) -> None:
        toy.add("Relu", toy.conv(toy.x, "c"), name="r")
        maybe = OpMatch(("Sub",), (CONSTANT, CONV), optional=True, through=1)
        assert toy.found(OpMatch(("Relu",), (maybe,))) == [("c", "r")]

    def test_the_same_value_may_come_before_its_binding(self, toy: Toy) -> None:
        conv = toy.conv(toy.x, "c")
        toy.add("Mul", toy.add("Sigmoid", conv, name="s"), conv, name="m")
        bound = OpMatch(("Conv",), (ANY, CONSTANT), bind="y")
        asked = OpMatch(("Sigmoid",), (SameValue("y"),))
        assert toy.found(OpMatch(("Mul",), (asked, bound))) == [("c", "s", "m")]
        bound = OpMatch(("Sigmoid",), (OpMatch(("Conv",), bind="y"),))
        rules = table(OpMatch(("Mul",), (bound, SameValue("y"))))
        (match,) = match_patterns(toy.nodes, rules, [])
        assert match.bindings == (("y", "c_out"),)
        assert match.root == 2

    def test_another_value_is_not_the_same(self, toy: Toy) -> None:
        toy.add("Mul", toy.x, toy.add("Sigmoid", toy.value("other"), name="s"), name="m")
        swish = OpMatch(("Mul",), (AnyValue(bind="y"), OpMatch(("Sigmoid",), (SameValue("y"),))))
        assert toy.found(swish) == []
        assert "bound" in toy.sentences(swish)[0]

    def test_a_wildcard_stands_for_values_from_outside_only(self, toy: Toy) -> None:
        conv = toy.conv(toy.x, "c")
        toy.add("Add", toy.add("Relu", conv, name="r"), conv, name="a")
        residual = OpMatch(("Add",), (OpMatch(("Relu",), (CONV,)), ANY))
        assert toy.found(residual) == []
        assert "not together" in toy.sentences(residual)[0]

    def test_an_absent_operand_is_no_value(self, toy: Toy) -> None:
        toy.add("Clip", toy.x, None, toy.weight(1), name="clip")
        assert toy.found(OpMatch(("Clip",), (ANY, CONSTANT, CONSTANT))) == []
        assert toy.sentences(OpMatch(("Clip",), (ANY, CONSTANT, CONSTANT))) == [
            "clip: input 1 is absent"
        ]
        assert toy.found(OpMatch(("Clip",), (ANY,))) == [("clip",)]

    def test_paths_take_the_longest_way_past_constant_operands(self, toy: Toy) -> None:
        value = toy.conv(toy.x, "c")
        for name in ("p0", "p1", "p2"):
            value = toy.add("Add", value, toy.weight(1), name=name)
        toy.add("Relu", value, name="r")
        path = OpMatch(("Relu",), (PathTo(("Add",), Alternatives((CONV, ANY)), 8),))
        assert toy.found(path) == [("c", "p0", "p1", "p2", "r")]
        short = OpMatch(("Relu",), (PathTo(("Add",), Alternatives((CONV, ANY)), 2),))
        assert toy.found(short) == [("p1", "p2", "r")]
        assert toy.found(OpMatch(("Relu",), (PathTo(("Add",), CONV, 2),))) == []

    def test_a_path_has_one_data_route(self, toy: Toy) -> None:
        conv = toy.conv(toy.x, "c")
        toy.add("Relu", toy.add("Add", conv, toy.value("y"), name="a"), name="r")
        assert toy.found(OpMatch(("Relu",), (PathTo(("Add",), CONV),))) == []

    def test_rules_about_values(self, toy: Toy) -> None:
        conv = toy.conv(toy.x, "c")
        toy.add("Relu", conv, name="r")

        def wants(rule: ValueRule) -> str | None:
            pattern = OpMatch(("Relu",), (OpMatch(("Conv",), value=rule),))
            sentences = toy.sentences(pattern)
            assert bool(sentences) != bool(toy.found(pattern))
            return sentences[0] if sentences else None

        assert wants(ValueRule(dtypes=(DType.F16, DType.F32))) is None
        assert wants(ValueRule(dtypes=(DType.I8, DType.F16))) == (
            "c: its result is f32, the pattern wants i8 or f16"
        )
        assert wants(ValueRule(rank=(4, 4))) is None
        assert wants(ValueRule(rank=(2, 3))) == "c: its result has rank 4, the pattern wants 2 to 3"
        assert wants(ValueRule(shape=(None, (8, 64), None, None))) is None
        assert wants(ValueRule(shape=(None, (16, 64), None, None))) == (
            "c: its result has dimension 1 = 8, the pattern wants 16 to 64"
        )
        assert wants(ValueRule(uses=(1, 1))) is None
        assert wants(ValueRule(uses=(2, 3))) == (
            "c: its result is read 1 times, the pattern wants 2 to 3"
        )

    def test_other_domains_are_not_the_standards_operators(self, toy: Toy) -> None:
        toy.add("Relu", toy.x, domain="com.example")
        assert toy.found(OpMatch(("Relu",))) == []

    def test_a_body_that_reads_a_value_is_outside(self, toy: Toy) -> None:
        conv = toy.conv(toy.x, "c")
        toy.add("Relu", conv, name="r")
        ir.Graph([], [], nodes=[ir.Node("", "Neg", [conv], name="inner")], name="body")
        assert toy.found(CONV_BIAS_RELU) == []


class TestAttributes:
    def pool(self, toy: Toy, rule: AttributeRule, **attributes: int | Sequence[int]) -> bool:
        toy.add("MaxPool", toy.x, name="pool", **attributes)
        return bool(toy.found(OpMatch(("MaxPool",), attributes=(rule,))))

    @pytest.mark.parametrize(
        ("rule", "strides", "expected"),
        [
            (AttributeRule("strides", (1,)), None, True),
            (AttributeRule("strides", ((1, 1),)), None, True),
            (AttributeRule("strides", (1, 2)), [1, 2], True),
            (AttributeRule("strides", ((2, 2),)), [1, 2], False),
            (AttributeRule("strides", (), 1, 2), [1, 3], False),
            (AttributeRule("strides", (), 1, 3), [1, 3], True),
            (AttributeRule("ceil_mode", (0,)), None, True),
            (AttributeRule("ceil_mode", (1,)), None, False),
            (AttributeRule("auto_pad", ("NOTSET", "VALID")), None, True),
            (AttributeRule("pads", (0,)), None, True),
        ],
    )
    def test_predicates(
        self, toy: Toy, rule: AttributeRule, strides: list[int] | None, expected: bool
    ) -> None:
        given = {} if strides is None else {"strides": strides}
        assert self.pool(toy, rule, kernel_shape=[2, 2], **given) is expected

    def test_kernel_shape_is_inferred_from_the_weights(self, toy: Toy) -> None:
        toy.conv(toy.x, "c")
        assert toy.found(OpMatch(("Conv",), attributes=(AttributeRule("kernel_shape", (3,)),)))
        assert toy.sentences(
            OpMatch(("Conv",), attributes=(AttributeRule("kernel_shape", (1, 5)),))
        ) == ["c: kernel_shape is [3, 3], the rule wants 1 or 5"]

    def test_floats_are_compared_as_stored(self, toy: Toy) -> None:
        toy.add("LeakyRelu", toy.x, alpha=0.2)
        assert toy.found(OpMatch(("LeakyRelu",), attributes=(AttributeRule("alpha", (0.2,)),)))
        assert not toy.found(OpMatch(("LeakyRelu",), attributes=(AttributeRule("alpha", (0.1,)),)))

    @pytest.mark.parametrize(("auto_pad", "pads"), [("SAME_UPPER", (0, 0, 1, 1)),
                                                    ("SAME_LOWER", (1, 1, 0, 0)),
                                                    ("VALID", (0, 0, 0, 0))])  # fmt: skip
    def test_pads_follow_from_auto_pad(
        self, toy: Toy, auto_pad: str, pads: tuple[int, ...]
    ) -> None:
        toy.add("MaxPool", toy.x, kernel_shape=[3, 3], strides=[2, 2], auto_pad=auto_pad)
        assert toy.found(OpMatch(("MaxPool",), attributes=(AttributeRule("pads", (pads,)),)))


class TestTables:
    def test_the_first_rule_takes_its_nodes(self, toy: Toy) -> None:
        toy.add("Relu", toy.conv(toy.x, "c"), name="r")
        whole = PatternRule("whole", OpMatch(("Relu",), (CONV,)))
        single = PatternRule("single", CONV)
        assert toy.found(whole, single) == [("c", "r")]
        assert toy.found(single, whole) == [("c",)]
        assert toy.sentences(single, whole) == [
            "c is already part of a composite single, which has precedence"
        ]

    def test_the_first_root_in_model_order_takes_its_nodes(self, toy: Toy) -> None:
        value = toy.x
        for name in ("a", "b", "c", "d", "e"):
            value = toy.add("Relu", value, name=name)
        pair = OpMatch(("Relu",), (OpMatch(("Relu",)),))
        assert toy.found(pair) == [("a", "b"), ("c", "d")]
        assert toy.sentences(pair) == [
            "d is already part of a composite p0, which has precedence",
        ]

    def test_near_misses_name_the_deepest_point(self, toy: Toy) -> None:
        pool = toy.add("MaxPool", toy.x, name="MaxPool_2", kernel_shape=[2, 2])
        toy.add("Relu", pool, name="Relu_3")
        toy.add("Relu", toy.add("Add", toy.conv(toy.x, "c"), toy.x, name="Add_4"), name="Relu_5")
        assert toy.sentences(CONV_BIAS_RELU) == [
            "Relu_3: input 0 is defined by MaxPool_2 (MaxPool), the pattern wants Add or Conv",
            "Add_4: input 1 is computed, the pattern wants a constant",
        ]


class TestCost:
    """Patterns whose ways are exponentially many must not take exponential time."""

    def calls(self, toy: Toy, *rules: Pattern) -> int:
        def work() -> None:
            matches = match_patterns(toy.nodes, table(*rules), toy.outputs)
            near_misses(toy.nodes, table(*rules), toy.outputs, matches)

        return calls_of(work)

    def test_nested_choices_over_a_tree_that_fails_at_its_end(self, toy: Toy) -> None:
        level = [toy.add("Neg", toy.x) for _ in range(64)]
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=True)
            level = [toy.add("Add", a, b) for a, b in pairs]
        deep: Pattern = Alternatives((OpMatch(("Neg",)), ANY))
        for _ in range(6):
            sum_of = OpMatch(("Add",), (deep, deep), commutative=True, optional=True)
            deep = Alternatives((sum_of, OpMatch(("Relu",), (deep,), optional=True)))
        toy.add("Mul", level[0], toy.x, name="root")
        fails = OpMatch(("Mul",), (deep, OpMatch(("Conv",))), commutative=True)
        assert toy.found(fails) == []
        assert self.calls(toy, fails) < 500_000

    def tree(self, toy: Toy) -> None:
        """A Relu over a tree of sums of 32 leaves, of which the first escapes."""
        level = [toy.add("Neg", toy.x) for _ in range(32)]
        toy.add("Abs", level[0])
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=True)
            level = [toy.add("Add", a, b) for a, b in pairs]
        toy.add("Relu", level[0])

    def test_many_ways_that_all_let_a_value_escape(self, toy: Toy) -> None:
        for _ in range(15):
            self.tree(toy)
        deep: Pattern = OpMatch(("Neg",))
        for k in range(5):
            sum_of = OpMatch(("Add",), (deep, deep), commutative=True)
            deep = sum_of if k == 0 else Alternatives((sum_of, OpMatch(("Add",), (deep, ANY))))
        assert toy.found(OpMatch(("Relu",), (deep,))) == []
        assert self.calls(toy, OpMatch(("Relu",), (deep,))) < 800_000

    def test_the_way_behind_millions_that_fail_is_found(self, toy: Toy) -> None:
        self.tree(toy)
        deep: Pattern = Alternatives((OpMatch(("Neg",)), ANY))
        for _ in range(5):
            deep = Alternatives((OpMatch(("Add",), (deep, deep)), ANY))
        (composite,) = toy.found(OpMatch(("Relu",), (deep,)))
        assert len(composite) == 31 + 31 + 1  # every leaf but the first, the sums, the root

    def test_a_long_chain_of_optional_nodes(self, toy: Toy) -> None:
        value = toy.x
        for _ in range(500):
            value = toy.add("Relu", value)
        chain: Pattern = OpMatch(("Conv",))
        for _ in range(14):
            chain = OpMatch(("Relu",), (chain,), optional=True)
        assert self.calls(toy, OpMatch(("Relu",), (chain,))) < 1_000_000

    def test_thousands_of_nodes_and_thirty_patterns(self, toy: Toy) -> None:
        weight, bias = toy.weight(8, 8, 3, 3), toy.weight(8, 1, 1)
        value = skip = toy.x
        for _ in range(200):
            value = toy.add("Conv", value, weight)
            value = toy.add("Relu", toy.add("Add", value, bias))
            value = toy.add("Add", toy.add("Conv", value, weight), skip)
            value = skip = toy.add("Relu", toy.add("MaxPool", value, kernel_shape=[1, 1]))
            value = toy.add("Mul", toy.add("Sigmoid", value), skip)
            value = toy.add("Clip", value)
        assert len(toy.nodes) == 2000
        rules: list[Pattern] = [CONV_BIAS_RELU]
        for k in range(29):
            wrong = OpMatch(("Conv",), (ANY, CONSTANT), (AttributeRule("group", (k + 2,)),))
            sums = OpMatch(("Add",), (wrong, ANY), commutative=True, optional=True)
            head = (("Relu",), ("Clip",), ("Mul", "Add"))[k % 3]
            path = PathTo(("Relu", "Add", "Clip"), wrong) if k % 2 else sums
            rules.append(OpMatch(head, (path,)))
        matches = match_patterns(toy.nodes, table(*rules), [])
        assert len(matches) == 200
        assert all(len(match.nodes) == 3 for match in matches)
        assert calls_of(lambda: match_patterns(toy.nodes, table(*rules), [])) < 1_000_000

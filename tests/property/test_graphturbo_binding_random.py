"""Core binding and data movement on random graphs, against their definitions."""

from __future__ import annotations

from itertools import product
from math import prod

from algebra_graphs import conv
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.ir.op import TensorOp
from worker.compiler.strategies.graphturbo.binding import (
    Bindable,
    Edge,
    bind,
    dims_between,
    infer,
    is_local,
    plain,
    required,
)
from worker.compiler.strategies.graphturbo.movement import (
    Held,
    MovementKind,
    common_binding,
    insert_movements,
    is_zero_copy,
    totals,
)
from worker.compiler.strategies.graphturbo.values import BufferScope, Instance, InstanceGraph

EXTENTS = st.sampled_from((1, 2, 3, 4, 6, 7, 8, 12, 16))
CORES = st.sampled_from((1, 2, 4, 6, 8, 9, 16, 108))
SHAPES = st.lists(EXTENTS, min_size=1, max_size=4).map(tuple)


@st.composite
def bindables(draw: st.DrawFn) -> Bindable:
    shape = draw(SHAPES)
    forbidden = draw(st.frozensets(st.integers(0, len(shape) - 1), max_size=1))
    return Bindable(shape, forbidden)


def draw_dims(draw: st.DrawFn, rank: int, reader_rank: int) -> tuple[int | None, ...]:
    """A partial one-to-one matching of dimensions."""
    pool: list[int | None] = [*draw(st.permutations(range(reader_rank))), *[None] * rank]
    chosen = pool[:rank]
    return tuple(d if draw(st.booleans()) else None for d in chosen)


@st.composite
def dataflows(draw: st.DrawFn) -> tuple[list[Bindable], list[Edge]]:
    """Random instances; each reads some of the earlier ones."""
    parts = draw(st.lists(bindables(), min_size=1, max_size=6))
    edges = [
        Edge(j, i, draw_dims(draw, len(parts[j].shape), len(parts[i].shape)))
        for i in range(len(parts))
        for j in range(i)
        if draw(st.booleans())
    ]
    return parts, edges


def slices(binding: tuple[int, ...], shape: tuple[int, ...]) -> list[tuple[range, ...]]:
    """By core (row-major over the factors): the elements it holds, per dimension."""
    factors = (*binding, *[1] * (len(shape) - len(binding)))
    return [
        tuple(
            range(k * (e // f), (k + 1) * (e // f))
            for k, f, e in zip(place, factors, shape, strict=True)
        )
        for place in product(*(range(f) for f in factors))
    ]


@given(shape=SHAPES, num_cores=CORES, data=st.data())
def test_plain_is_legal_and_greedy(
    shape: tuple[int, ...], num_cores: int, data: st.DataObject
) -> None:
    forbidden = data.draw(st.frozensets(st.integers(0, len(shape) - 1)))
    found = plain(shape, num_cores, forbidden)
    assert prod(found) <= num_cores
    assert not found or found[-1] > 1
    left = num_cores
    for dim, extent in enumerate(shape):
        factor = found[dim] if dim < len(found) else 1
        legal = [
            f
            for f in range(1, left + 1)
            if extent % f == 0 and (num_cores % f == 0 or f.bit_count() == 1)
        ]
        assert factor == (1 if dim in forbidden else max(legal))
        left //= factor


@given(shape=SHAPES, exponent=st.integers(0, 4), data=st.data())
def test_no_binding_beats_plain_on_a_power_of_two_cores(
    shape: tuple[int, ...], exponent: int, data: st.DataObject
) -> None:
    """Why a tie has to keep the inferred binding: as printed, no inference would ever survive."""
    cores = 2**exponent
    forbidden = data.draw(st.frozensets(st.integers(0, len(shape) - 1)))
    options = [
        [1 << k for k in range(exponent + 1) if e % (1 << k) == 0 and (d not in forbidden or not k)]
        for d, e in enumerate(shape)
    ]
    best = max(used for used in map(prod, product(*options)) if used <= cores)
    assert prod(plain(shape, cores, forbidden)) == best


@given(flow=dataflows(), num_cores=CORES, further=st.booleans(), tie=st.booleans())
def test_bindings_are_legal_and_scopes_follow_from_them(
    flow: tuple[list[Bindable], list[Edge]], num_cores: int, further: bool, tie: bool
) -> None:
    parts, edges = flow
    found = bind(
        parts, edges, range(len(parts)), num_cores, propagate_inferred=further, keep_on_tie=tie
    )
    shuffled = bind(
        parts,
        edges[::-1],
        range(len(parts)),
        num_cores,
        propagate_inferred=further,
        keep_on_tie=tie,
    )
    assert found == shuffled
    asked: list[list[tuple[int, ...]]] = [[] for _ in parts]
    passes_on = [True] * len(parts)
    for i in reversed(range(len(parts))):
        binding, part = found.bind[i], parts[i]
        assert prod(binding) <= num_cores
        assert all(part.shape[d] % f == 0 for d, f in enumerate(binding))
        assert all(f == 1 or d not in part.forbidden for d, f in enumerate(binding))
        assert prod(binding) >= prod(plain(part.shape, num_cores, part.forbidden))
        # consumers that disagree, and only they, put the output where all cores reach it
        is_shared = any(wanted != asked[i][0] for wanted in asked[i])
        assert found.scope[i] is (BufferScope.GB if is_shared else BufferScope.LB)
        passes_on[i] = further or is_shared or not asked[i]
        for edge in edges:
            if edge.consumer == i and passes_on[i]:
                target = parts[edge.producer]
                wanted = infer(binding, edge, target.shape, target.forbidden)
                asked[edge.producer].extend([wanted] if wanted is not None else [])
        if found.inferred[i]:
            assert binding in asked[i]


@given(
    length=st.integers(2, 6),
    shape=st.lists(st.sampled_from((8, 16)), min_size=2, max_size=4).map(tuple),
    data=st.data(),
)
def test_a_chain_shares_one_binding(
    length: int, shape: tuple[int, ...], data: st.DataObject
) -> None:
    """The last output has requirements; those before it follow, unless they only look one hop."""
    forbidden = frozenset({data.draw(st.integers(0, len(shape) - 1))})
    parts = [*[Bindable(shape)] * (length - 1), Bindable(shape, forbidden)]
    dims = tuple(range(len(shape)))
    edges = [Edge(k, k + 1, dims) for k in range(length - 1)]
    whole = bind(parts, edges, range(length), 8)
    assert whole.bind == (plain(shape, 8, forbidden),) * length
    assert whole.inferred == (True,) * (length - 1) + (False,)
    graph = InstanceGraph(
        tuple(Instance(k, 0) for k in range(length)),
        tuple((k - 1,) if k else () for k in range(length)),
        (prod(shape),) * length,
        (1,) * length,
    )
    assert insert_movements(graph, range(length), parts, edges, whole, (None,) * length) == ()
    hop = bind(parts, edges, range(length), 8, propagate_inferred=False)
    assert hop.bind[-2:] == whole.bind[-2:]
    # the third from the end starts anew, and the one before it follows that
    assert all(binding == plain(shape) for binding in hop.bind[:-2])
    assert not any(hop.inferred[-3::-2])


@given(
    reader=SHAPES,
    held_shape=SHAPES,
    num_cores=st.sampled_from((2, 4, 6, 8)),
    data=st.data(),
)
def test_local_means_that_every_core_holds_what_it_reads(
    reader: tuple[int, ...], held_shape: tuple[int, ...], num_cores: int, data: st.DataObject
) -> None:
    pool: list[int | None] = [*data.draw(st.permutations(range(len(reader)))), *[None] * 4]
    dims = tuple(
        d if d is not None and reader[d] == held_shape[k] and data.draw(st.booleans()) else None
        for k, d in enumerate(pool[: len(held_shape)])
    )
    edge = Edge(0, 1, dims)
    binding = plain(reader, num_cores)
    options = [plain(held_shape, num_cores), ()]
    wanted = required(binding, edge)
    if all(held_shape[d] % f == 0 for d, f in enumerate(wanted)):
        options.append(wanted)
    held = data.draw(st.sampled_from(options))
    holds = slices(held, held_shape)
    expected = True
    for core, computes in enumerate(slices(binding, reader)):
        reads = [
            range(extent) if d is None else computes[d]
            for d, extent in zip(dims, held_shape, strict=True)
        ]
        expected = (
            expected
            and core < len(holds)
            and all(set(part) <= set(have) for part, have in zip(reads, holds[core], strict=True))
        )
    assert is_local(binding, edge, held) == expected


@given(shape=SHAPES, data=st.data())
def test_the_common_binding_is_refined_by_both(shape: tuple[int, ...], data: st.DataObject) -> None:
    first, second = (plain(shape, data.draw(CORES)) for _ in range(2))
    meet = common_binding(first, second)
    for finer in (first, second):
        assert all(
            any(all(set(a) <= set(b) for a, b in zip(piece, big, strict=True)) for big in
                slices(meet, shape))
            for piece in slices(finer, shape)
        )  # fmt: skip


@given(
    shape=st.lists(st.sampled_from((1, 2, 4)), min_size=1, max_size=3).map(tuple),
    count=st.integers(2, 3),
    num_cores=st.sampled_from((1, 2, 4)),
    scope=st.sampled_from((BufferScope.LB, BufferScope.GB)),
    data=st.data(),
)
def test_free_means_that_the_pieces_lie_as_the_whole_does(
    shape: tuple[int, ...], count: int, num_cores: int, scope: BufferScope, data: st.DataObject
) -> None:
    """Against addresses: row-major pieces one behind the other, per memory."""
    cut = data.draw(st.integers(0, len(shape) - 1))
    whole = tuple(e * count if d == cut else e for d, e in enumerate(shape))
    binding = plain(shape, num_cores)
    in_memory = binding if scope is BufferScope.LB else ()
    pieces = slices(in_memory, shape)
    same = True
    for core, wholes in enumerate(slices(in_memory, whole)):
        expected = list(product(*wholes))
        laid = [
            tuple(i + number * shape[cut] if d == cut else i for d, i in enumerate(point))
            for number in range(count)
            for point in product(*pieces[core])
        ]
        same = same and laid == expected
    held = Held(scope, binding)
    assert is_zero_copy(whole, cut, held, [held] * count) == same


@st.composite
def stages(draw: st.DrawFn) -> tuple[InstanceGraph, list[Bindable], list[Edge], list[int | None]]:
    """Stages of a chain, each with half as many instances as the one before or as many."""
    counts = [2 ** draw(st.integers(1, 3))]
    while counts[-1] > 1 and len(counts) < 4:
        counts.append(counts[-1] // draw(st.sampled_from((1, 2))))
    rank = draw(st.integers(2, 3))
    samples = 8
    inner = [draw(st.lists(st.sampled_from((4, 7, 8)), min_size=rank, max_size=rank)) for _ in
             counts]  # fmt: skip
    nodes = [Instance(g, k) for g, count in enumerate(counts) for k in range(count)]
    at = {node: k for k, node in enumerate(nodes)}
    parts = [Bindable((samples // counts[n.group], *inner[n.group])) for n in nodes]
    edges = []
    for node in nodes:
        if node.group:
            ratio = counts[node.group - 1] // counts[node.group]
            edges += [
                Edge(
                    at[Instance(node.group - 1, node.number * ratio + k)],
                    at[node],
                    tuple(range(rank + 1)),
                )
                for k in range(ratio)
            ]
    producers = tuple(
        tuple(e.producer for e in edges if e.consumer == k) for k in range(len(nodes))
    )
    graph = InstanceGraph(
        tuple(nodes), producers, tuple(prod(p.shape) for p in parts), (1,) * len(nodes)
    )
    return graph, parts, edges, [0 if count > 1 else None for count in counts]


@given(case=stages(), further=st.booleans(), tie=st.booleans())
def test_movements_of_stages(
    case: tuple[InstanceGraph, list[Bindable], list[Edge], list[int | None]],
    further: bool,
    tie: bool,
) -> None:
    graph, parts, edges, cuts = case
    order = range(len(parts))
    found = bind(parts, edges, order, 8, propagate_inferred=further, keep_on_tie=tie)
    moves = insert_movements(graph, order, parts, edges, found, cuts)
    # instances of a group are alike: one kernel serves them all
    for first in range(len(parts)):
        same = [k for k in order if graph.instances[k].group == graph.instances[first].group]
        assert len({(found.bind[k], found.scope[k]) for k in same}) == 1
    concats = [m for m in moves if m.kind is MovementKind.CONCAT]
    readers = [k for k in order if len(graph.producers[k]) > 1]
    assert [m.consumers for m in concats] == [(k,) for k in readers]
    assert [m.producers for m in concats] == [graph.producers[k] for k in readers]
    moved = {(m.producers[0], m.consumers[0]) for m in moves if m.kind is not MovementKind.CONCAT}
    assert moved == {
        (e.producer, e.consumer)
        for e in edges
        if not is_local(found.bind[e.consumer], e, found.bind[e.producer])
    }
    for concat in concats:
        parts_bytes = sum(graph.output_bytes[j] for j in concat.producers)
        assert concat.payload_bytes == parts_bytes
        assert concat.moved_bytes in (0, parts_bytes)
        assert (concat.moved_bytes == 0) == (concat.reason is None)
    sums = totals(moves)
    assert sum(t.count for t in sums) == len(moves)
    assert sum(t.moved_bytes for t in sums) == sum(m.moved_bytes for m in moves)
    assert sum(t.num_free for t in sums) == sum(m.moved_bytes == 0 for m in moves)


@given(
    size=st.integers(4, 24),
    kernel=st.sampled_from((1, 3)),
    stride=st.integers(1, 2),
    is_padded=st.booleans(),
    factor=st.sampled_from((2, 4)),
)
def test_matching_dimensions_are_cut_alike(
    size: int, kernel: int, stride: int, is_padded: bool, factor: int
) -> None:
    """Enumerated: the rows a slice reads are the producer's slice, give or take the window."""
    pad = kernel // 2 if is_padded else 0
    graph = conv(2, 1, 1, size, kernel, stride, pad)
    ops = tuple(op for op in graph.ops if isinstance(op, TensorOp))
    dims = dims_between(ops, "X", "Y", graph.tensors)
    assert dims[:2] == (0, None)
    rows = graph.tensors["Y"].shape[2]
    if dims[2] is None or rows % factor or size % factor:
        return
    assert dims[2] == 2
    for k in range(factor):
        reads = [
            y * stride + w - pad
            for y in range(k * rows // factor, (k + 1) * rows // factor)
            for w in range(kernel)
        ]
        low, high = k * size // factor, (k + 1) * size // factor - 1
        slack = max(kernel, stride) + -(-size // 16)
        assert abs(max(0, min(reads)) - low) <= slack
        assert abs(min(size - 1, max(reads)) - high) <= slack

"""Moves: strided copies between two storages of one tensor.

The box is clipped to the tensor.  With a fill, the part of the box outside the tensor is written in
the destination first.  Dimensions that are contiguous in both storages merge, so most moves are a
few long runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from worker.compiler.codegen.clip import check_inside, clip_box, guard
from worker.compiler.codegen.ctext import Writer, index_text, literal
from worker.compiler.codegen.expr import convert, load, store
from worker.compiler.codegen.storage import Clipped, Enclosing, Storage
from worker.compiler.ir.affine import Affine, Interval
from worker.compiler.ir.op import Tensor
from worker.compiler.schedule.nodes import Move


@dataclass(frozen=True, slots=True)
class _Dim:
    """One loop of a copy; strides in elements."""

    count: str
    static_count: int | None
    src_stride: int
    dst_stride: int


def emit_move(
    writer: Writer,
    move: Move,
    tensor: Tensor,
    src: Storage,
    dst: Storage,
    scope: Enclosing,
    path: str,
) -> None:
    """Write the copy of `move.box` from `src` to `dst`."""
    with writer.block(""):
        ranges = dict(scope.ranges)
        spans = clip_box(writer, move.box, tensor.shape, scope, ranges)
        if move.fill is not None and any(s.static_count is None for s in spans):
            _emit_fill(writer, spans, dst, move.fill, ranges, path)
        condition = guard(spans)
        with ExitStack() as stack:
            if condition:
                stack.enter_context(writer.block(f"if ({condition})"))
            for dim, span in enumerate(spans):
                for storage in (src, dst):
                    check_inside(
                        writer, storage, dim, span.low, span.count, span.extent, path, ranges
                    )
            dims = _merged(
                [
                    _Dim(s.count, s.static_count, src.strides[d], dst.strides[d])
                    for d, s in enumerate(spans)
                ]
            )
            offsets = [
                index_text(_offset([s.low for s in spans], storage), ranges)
                for storage in (src, dst)
            ]
            if src.dtype is dst.dtype:
                _emit_copy(writer, dims, src, dst, offsets)
            else:
                _emit_converting_copy(writer, dims, src, dst, offsets)


def _offset(low: Sequence[Affine], storage: Storage) -> Affine:
    total = Affine()
    for at, start, stride in zip(low, storage.starts, storage.strides, strict=True):
        total = total + (at - start) * stride
    return total


def _merged(dims: Sequence[_Dim]) -> list[_Dim]:
    """Drop unit dimensions and join neighbours that are contiguous in both storages."""
    result: list[_Dim] = []
    for dim in dims:
        if dim.static_count == 1:
            continue
        outer = result[-1] if result else None
        inner = dim.static_count
        if (
            outer is not None
            and inner is not None
            and outer.src_stride == inner * dim.src_stride
            and outer.dst_stride == inner * dim.dst_stride
        ):
            static = None if outer.static_count is None else outer.static_count * inner
            count = str(static) if static is not None else f"{outer.count} * {inner}"
            result[-1] = _Dim(count, static, dim.src_stride, dim.dst_stride)
        else:
            result.append(dim)
    return result


def _emit_fill(
    writer: Writer,
    spans: Sequence[Clipped],
    dst: Storage,
    fill: float | int,
    ranges: dict[str, Interval],
    path: str,
) -> None:
    """Write `fill` over the whole unclipped box whenever some of it lies outside the tensor."""
    partial = " || ".join(f"{s.count} < {s.extent}" for s in spans if s.static_count is None)
    with writer.block(f"if ({partial})"):
        for dim, span in enumerate(spans):
            check_inside(writer, dst, dim, span.start, str(span.extent), span.extent, path, ranges)
        base = index_text(_offset([s.start for s in spans], dst), ranges)
        writer.line(
            f"{dst.element_type} *restrict to = ({dst.element_type} *){dst.pointer} + {base};"
        )
        element = store(literal(fill, dst.dtype), dst.dtype, dst.dtype)
        with ExitStack() as stack:
            terms = ["0"]
            for span, stride in zip(spans, dst.strides, strict=True):
                if span.extent == 1:
                    continue
                name = writer.fresh("f")
                stack.enter_context(writer.loop(name, str(span.extent)))
                terms.append(f"{stride} * {name}")
            writer.line(f"to[{' + '.join(terms)}] = {element};")


def _emit_copy(
    writer: Writer, dims: list[_Dim], src: Storage, dst: Storage, offsets: Sequence[str]
) -> None:
    size = src.dtype.size_bytes
    run = ""
    if dims and dims[-1].src_stride == 1 and dims[-1].dst_stride == 1:
        last = dims.pop()
        run = str(last.static_count * size) if last.static_count else f"{last.count} * {size}"
    outer, inner = dims[:-3], dims[-3:]
    with ExitStack() as stack:
        from_terms, to_terms = [offsets[0]], [offsets[1]]
        for dim in outer:
            name = writer.fresh("c")
            stack.enter_context(writer.loop(name, dim.count))
            from_terms.append(f"{dim.src_stride} * {name}")
            to_terms.append(f"{dim.dst_stride} * {name}")
        padded = [_Dim("1", 1, 0, 0)] * (3 - len(inner)) + inner
        counts = ", ".join(d.count for d in padded)
        to_strides = ", ".join(str(d.dst_stride * size) for d in padded)
        from_strides = ", ".join(str(d.src_stride * size) for d in padded)
        transfer = "tw_dma_3d" if run else f"tw_dma_elements_{size}"
        writer.line(
            f"{transfer}({dst.pointer} + {size} * ({' + '.join(to_terms)}),"
            f" {src.pointer} + {size} * ({' + '.join(from_terms)}),"
            f" {counts}, {f'{run}, ' if run else ''}{to_strides}, {from_strides});"
        )


def _emit_converting_copy(
    writer: Writer, dims: list[_Dim], src: Storage, dst: Storage, offsets: Sequence[str]
) -> None:
    writer.line(
        f"const {src.element_type} *restrict from ="
        f" (const {src.element_type} *){src.pointer} + {offsets[0]};"
    )
    writer.line(
        f"{dst.element_type} *restrict to = ({dst.element_type} *){dst.pointer} + {offsets[1]};"
    )
    with ExitStack() as stack:
        from_terms, to_terms = ["0"], ["0"]
        for dim in dims:
            name = writer.fresh("c")
            stack.enter_context(writer.loop(name, dim.count))
            from_terms.append(f"{dim.src_stride} * {name}")
            to_terms.append(f"{dim.dst_stride} * {name}")
        value = load(f"from[{' + '.join(from_terms)}]", src.dtype)
        if src.dtype.is_float and dst.dtype.is_float:
            element = store(value, src.dtype, dst.dtype)
        else:
            element = store(convert(value, src.dtype, dst.dtype), dst.dtype, dst.dtype)
        writer.line(f"to[{' + '.join(to_terms)}] = {element};")

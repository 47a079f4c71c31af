"""Clipping boxes to their tensors or domains, and checking them against buffers.

What can be proved from the ranges of the loop variables costs nothing at run time; the rest becomes
one comparison per dimension and instruction, never per element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worker.compiler.codegen.ctext import Writer, bounds, index_text
from worker.compiler.codegen.storage import Clipped, Enclosing, Storage
from worker.compiler.ir.affine import Affine, FloorDiv, Interval, Lookup, Mod, Var, var
from worker.compiler.schedule.nodes import Box


def clip_box(
    writer: Writer, box: Box, limits: Sequence[int], scope: Enclosing, ranges: dict[str, Interval]
) -> tuple[Clipped, ...]:
    """Declare the clipped first coordinate and count of every span; `ranges` learns their names."""
    result: list[Clipped] = []
    for span, limit in zip(box, limits, strict=True):
        start = scope.box_start(span.start)
        low, high = bounds(start, ranges) or (-(1 << 40), 1 << 40)
        first = start
        if low < 0:
            name = writer.fresh("lo")
            writer.line(f"const int64_t {name} = tw_max_index({index_text(start, ranges)}, 0);")
            writer.line(f"(void){name};")
            ranges[name] = (0, max(high, 0))
            first = var(name)
        if low >= 0 and high + span.extent <= limit:
            result.append(Clipped(start, span.extent, first, str(span.extent), span.extent))
            continue
        name = writer.fresh("n")
        end = index_text(start + span.extent, ranges)
        writer.line(
            f"const int64_t {name} = tw_min_index({end}, {limit}) - {index_text(first, ranges)};"
        )
        result.append(Clipped(start, span.extent, first, name, None))
    return tuple(result)


def check_inside(
    writer: Writer,
    storage: Storage,
    dim: int,
    low: Affine,
    count: str,
    extent: int,
    path: str,
    ranges: Mapping[str, Interval],
) -> None:
    """Check that coordinates low .. low+count-1 (at most `extent`) lie in a buffer's dimension."""
    if storage.is_home:
        return
    at = low - storage.starts[dim]
    known = bounds(at, ranges)
    size = storage.extents[dim]
    if known is not None and known[0] >= 0 and known[1] + extent <= size:
        return
    first = index_text(at, ranges)
    fault_unless_inside(writer, storage, dim, first, f"{first} + {count} - 1", path)


def fault_unless_inside(
    writer: Writer, storage: Storage, dim: int, low: str, high: str, path: str
) -> None:
    """The run-time check of one dimension."""
    writer.line(
        f'if (tw_outside(m, "{path}", {storage.buffer}, {low}, {high},'
        f" {storage.extents[dim]})) return;"
    )


def guard(spans: Sequence[Clipped]) -> str:
    """C condition under which the clipped box is not empty; "" when it never is."""
    return " && ".join(f"{s.count} > 0" for s in spans if s.static_count is None)


def hull_text(
    expr: Affine, limits: Mapping[str, tuple[str, str]], ranges: Mapping[str, Interval]
) -> tuple[str, str]:
    """C texts of the least and greatest value of `expr` while the variables in `limits` sweep
    their (low, high); every other variable is a C identifier with one value.  Mirrors
    `Affine.bounds`."""
    fixed = Affine((), expr.const)
    lows: list[str] = []
    highs: list[str] = []
    for atom, coeff in expr.terms:
        match atom:
            case Var(name) if name in limits:
                low, high = limits[name]
            case FloorDiv(arg, divisor) if any(v in limits for v in arg.variables()):
                low, high = (f"tw_floordiv({t}, {divisor})" for t in hull_text(arg, limits, ranges))
            case Mod(arg, divisor) if any(v in limits for v in arg.variables()):
                a, b = hull_text(arg, limits, ranges)
                same = f"(tw_floordiv({a}, {divisor}) == tw_floordiv({b}, {divisor}))"
                low = f"({same} ? tw_mod({a}, {divisor}) : 0)"
                high = f"({same} ? tw_mod({b}, {divisor}) : {divisor - 1})"
            case Lookup():
                raise ValueError("a looked-up index has no hull")
            case _:
                fixed = fixed + Affine(((atom, coeff),), 0)
                continue
        lows.append(f"{coeff} * {low if coeff > 0 else high}")
        highs.append(f"{coeff} * {high if coeff > 0 else low}")
    base = index_text(fixed, ranges)
    return " + ".join([base, *lows]), " + ".join([base, *highs])

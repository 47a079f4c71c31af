"""A nest as a convolution or a matrix product, for peers that know no other operators."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from worker.compiler.export.nest import LoopNest, NoForm, Reason, Roles, Terms


@dataclass(frozen=True, slots=True)
class Window:
    """One direction in which taps slide over the input: input = stride * out + dilation * tap."""

    out: int | None
    """Dimension of the result; None: one position."""
    tap: int | None
    """Dimension of the taps; None: a stride without a window over it."""
    stride: int
    dilation: int


@dataclass(frozen=True, slots=True)
class Convolution:
    """Dimensions of a nest by their part in a convolution; positions in `LoopNest.dims`."""

    samples: tuple[int, ...]
    """In the input and the result, without a window: a batch, or the rows of a matrix product."""
    filters: tuple[int, ...]
    channels: tuple[int, ...]
    groups: tuple[int, ...]
    """In the input, the weights and the result."""
    windows: tuple[Window, ...]
    """As their directions follow each other in the input; at most two."""

    def extent(self, nest: LoopNest, dims: tuple[int, ...]) -> int:
        """Steps of some dimensions together."""
        return prod(nest.dims[d].extent for d in dims)


def convolution(nest: LoopNest) -> Convolution | NoForm:
    """What part each dimension has; a matrix product is a convolution without windows."""
    roles = nest.roles
    if roles is None or len(nest.operands) != 3:
        return NoForm(
            Reason.OPERATOR, f"{nest.op} is no product of two tensors that is summed"
        )  # fmt: skip
    windows: list[Window] = []
    for terms in nest.operands[roles.left].index:
        window = True if _is_grouped(terms, roles) else _window(terms, roles.rows, roles.depth)
        if isinstance(window, Window):
            windows.append(window)
        elif not window:
            return NoForm(
                Reason.INDEX,
                f"{nest.operands[roles.left].tensor} is indexed by more than a position and a tap",
            )
    others = (*nest.operands[roles.right].index, *nest.result.index)
    others = tuple(terms for terms in others if not _is_grouped(terms, roles))
    if any(len(terms) > 1 or any(c != 1 for _, c in terms) for terms in others):
        return NoForm(Reason.INDEX, "weights or results are indexed by a sum of dimensions")
    if len(windows) > 2:
        return NoForm(Reason.OPERATOR, f"{len(windows)} directions of windows; the peer has two")
    used = {d for w in windows for d in (w.out, w.tap)}
    return Convolution(
        tuple(d for d in roles.rows if d not in used),
        roles.columns,
        tuple(d for d in roles.depth if d not in used),
        roles.batch,
        tuple(windows),
    )


def _is_grouped(terms: Terms, roles: Roles) -> bool:
    """Whether an index counts channels or filters group by group."""
    return len(terms) == 2 and any(d in roles.batch for d, _ in terms)


def _window(terms: Terms, rows: tuple[int, ...], depth: tuple[int, ...]) -> Window | bool:
    """The window that an index describes; True where it is a plain dimension or fixed."""
    match terms:
        case () | ((_, 1),):
            return True
        case ((d, stride),) if d in rows:
            return Window(d, None, stride, 1)
        case ((d, dilation),) if d in depth:
            return Window(None, d, 1, dilation)
        case ((a, s), (b, t)) if a in rows and b in depth:
            return Window(a, b, s, t)
        case ((a, s), (b, t)) if b in rows and a in depth:
            return Window(b, a, t, s)
        case _:
            return False

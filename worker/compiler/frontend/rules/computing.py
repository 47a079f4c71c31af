"""Rules of what computes: products, sums, reductions, normalisations, losses, attention."""

from __future__ import annotations

from collections.abc import Iterator

from worker.compiler.frontend.rules.kinds import (
    at_least,
    axes,
    axis,
    broadcasts_to,
    one_of,
    positive,
    rank_at_least,
    rank_is,
    same_dim,
    single,
)
from worker.compiler.frontend.rules.site import Problem, Rule, Site


def _per_channel(*inputs: int) -> Rule:
    """One number per channel of the first input, in each of these."""

    def check(site: Site) -> Iterator[Problem]:
        dims = site.dims(0)
        channels = dims[1] if dims is not None and len(dims) > 1 else None
        for index in inputs:
            given = site.shape(index)
            if given is not None and channels is not None and given != (channels,):
                yield Problem(
                    f"input {index} has shape {list(given)} for {channels} channels",
                    [channels], list(given),
                )  # fmt: skip
                return

    return check


def _normalised(site: Site) -> Iterator[Problem]:
    """Scale and bias broadcast to the dimensions from the axis on."""
    dims, where = site.shape(0), site.attr("axis")
    if dims is None or where is None or not -len(dims) <= where < len(dims):
        return
    for index in (1, 2):
        given = site.shape(index)
        if given is None:
            continue
        fits = len(given) <= len(dims) and all(
            a in (1, b) for a, b in zip(reversed(given), reversed(dims), strict=False)
        )
        if not fits:
            yield Problem(f"input {index} has shape {list(given)}", list(dims[where:]),
                          list(given))  # fmt: skip
            return


def _groups(site: Site) -> Iterator[Problem]:
    """Groups divide the channels; scale and bias are per channel (per group before opset 21)."""
    dims, groups = site.dims(0), site.attr("num_groups")
    channels = dims[1] if dims is not None and len(dims) > 1 else None
    if channels is None or not groups or groups < 1:
        return
    if channels % groups:
        yield Problem(f"'num_groups' {groups} does not divide {channels} channels",
                      f"a divisor of {channels}", groups)  # fmt: skip
        return
    want = channels if site.version >= 21 else groups
    for name in ("scale", "bias"):
        given = site.shape(name)
        if given is not None and given != (want,):
            yield Problem(f"{name!r} has shape {list(given)}", [want], list(given))
            return


def _band(site: Site) -> Iterator[Problem]:
    """Frequencies that rise from zero and lie in the spectrum of `dft_length` at the rate."""
    names = ("lower_edge_hertz", "upper_edge_hertz", "sample_rate", "dft_length")
    found = [site.const(name) for name in names]
    numbers = [float(a.reshape(-1)[0]) for a in found if a is not None and a.size == 1]
    if len(numbers) != len(found):
        return
    low, high, rate, length = numbers
    if not 0 <= low < high:
        yield Problem(f"the band is {low:g} to {high:g}", "0 or more, rising", f"{low:g}")
    elif rate > 0 and (length + 1) * high // rate > length // 2:
        yield Problem(f"'upper_edge_hertz' is {high:g}, the spectrum ends at {rate / 2:g}",
                      f"at most {rate / 2:g}", f"{high:g}")  # fmt: skip


def _einsum(site: Site) -> Iterator[Problem]:
    """One term per input, letters and one ellipsis in each, results only of letters given."""
    text = str(site.attr("equation") or "").replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(site.node.inputs):
        yield Problem(f"'equation' has {len(terms)} terms for {len(site.node.inputs)} inputs",
                      len(site.node.inputs), len(terms))  # fmt: skip
        return
    for term in [*terms, *([right] if arrow else [])]:
        letters = term.replace("...", "", 1)
        if not all(c.isascii() and c.isalpha() for c in letters):
            yield Problem(f"'equation' has the term {term!r}", "letters and one ellipsis", term)
            return
    result = right.replace("...", "", 1)
    if len(set(result)) != len(result) or not set(result) <= set(left):
        yield Problem(f"'equation' has the result {right!r}", "letters of the inputs, each once",
                      right)  # fmt: skip
        return
    yield from _einsum_sizes(site, terms)


def _einsum_sizes(site: Site, terms: list[str]) -> Iterator[Problem]:
    sizes: dict[str, int] = {}
    for index, term in enumerate(terms):
        dims = site.dims(index)
        if dims is None:
            continue
        head, dots, tail = term.partition("...")
        count = len(head) + len(tail)
        if len(dims) < count or (not dots and len(dims) != count):
            yield Problem(f"the term {term!r} is for {count} dimensions, input {index} has"
                          f" {len(dims)}", count, len(dims))  # fmt: skip
            return
        named = [*zip(head, dims[: len(head)], strict=True)]
        named += zip(tail, dims[len(dims) - len(tail) :], strict=True)
        for letter, size in named:
            if size is None:
                continue
            before = sizes.setdefault(letter, size)
            if before != size and 1 not in (before, size):
                yield Problem(f"'equation' gives {letter!r} the sizes {before} and {size}", before,
                              size)  # fmt: skip
                return
            sizes[letter] = max(before, size)


def _addend(site: Site) -> Iterator[Problem]:
    """The third input of a Gemm broadcasts to the product, and not the other way round."""
    a, b, c = site.shape(0), site.shape(1), site.shape(2)
    if a is None or b is None or c is None or not len(a) == len(b) == 2:
        return
    made = (a[1 if site.attr("transA") else 0], b[0 if site.attr("transB") else 1])
    fits = len(c) <= 2 and all(
        have in (1, want) for have, want in zip(reversed(c), reversed(made), strict=False)
    )
    if not fits:
        yield Problem(f"the third input has shape {list(c)}", list(made), list(c))


def _divisor(site: Site) -> Iterator[Problem]:
    """Whole numbers have no quotient by zero."""
    array = site.const(1)
    if array is not None and array.dtype.kind in "iu" and array.size and not array.all():
        yield Problem("the divisor has a 0 among whole numbers", "any other number", 0)


_LOSSES = one_of("reduction", "none", "mean", "sum")


def _targets(site: Site) -> Iterator[Problem]:
    """Targets are shaped like the scores without their classes, and name classes or the ignored."""
    dims, given = site.dims(0), site.dims(1)
    if dims is None or given is None:
        return
    want = (*dims[:1], *dims[2:])
    if len(given) != len(want) or any(
        None not in (a, b) and a != b for a, b in zip(given, want, strict=True)
    ):
        yield Problem(f"the targets have shape {list(given)}", list(want), list(given))
        return
    classes = dims[1]
    weights = site.shape(2)
    if weights is not None and classes is not None and weights != (classes,):
        yield Problem(f"the weights have shape {list(weights)}", [classes], list(weights))
    array = site.const(1)
    if array is None or classes is None:
        return
    ignored = site.attr("ignore_index")
    bad = array[((array < 0) | (array >= classes)) & (array != ignored)]
    if bad.size:
        yield Problem(f"a target is {int(bad[0])}", f"0 to {classes - 1}", int(bad[0]))


_REDUCE = (axes(may_be_scalar=False),)
_SOFTMAX = (axis(),)
RULES: dict[str, tuple[Rule, ...]] = {
    **dict.fromkeys(
        ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
         "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
        _REDUCE,
    ),
    "MeanVarianceNormalization": (axes(),),
    "Softmax": _SOFTMAX, "LogSoftmax": _SOFTMAX, "Hardmax": _SOFTMAX,
    "LpNormalization": (axis(), one_of("p", 1, 2)),
    "LayerNormalization": (axis(), _normalised),
    "RMSNormalization": (axis(), _normalised),
    "BatchNormalization": (_per_channel(1, 2, 3, 4),),
    "InstanceNormalization": (rank_at_least(0, 3), _per_channel(1, 2)),
    "LRN": (at_least("size", 1), rank_at_least(0, 3)),
    "GroupNormalization": (at_least("num_groups", 1), _groups),
    "PRelu": (broadcasts_to(1),),
    "MelWeightMatrix": (
        single("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz",
               "upper_edge_hertz"),
        positive("num_mel_bins", "dft_length", "sample_rate"), _band,
    ),
    "Einsum": (_einsum,),
    "Gelu": (one_of("approximate", "none", "tanh"),),
    "BitShift": (one_of("direction", "LEFT", "RIGHT"),),
    "Gemm": (rank_is(0, 2), rank_is(1, 2), _addend),
    "Det": (rank_at_least(0, 2), same_dim(0, -1, 0, -2)),
    "NegativeLogLikelihoodLoss": (_LOSSES, _targets),
    "SoftmaxCrossEntropyLoss": (_LOSSES, _targets),
    "StringNormalizer": (one_of("case_change_action", "NONE", "LOWER", "UPPER"),),
    "Mod": (one_of("fmod", 0, 1), _divisor),
    "Div": (_divisor,),
    "Cast": (one_of("round_mode", "up", "down", "nearest"),),
    "CastLike": (one_of("round_mode", "up", "down", "nearest"),),
}  # fmt: skip

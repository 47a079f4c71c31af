"""Rules of what moves elements without computing: reshapes, slices, pads, joins."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from worker.compiler.frontend.rules.kinds import at_least, axes, axis, one_of
from worker.compiler.frontend.rules.site import Problem, Rule, Site


def _reshape(site: Site) -> Iterator[Problem]:
    target, shape = site.ints("shape"), site.dims(0)
    if target is None:
        return
    given = site.rank("shape")
    if given is not None and given != 1:
        yield Problem(f"'shape' has {given} dimensions", "a list", given)
        return
    keeps_zero = bool(site.attr("allowzero"))
    bad = [v for v in target if v < -1]
    if bad:
        yield Problem(f"'shape' has {bad[0]}", "at least -1", bad[0])
        return
    if target.count(-1) > 1:
        yield Problem("'shape' has -1 more than once", 1, target.count(-1))
        return
    if keeps_zero and 0 in target and -1 in target:
        yield Problem("'shape' has both 0 and -1 while 'allowzero' is set", "one of them",
                      list(target))  # fmt: skip
        return
    if shape is None:
        return
    if not keeps_zero:
        copied = [k for k, v in enumerate(target) if v == 0]
        if copied and copied[-1] >= len(shape):
            yield Problem(
                f"'shape' copies dimension {copied[-1]}, its input has {len(shape)}",
                f"0 in the first {len(shape)} places", list(target),
            )  # fmt: skip
            return
    known = site.shape(0)
    if known is None:
        return
    sizes = [known[k] if v == 0 and not keeps_zero else v for k, v in enumerate(target)]
    have, want = prod(known), prod(v for v in sizes if v != -1)
    fits = have == want if -1 not in sizes else want > 0 and have % want == 0
    if not fits and not (have == 0 and want == 0):
        yield Problem(
            f"'shape' {list(target)} is for a multiple of {want} elements, the input has {have}"
            if -1 in sizes
            else f"'shape' {list(target)} is for {want} elements, the input has {have}",
            have, want,
        )  # fmt: skip


def _slice(site: Site) -> Iterator[Problem]:
    lists = {name: site.ints(name) for name in ("starts", "ends", "axes", "steps")}
    lengths = {name: len(v) for name, v in lists.items() if v is not None}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{count} {name}" for name, count in lengths.items())
        yield Problem(f"the lists have different lengths: {said}", "equal lengths", said)
    rank = site.rank(0)
    if lists["axes"] is None and rank is not None and lengths.get("starts", 0) > rank:
        yield Problem(f"'starts' has {lengths['starts']} entries for {rank} dimensions", rank,
                      lengths["starts"])  # fmt: skip
    for name in ("starts", "ends", "axes", "steps"):
        given = site.rank(name) if site.place(name) is not None else None
        if given is not None and given != 1:
            yield Problem(f"{name!r} has {given} dimensions", "a list", given)
    if 0 in (lists["steps"] or ()):
        yield Problem("'steps' has 0", "any other number", 0)


def _squeezed(site: Site) -> Iterator[Problem]:
    dims, axes_given = site.dims(0), site.ints("axes")
    if dims is None or axes_given is None:
        return
    for value in axes_given:
        if -len(dims) <= value < len(dims) and dims[value] not in (1, None):
            yield Problem(f"dimension {value} is {dims[value]}, not 1", 1, dims[value])
            return


def _permutation(site: Site) -> Iterator[Problem]:
    perm, rank = site.attr("perm"), site.rank(0)
    if perm is None:
        return
    count = len(perm) if rank is None else rank
    if sorted(perm) != list(range(count)):
        yield Problem(
            f"'perm' {list(perm)} is no permutation of {count} dimensions",
            list(range(count)), list(perm),
        )  # fmt: skip


def _pad(site: Site) -> Iterator[Problem]:
    pads, rank = site.ints("pads"), site.rank(0)
    if pads is None:
        return
    given = site.rank("pads") if site.place("pads") is not None else None
    if given is not None and given != 1 and not (given == 2 and site.version < 13):
        yield Problem(f"'pads' has {given} dimensions", "a list", given)
        return
    named = site.ints("axes") if site.value("axes") is not None else None
    if site.value("axes") is not None and named is None:
        return
    count = len(named) if named is not None else rank
    if count is None:
        return
    if len(pads) != 2 * count:
        yield Problem(f"'pads' has {len(pads)} entries for {count} dimensions, two each",
                      2 * count, len(pads))  # fmt: skip
        return
    dims = site.dims(0)
    places = list(named) if named is not None else list(range(count))
    if dims is None or any(not -len(dims) <= p < len(dims) for p in places):
        return
    mode = site.attr("mode")
    for k, place in enumerate(places):
        size = dims[place]
        if size is None:
            continue
        before, after = pads[k], pads[count + k]
        if size + before + after < 0 or min(before, after) < -size:
            yield Problem(f"'pads' takes {-before} and {-after} of {size} elements", size,
                          [before, after])  # fmt: skip
            return
        most = {"reflect": max(size - 1, 0), "constant": None}.get(mode, None if size else 0)
        if most is not None and max(before, after) > most:
            yield Problem(
                f"'pads' has {max(before, after)} in mode {mode!r} along a dimension of {size}",
                f"at most {most}", max(before, after),
            )  # fmt: skip
            return


def _concat(site: Site) -> Iterator[Problem]:
    places = [k for k in range(len(site.node.inputs)) if site.dims(k) is not None]
    if len(places) < 2:
        return
    first = site.dims(places[0]) or ()
    where = site.attr("axis")
    for k in places[1:]:
        dims = site.dims(k) or ()
        if len(dims) != len(first):
            yield Problem(f"input {k} has {len(dims)} dimensions, input {places[0]} {len(first)}",
                          len(first), len(dims))  # fmt: skip
            return
        if where is None or not -len(first) <= where < len(first):
            return
        for d, (a, b) in enumerate(zip(first, dims, strict=True)):
            if d != where % len(first) and None not in (a, b) and a != b:
                yield Problem(f"input {k} has {b} along dimension {d}, input {places[0]} {a}", a, b)
                return


def _split(site: Site) -> Iterator[Problem]:
    sizes, where, dims = site.ints("split"), site.attr("axis"), site.dims(0)
    outputs = len(site.node.outputs)
    given = site.rank("split") if site.place("split") is not None else None
    if given is not None and given != 1:
        yield Problem(f"'split' has {given} dimensions", "a list", given)
        return
    number = site.attr("num_outputs")
    if number is not None and number != outputs:
        yield Problem(f"'num_outputs' is {number}, the node has {outputs} outputs", outputs, number)
        return
    if number is not None and site.value("split") is not None:
        yield Problem("both 'split' and 'num_outputs' are given", "one of them", "both")
    if sizes is None:
        return
    if len(sizes) != outputs:
        yield Problem(f"'split' has {len(sizes)} sizes, the node {outputs} outputs", outputs,
                      len(sizes))  # fmt: skip
        return
    yield from _sizes_fill(sizes, dims, where)


def _sizes_fill(
    sizes: tuple[int, ...], dims: tuple[int | None, ...] | None, where: int | None
) -> Iterator[Problem]:
    if min(sizes, default=0) < 0:
        yield Problem(f"'split' has {min(sizes)}", "at least 0", min(sizes))
    elif dims is not None and where is not None and -len(dims) <= where < len(dims):
        whole = dims[where]
        if whole is not None and sum(sizes) != whole:
            yield Problem(f"the parts of 'split' add up to {sum(sizes)} of {whole}", whole,
                          sum(sizes))  # fmt: skip


def _split_to_sequence(site: Site) -> Iterator[Problem]:
    sizes, where, dims = site.ints("split"), site.attr("axis"), site.dims(0)
    given = site.rank("split")
    if given is not None and given > 1:
        yield Problem(f"'split' has {given} dimensions", "a number or a list", given)
    elif sizes is not None and given == 0:
        if sizes[0] <= 0:
            yield Problem(f"'split' is {sizes[0]}", "at least 1", sizes[0])
    elif sizes is not None:
        yield from _sizes_fill(sizes, dims, where)


def _expand(site: Site) -> Iterator[Problem]:
    target, dims = site.ints("shape"), site.dims(0)
    if target is None:
        return
    given = site.rank("shape")
    if given is not None and given != 1:
        yield Problem(f"'shape' has {given} dimensions", "a list", given)
        return
    bad = [v for v in target if v < 0]
    if bad:
        yield Problem(f"'shape' has {bad[0]}", "at least 0", bad[0])
        return
    for a, b in zip(reversed(dims or ()), reversed(target), strict=False):
        if a is not None and 1 not in (a, b) and a != b:
            yield Problem(f"'shape' has {b} where the input has {a}", f"1 or {a}", b)
            return


def _tile(site: Site) -> Iterator[Problem]:
    repeats, rank = site.ints("repeats"), site.rank(0)
    given = site.rank("repeats")
    if given is not None and given != 1:
        yield Problem(f"'repeats' has {given} dimensions", "a list", given)
    elif repeats is not None and rank is not None and len(repeats) != rank:
        yield Problem(f"'repeats' has {len(repeats)} entries for {rank} dimensions", rank,
                      len(repeats))  # fmt: skip
    elif min(repeats or (0,)) < 0:
        yield Problem(f"'repeats' has {min(repeats or ())}", "at least 0", min(repeats or ()))


def _dims_list(name: str) -> Rule:
    """A constant that says a shape."""

    def check(site: Site) -> Iterator[Problem]:
        given, values = site.rank(name), site.ints(name)
        if given is not None and given != 1:
            yield Problem(f"{name!r} has {given} dimensions", "a list", given)
        elif min(values or (0,)) < 0:
            yield Problem(f"{name!r} has {min(values or ())}", "at least 0", min(values or ()))

    return check


def _blocks(*, packs: bool) -> Rule:
    """Depth to space divides the channels by the block's square, its inverse height and width."""

    def check(site: Site) -> Iterator[Problem]:
        block, dims = site.attr("blocksize"), site.dims(0)
        if block is None or block < 1:
            yield Problem(f"'blocksize' is {block}", "at least 1", block)
            return
        if dims is None or len(dims) < 4:
            if dims is not None:
                yield Problem(f"the input has {len(dims)} dimensions", 4, len(dims))
            return
        spatial = tuple(range(2, len(dims)))
        for d in spatial if packs else (1,):
            size, unit = dims[d], block if packs else block ** len(spatial)
            if size is not None and size % unit:
                yield Problem(
                    f"'blocksize' {block} does not divide dimension {d} of {size}",
                    f"a multiple of {unit}", size,
                )  # fmt: skip
                return

    return check


def _crop_pad(site: Site) -> Iterator[Problem]:
    target, rank, named = site.ints("shape"), site.rank(0), site.attr("axes")
    count = rank if named is None else len(named)
    if target is not None and count is not None and len(target) != count:
        yield Problem(f"'shape' has {len(target)} entries for {count} dimensions", count,
                      len(target))  # fmt: skip


_PAD_MODES = ("constant", "reflect", "edge")
RULES: dict[str, tuple[Rule, ...]] = {
    "Reshape": (_reshape,),
    "Flatten": (axis(more=1, low=None),),
    "Slice": (_slice, axes()),
    "Squeeze": (axes(may_be_scalar=False), _squeezed),
    "Unsqueeze": (axes(grows=True),),
    "Transpose": (_permutation,),
    "Pad": (one_of("mode", *_PAD_MODES, "wrap"), _pad, axes()),
    "Concat": (axis(), _concat),
    "Split": (axis(), at_least("num_outputs", 1), _split),
    "SplitToSequence": (axis(), _split_to_sequence),
    "Expand": (_expand,),
    "Tile": (_tile,),
    "ConstantOfShape": (_dims_list("input"),),
    "DepthToSpace": (one_of("mode", "DCR", "CRD"), _blocks(packs=False)),
    "SpaceToDepth": (one_of("mode", "DCR", "CRD"), _blocks(packs=True)),
    "CenterCropPad": (axes(), _dims_list("shape"), _crop_pad),
}

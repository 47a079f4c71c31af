"""Rules of what addresses by constants: gathers, scatters, one-hot, top-k, scans along an axis."""

from __future__ import annotations

from collections.abc import Iterator

from worker.compiler.frontend.rules.kinds import (
    alike,
    at_least,
    axis,
    dim_at_axis,
    in_range,
    one_of,
    rank_at_least,
    rank_is,
    same_dim,
    single,
)
from worker.compiler.frontend.rules.sequences import position
from worker.compiler.frontend.rules.site import Problem, Rule, Site

_REDUCTIONS = ("none", "add", "mul", "max", "min")


def _same_rank(indices: int) -> Rule:
    """Data and indices have the same rank; off the axis, indices stay inside the data."""

    def check(site: Site) -> Iterator[Problem]:
        data, given, where = site.dims(0), site.dims(indices), site.attr("axis")
        if data is None or given is None:
            return
        if len(data) != len(given):
            yield Problem(f"the indices have {len(given)} dimensions, the data {len(data)}",
                          len(data), len(given))  # fmt: skip
            return
        for d, (have, want) in enumerate(zip(data, given, strict=True)):
            is_axis = where is not None and d == where % max(len(data), 1)
            if not is_axis and have is not None and want is not None and want > have:
                yield Problem(
                    f"the indices have {want} along dimension {d}, the data {have}",
                    f"at most {have}", want,
                )  # fmt: skip
                return

    return check


def _updates_like_indices(site: Site) -> Iterator[Problem]:
    given, updates = site.dims(1), site.dims(2)
    if given is not None and updates is not None and not alike(given, updates):
        yield Problem(f"the updates have shape {list(updates)}, the indices {list(given)}",
                      list(given), list(updates))  # fmt: skip


def _tuples(*, scatters: bool) -> Rule:
    """GatherND and ScatterND: the last dimension of the indices addresses leading dimensions."""

    def check(site: Site) -> Iterator[Problem]:
        data, given = site.dims(0), site.dims(1)
        batch = 0 if scatters else int(site.attr("batch_dims") or 0)
        if data is None or given is None:
            return
        if not data or not given:
            yield Problem("data and indices need a dimension", "at least 1", 0)
            return
        if not 0 <= batch < min(len(data), len(given)):
            yield Problem(f"'batch_dims' is {batch}", f"0 to {min(len(data), len(given)) - 1}",
                          batch)  # fmt: skip
            return
        if not alike(data[:batch], given[:batch]):
            yield Problem(
                f"data and indices differ in their first {batch} dimensions",
                list(data[:batch]), list(given[:batch]),
            )  # fmt: skip
            return
        depth = given[-1]
        if depth is None:
            return
        if not 1 <= depth <= len(data) - batch:
            yield Problem(f"the indices address {depth} of {len(data) - batch} dimensions",
                          f"1 to {len(data) - batch}", depth)  # fmt: skip
            return
        updates = site.dims(2) if scatters else None
        want = (*given[:-1], *data[depth:])
        if updates is not None and not alike(updates, want):
            yield Problem(f"the updates have shape {list(updates)}", list(want), list(updates))
            return
        array = site.const(1)
        if array is None or not array.size or array.dtype.kind not in "iu":
            return
        for k in range(depth):
            size, column = data[batch + k], array[..., k]
            if size is None:
                continue
            for value in (int(column.min()), int(column.max())):
                if not -size <= value < size:
                    yield Problem(
                        f"the indices have {value} for dimension {batch + k} of {size}",
                        f"{-size} to {size - 1}", value,
                    )  # fmt: skip
                    return

    return check


def _top_k(site: Site) -> Iterator[Problem]:
    values, whole = site.ints("K" if site.place("K") is not None else "k"), dim_at_axis()(site)
    if not values:
        return
    if values[0] < 0 or (whole is not None and values[0] > whole):
        top = "" if whole is None else f" to {whole}"
        yield Problem(f"'k' is {values[0]}", f"0{top}", values[0])


def _depth(site: Site) -> Iterator[Problem]:
    array = site.const("depth")
    if array is not None and array.size == 1 and float(array.reshape(-1)[0]) < 1:
        yield Problem("'depth' is below 1", "at least 1", float(array.reshape(-1)[0]))
    shape = site.shape("values")
    if shape is not None and shape != (2,):
        yield Problem(f"'values' has shape {list(shape)}", [2], list(shape))


def _one_axis(name: str) -> Rule:
    """A constant that names one dimension of the data."""

    def check(site: Site) -> Iterator[Problem]:
        shape = site.shape(name)
        if shape is not None and shape not in ((), (1,)):
            yield Problem(f"{name!r} has shape {list(shape)}", "one number", list(shape))

    return check


def _compress(site: Site) -> Iterator[Problem]:
    rank, dims = site.rank(1), site.shape(1)
    whole = dim_at_axis()(site) if site.has("axis") else None
    if rank is not None and rank != 1:
        yield Problem(f"the condition has {rank} dimensions", 1, rank)
    elif dims is not None and whole is not None and dims[0] > whole:
        yield Problem(f"the condition has {dims[0]} entries for {whole}", f"at most {whole}",
                      dims[0])  # fmt: skip


def _range(site: Site) -> Iterator[Problem]:
    delta = site.const(2)
    if delta is not None and delta.size == 1 and float(delta.reshape(-1)[0]) == 0:
        yield Problem("'delta' is 0", "any other number", 0)


def _reverse(site: Site) -> Iterator[Problem]:
    batch, time, dims = site.attr("batch_axis"), site.attr("time_axis"), site.dims(0)
    if batch == time:
        yield Problem(f"'batch_axis' and 'time_axis' are both {batch}", "two dimensions", batch)
        return
    lens = site.shape(1)
    if dims is None or len(dims) < 2 or {batch, time} != {0, 1}:
        return
    if lens is not None and dims[batch] is not None and lens != (dims[batch],):
        yield Problem(f"'sequence_lens' has shape {list(lens)}", [dims[batch]], list(lens))
    array, most = site.const(1), dims[time]
    if array is None or most is None or not array.size:
        return
    for value in (int(array.min()), int(array.max())):
        if not 0 <= value <= most:
            yield Problem(f"'sequence_lens' has {value}", f"0 to {most}", value)
            return


def _ngrams(site: Site) -> Iterator[Problem]:
    """Lengths in order, counts that cut the pool, and a pool of whole n-grams."""
    low, high = site.attr("min_gram_length") or 0, site.attr("max_gram_length") or 0
    skip = site.attr("max_skip_count") or 0
    counts = site.attr("ngram_counts") or ()
    pool = site.attr("pool_int64s") or site.attr("pool_strings") or ()
    if low < 1:
        yield Problem(f"'min_gram_length' is {low}", "at least 1", low)
    elif high < low:
        yield Problem(f"'max_gram_length' is {high}", f"at least {low}", high)
    elif skip < 0:
        yield Problem(f"'max_skip_count' is {skip}", "at least 0", skip)
    elif len(counts) < high:
        yield Problem(f"'ngram_counts' has {len(counts)} entries for n-grams of {high}", high,
                      len(counts))  # fmt: skip
    else:
        ends = [*counts[1:], len(pool)]
        for size, (start, end) in enumerate(zip(counts, ends, strict=True), 1):
            if not 0 <= start <= end <= len(pool) or (end - start) % size:
                yield Problem(
                    f"'ngram_counts' gives {size}-grams the places {start} to {end} of a pool of"
                    f" {len(pool)}", f"whole {size}-grams", end - start,
                )  # fmt: skip
                return
    kinds = site.attr("ngram_indexes") or ()
    weights = site.attr("weights")
    if weights is not None and len(weights) != len(kinds):
        yield Problem(f"'weights' has {len(weights)} entries for {len(kinds)} n-grams", len(kinds),
                      len(weights))  # fmt: skip
    elif min(kinds, default=0) < 0:
        yield Problem(f"'ngram_indexes' has {min(kinds)}", "at least 0", min(kinds))


def _written(site: Site) -> Iterator[Problem]:
    """Where the update starts: inside the cache, and its end too unless it goes round."""
    array, where = site.const("write_indices"), site.attr("axis")
    cache, update = site.shape(0), site.shape(1)
    if array is None or not array.size or cache is None or update is None:
        return
    if not -len(cache) <= where < len(cache) or len(update) != len(cache):
        return
    most = cache[where] - (update[where] if site.attr("mode") == "linear" else 1)
    for value in (int(array.min()), int(array.max())):
        if not 0 <= value <= most:
            yield Problem(f"'write_indices' has {value}", f"0 to {most}", value)
            return


_ALONG_AXIS = (axis(), rank_at_least(0, 1))
RULES: dict[str, tuple[Rule, ...]] = {
    "Gather": (*_ALONG_AXIS, in_range(1, dim_at_axis())),
    "GatherElements": (*_ALONG_AXIS, _same_rank(1), in_range(1, dim_at_axis())),
    "GatherND": (at_least("batch_dims", 0), _tuples(scatters=False)),
    "ScatterND": (one_of("reduction", *_REDUCTIONS), _tuples(scatters=True)),
    **dict.fromkeys(
        ("Scatter", "ScatterElements"),
        (*_ALONG_AXIS, one_of("reduction", *_REDUCTIONS), _same_rank(1), _updates_like_indices,
         in_range(1, dim_at_axis())),
    ),
    "OneHot": (axis(more=1), single("depth"), _depth),
    "TopK": (*_ALONG_AXIS, single("K"), _top_k),
    "ArgMax": (axis(),),
    "ArgMin": (axis(),),
    **dict.fromkeys(
        ("CumSum", "CumProd"),
        (axis(), _one_axis("axis"), one_of("reverse", 0, 1), one_of("exclusive", 0, 1)),
    ),
    "Compress": (axis(), _compress),
    "Unique": (axis(),),
    "Range": (one_of("stash_type", 1, 11), single("start", "limit", "delta"), _range),
    "ReverseSequence": (
        rank_at_least(0, 2), one_of("batch_axis", 0, 1), one_of("time_axis", 0, 1), _reverse,
    ),
    "Trilu": (rank_at_least(0, 2), single("k")),
    "NonMaxSuppression": (
        one_of("center_point_box", 0, 1), rank_is("boxes", 3), rank_is("scores", 3),
        same_dim("boxes", 0, "scores", 0), same_dim("boxes", 1, "scores", 2),
        single("max_output_boxes_per_class", "iou_threshold", "score_threshold"),
    ),
    "TensorScatter": (one_of("mode", "linear", "circular"), axis(), _written),
    "SequenceInsert": (single("position"), position(inserts=True)),
    "SequenceErase": (single("position"), position()),
    "SequenceAt": (single("position"), position()),
    "TfIdfVectorizer": (one_of("mode", "TF", "IDF", "TFIDF"), _ngrams),
}  # fmt: skip

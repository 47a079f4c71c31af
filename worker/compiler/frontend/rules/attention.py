"""Rules of attention: heads, and the shapes of keys, values, masks and caches."""

from __future__ import annotations

from collections.abc import Iterator

from worker.compiler.frontend.rules.kinds import (
    alike,
    at_least,
    dim_of,
    dims_are,
    in_range,
    one_of,
    rank_is,
    same_dim,
)
from worker.compiler.frontend.rules.site import Problem, Rule, Site

_NUM_HEADS = {"Q": "q_num_heads", "K": "kv_num_heads", "V": "kv_num_heads"}


def _heads(*pairs: tuple[str, int]) -> Rule:
    """Head counts of flat (rank 3) inputs divide their hidden sizes."""

    def check(site: Site) -> Iterator[Problem]:
        for name, index in pairs:
            count, whole = site.attr(name), dim_of(index, 2)(site)
            if site.has(name) and count < 1:
                yield Problem(f"{name!r} is {count}", "at least 1", count)
                return
            if site.rank(index) != 3:
                continue
            if not site.has(name) or (whole is not None and whole % count):
                said = f"is {count}" if site.has(name) else "is missing"
                yield Problem(f"{name!r} {said} for a hidden size of {whole}",
                              f"a divisor of {whole}", count)  # fmt: skip
                return

    return check


def _split(site: Site, name: str) -> tuple[int | None, ...] | None:
    """An input as (batch, heads, length, head size)."""
    dims = site.dims(name)
    if dims is None or len(dims) not in (3, 4):
        return None
    if len(dims) == 4:
        return dims
    count = site.attr(_NUM_HEADS[name])
    if not count or count < 1 or (dims[2] is not None and dims[2] % count):
        return None
    return dims[0], count, dims[1], None if dims[2] is None else dims[2] // count


def _attention(site: Site) -> Iterator[Problem]:
    """Keys and values belong together, queries share their heads, the mask covers the scores."""
    q, k, v = (_split(site, name) for name in ("Q", "K", "V"))
    if q is None or k is None or v is None:
        return
    for name, got, want in (
        ("K", k, (q[0], None, None, q[3])),
        ("V", v, (q[0], k[1], k[2], None)),
    ):
        if not alike(got, want):
            yield Problem(f"{name!r} has (batch, heads, length, size) {list(got)}", list(want),
                          list(got))  # fmt: skip
            return
    for name, count, dims in (("q_num_heads", q[1], q), ("kv_num_heads", k[1], k)):
        if site.has(name) and None not in (count, dims[1]) and site.attr(name) != dims[1]:
            yield Problem(f"{name!r} is {site.attr(name)}, the input has {dims[1]} heads", dims[1],
                          site.attr(name))  # fmt: skip
            return
    if q[1] is not None and k[1] is not None and (k[1] < 1 or q[1] % k[1]):
        yield Problem(f"{q[1]} query heads are not shared by {k[1]} key heads", "a multiple", q[1])
        return
    yield from _caches(site, q, k, v)


def _caches(
    site: Site, q: tuple[int | None, ...], k: tuple[int | None, ...], v: tuple[int | None, ...]
) -> Iterator[Problem]:
    past_key, past_value = site.dims("past_key"), site.dims("past_value")
    for name, dims, like in (("past_key", past_key, k), ("past_value", past_value, v)):
        if dims is not None and not alike(dims, (like[0], like[1], None, like[3])):
            yield Problem(f"{name!r} has shape {list(dims)}",
                          [like[0], like[1], "any", like[3]], list(dims))  # fmt: skip
            return
    if past_key and past_value and not alike(past_key[2:3], past_value[2:3]):
        yield Problem(f"'past_value' holds {past_value[2]} steps, 'past_key' {past_key[2]}",
                      past_key[2], past_value[2])  # fmt: skip
        return
    before = 0 if past_key is None else past_key[2]
    total = None if before is None or k[2] is None else before + k[2]
    if site.value("past_key") is not None and past_key is None:
        total = None
    yield from _mask(site, (q[0], q[1], q[2], total))
    lens = site.dims("nonpad_kv_seqlen")
    if lens is not None and not alike(lens, (q[0],)):
        yield Problem(f"'nonpad_kv_seqlen' has shape {list(lens)}", [q[0]], list(lens))


def _mask(site: Site, scores: tuple[int | None, ...]) -> Iterator[Problem]:
    """A mask broadcasts to the scores; its last dimension may be shorter and is padded."""
    mask = site.dims("attn_mask")
    if mask is None:
        return
    if not 1 <= len(mask) <= 4:
        yield Problem(f"'attn_mask' has {len(mask)} dimensions", "1 to 4", len(mask))
        return
    for place, (have, want) in enumerate(zip(reversed(mask), reversed(scores), strict=False)):
        if have is None or want is None or have in (1, want):
            continue
        if place == 0 and have < want and site.version >= 24:
            continue
        yield Problem(f"'attn_mask' has shape {list(mask)}, the scores {list(scores)}",
                      list(scores), list(mask))  # fmt: skip
        return


RULES: dict[str, tuple[Rule, ...]] = {
    "Attention": (
        rank_is("Q", 3, 4), rank_is("K", 3, 4), rank_is("V", 3, 4),
        _heads(("q_num_heads", 0), ("kv_num_heads", 1), ("kv_num_heads", 2)),
        one_of("qk_matmul_output_mode", 0, 1, 2, 3),
        _attention,
        in_range("nonpad_kv_seqlen", lambda s: None if (n := _length(s)) is None else n + 1, low=0),
    ),
    "RotaryEmbedding": (
        rank_is("X", 3, 4),
        _heads(("num_heads", 0)),
        at_least("rotary_embedding_dim", 0),
        in_range("position_ids", dim_of(1, 0), low=0),
        dims_are("sin_cache", lambda s: s.dims("cos_cache")),
        same_dim("X", 0, "position_ids", 0),
    ),
    "LinearAttention": (
        _heads(("q_num_heads", 0), ("kv_num_heads", 1), ("kv_num_heads", 2)),
        one_of("update_rule", "linear", "gated", "delta", "gated_delta"),
        at_least("chunk_size", 1),
    ),
    "CausalConvWithState": (
        dims_are("bias", lambda s: None if (c := dim_of(0, 1)(s)) is None else (c,)),
    ),
}  # fmt: skip


def _length(site: Site) -> int | None:
    k = _split(site, "K")
    return None if k is None else k[2]

"""The digest of a machine changes with every field but its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY

from worker.compiler.machine import digest, load_machine, load_preset, preset_names
from worker.compiler.machine.build import canonical_document
from worker.compiler.machine.machine import Machine
from worker.compiler.machine.presets import preset_document

PRESETS = st.sampled_from(preset_names())


def variants(value: Any) -> Iterator[Any]:
    """Values that differ from `value` in one leaf: in each leaf, but of what is a list or a mapping
    only its first and last item are looked into."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            for changed in variants(getattr(value, field.name)):
                yield replace(value, **{field.name: changed})
    elif isinstance(value, tuple):
        for k in sorted({0, len(value) - 1} if value else ()):
            for changed in variants(value[k]):
                yield (*value[:k], changed, *value[k + 1 :])
        yield value[:-1] if value else (1,)
    elif isinstance(value, Mapping):
        keys = list(value)
        for key in dict.fromkeys(keys[:1] + keys[-1:]):
            for changed in variants(value[key]):
                yield {**value, key: changed}
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, Enum):
        yield next(member for member in type(value) if member is not value)
    elif isinstance(value, int | float):
        yield value + 1
    elif isinstance(value, str):
        yield value + "x"


@COSTLY
@given(PRESETS)
def test_every_leaf_but_the_name_changes_the_digest(name: str) -> None:
    machine = load_preset(name)
    original = digest(machine)
    seen = {original}
    count = 0
    for changed in variants(machine):
        if changed.name != machine.name:
            assert digest(changed) == original
            continue
        count += 1
        seen.add(digest(changed))
    assert count > 100
    assert len(seen) == count + 1, "two different machines share a digest"


@COSTLY
@given(PRESETS, st.randoms(use_true_random=False))
def test_order_of_keys_and_plain_or_tagged_numbers_do_not_matter(name: str, rng: Any) -> None:
    document = canonical_document(preset_document(name))

    def shuffle(value: Any) -> Any:
        if isinstance(value, dict):
            keys = list(value)
            rng.shuffle(keys)
            return {key: shuffle(value[key]) for key in keys}
        return [shuffle(item) for item in value] if isinstance(value, list) else value

    machine: Machine = load_machine({**shuffle(document), "name": "other"})
    assert digest(replace(machine, guesses=())) == digest(replace(load_preset(name), guesses=()))

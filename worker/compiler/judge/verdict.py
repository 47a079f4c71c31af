"""What an election found, remembered: the second compile makes only the program that won.

The key is everything that decides the election: the model's structure, the machine, the strategies
with versions and options, the objective and its caps, and the versions of what gives figures.
Values of large initializers are not in it, because they decide no schedule; a retrained model is
judged like its predecessor.  An entry only chooses among ways that this compile would try itself,
so a bad one can cost speed and never correctness.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from hashlib import sha256

import msgspec
import onnx_ir

from worker.compiler.cache import Cache, CacheEvent, CacheKey, CacheKind
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.ir.signature import IR_VERSION
from worker.compiler.judge.compiled import Program
from worker.compiler.judge.elect import Election, Way
from worker.compiler.judge.entrants import Entrant
from worker.compiler.judge.figures import Caps
from worker.compiler.lower.lower import LOWER_VERSION
from worker.compiler.options import CompileOptions, Objective
from worker.compiler.partition.plan import RegionRule

JUDGE_VERSION = "3"
"""Changes whenever partitioning, grouping by the judge or the election may end otherwise."""
_SMALL_BYTES = 1 << 16
"""Initializers up to this size count by value: shapes, axes, scales, index tables."""
_LOG = logging.getLogger(__name__)


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    names: tuple[str, ...]
    """Of the strategies that may win units."""
    measure: Objective
    regions: RegionRule
    strategy: str
    programs: tuple[Program, ...]


def model_signature(model: OnnxModel) -> str:
    """Sha256 (hex) of a model's structure and of its small initializers.  Cost: linear in nodes."""
    found = sha256()

    def add(*words: object) -> None:
        found.update(msgspec.json.encode([str(word) for word in words]))

    def add_values(values: Iterable[onnx_ir.Value | None]) -> None:
        for value in values:
            add("value", *(("", "") if value is None else (value.name, value.type, value.shape)))

    graph = model.ir.graph
    add(model.opset)
    add_values((*graph.inputs, *graph.outputs))
    for name, value in graph.initializers.items():
        tensor = value.const_value
        assert tensor is not None, "an initializer has a value"
        add("initializer", name, tensor.dtype, tensor.shape)
        if tensor.dtype == onnx_ir.DataType.STRING:
            continue  # no operator of the algebra reads text
        if tensor.nbytes <= _SMALL_BYTES:
            found.update(tensor.tobytes())
    for node in graph:
        add("node", node.domain, node.op_type, node.name)
        add_values((*node.inputs, *node.outputs))
        for name, attribute in sorted(node.attributes.items()):
            add(name)
            found.update(
                onnx_ir.serde.serialize_attribute(attribute).SerializeToString(deterministic=True)
            )
    return found.hexdigest()


def verdict_key(
    model: OnnxModel,
    source: OnnxModel,
    machine_digest: str,
    entrants: Sequence[Entrant],
    options: CompileOptions,
    simulator: str,
) -> CacheKey:
    """Everything that decides an election, by name.

    `source`: the model before conversion, which the host would run.  `entrants`: all that take
    part, the last resort too; `simulator`: version of what gives figures.
    """
    return CacheKey(
        CacheKind.VERDICT,
        (
            ("model", model_signature(model)),
            ("source", "" if source is model else model_signature(source)),
            ("machine", machine_digest),
            ("strategies", sha256(repr([e.key_fields for e in entrants]).encode()).hexdigest()),
            ("objective", str(options.objective)),
            ("caps", str(Caps.of(options))),
            ("partition", str(options.partition)),
            ("loop_trips", str(options.loop_trips)),
            ("fail_on_fallback", str(options.fail_on_fallback)),
            ("ir_version", IR_VERSION),
            ("lower_version", LOWER_VERSION),
            ("judge_version", JUDGE_VERSION),
            ("simulator", simulator),
            ("without", ",".join(options.without)),
        ),
    )


def recall(
    cache: Cache, key: CacheKey, ways: Sequence[Way], label: str
) -> tuple[Election | None, CacheEvent]:
    """An earlier election among these ways, and the look-up as it is reported."""
    stored, found = cache.get(key), None
    if stored is not None:
        try:
            entry = msgspec.json.decode(stored, type=_Entry)
            same = [way for way in ways if _words(way) == _words(entry)]
            found = Election(same[0], entry.strategy, entry.programs) if same else None
        except msgspec.MsgspecError as error:  # another job wrote it
            _LOG.warning("bad cache entry: %s %s: %s", key.kind, key.digest, error)
    outcome = "miss" if found is None else "hit"
    return found, CacheEvent(str(key.kind), key.digest, outcome, label)


def remember(cache: Cache, key: CacheKey, election: Election) -> None:
    """Keep what an election found."""
    way = election.way
    entry = _Entry(way.names, way.measure, way.regions, election.strategy, election.programs)
    cache.put(key, msgspec.json.encode(entry))


def _words(way: Way | _Entry) -> tuple[tuple[str, ...], Objective, RegionRule]:
    """What tells ways of one compile apart."""
    return way.names, way.measure, way.regions

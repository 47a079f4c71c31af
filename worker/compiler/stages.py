"""The stages of a job as one list, and what runs them in order.

A stage is a function from the context of the job and the values of earlier stages to one value.
What it takes and gives stands in the list, by name; the runner checks the type of every value where
it is made, forgets a value when no later stage takes it, and announces each stage to whoever shows
progress and keeps time.  `Watch` is how a developer looks inside: `--print-after`, `--stop-after`,
`--verify-each`.

Functions and types are named as `module:attribute` and imported when their stage runs, so that the
names alone (settings of limits, the command line) cost no compiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from worker.compiler.errors import OptionError, PassContractError


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a job."""

    name: str
    does: str
    """`module:function` (context, *values of `takes`) -> value."""
    takes: tuple[str, ...]
    """Earlier stages whose values it is given, in this order."""
    gives: str
    """`module:type` of its value."""
    shows: str
    """`module:function` (value) -> text, for `--print-after`."""
    checks: str = ""
    """`module:function` (context, value), for `--verify-each`; raises when the value is wrong."""


COMPILER = (
    Stage(
        "ingest", "worker.compiler.pipeline:ingest", (),
        "worker.compiler.frontend.passes:Ingested", "worker.compiler.assembly.texts:ingested",
        "worker.compiler.assembly.checks:ingested",
    ),
    Stage(
        "simplify", "worker.compiler.pipeline:simplified", ("ingest",),
        "worker.compiler.frontend.model:OnnxModel", "worker.compiler.assembly.texts:model",
        "worker.compiler.assembly.checks:simplified",
    ),
    Stage(
        "convert", "worker.compiler.pipeline:converted", ("simplify",),
        "worker.compiler.quantize.boundary:Converted", "worker.compiler.assembly.texts:converted",
        "worker.compiler.assembly.checks:converted",
    ),
    Stage(
        "partition", "worker.compiler.pipeline:partitioned", ("convert",),
        "worker.compiler.partition.plan:Partitioning", "worker.compiler.assembly.texts:partitioned",
        "worker.compiler.assembly.checks:partitioned",
    ),
    Stage(
        "schedule", "worker.compiler.pipeline:scheduled", ("simplify", "convert", "partition"),
        "worker.compiler.judge.programs:Scheduled", "worker.compiler.assembly.texts:scheduled",
        "worker.compiler.assembly.checks:scheduled",
    ),
    Stage(
        "codegen", "worker.compiler.pipeline:coded", ("ingest", "schedule"),
        "worker.compiler.judge.compiled:CompiledModel", "worker.compiler.assembly.texts:coded",
        "worker.compiler.assembly.checks:coded",
    ),
)  # fmt: skip
"""From a file to a program with kernels."""


class StageSink(Protocol):
    """Hears of stages."""

    def stage(self, name: str, state: str) -> None:
        """`state` is `started` or `finished`."""
        ...


class Shown(Protocol):
    """Keeps what `--print-after` asked for."""

    def __call__(self, stage: str, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Watch:
    """What a developer wants to see of the stages; decides no result."""

    print_after: tuple[str, ...] = ()
    """Stages whose values are printed."""
    stop_after: str = ""
    """The stage after which nothing runs; empty: all run."""
    verify_each: bool = False
    """Whether the value of every stage is checked by rules of its own."""

    @staticmethod
    def of(
        names: Sequence[str],
        print_after: Iterable[str] = (),
        stop_after: str = "",
        verify_each: bool = False,
    ) -> Watch:
        """What was asked for, of stages called `names`.

        Raises:
            OptionError: TW-OPT-001, there is no such stage, or it comes after the last that runs.
        """
        asked = tuple(dict.fromkeys(print_after))
        for option, name in (
            *(("print-after", name) for name in asked),
            *([("stop-after", stop_after)] if stop_after else []),
        ):
            if name not in names:
                raise OptionError(
                    "TW-OPT-001",
                    f"--{option} {name}: there is no such stage",
                    actual=name,
                    remedy=f"The stages are {', '.join(names)}.",
                )
        last = names.index(stop_after) if stop_after else len(names)
        late = [name for name in asked if names.index(name) > last]
        if late:
            raise OptionError(
                "TW-OPT-001",
                f"--print-after {late[0]}: it does not run with --stop-after {stop_after}",
                actual=late[0],
                remedy="Print a stage that runs, or stop later.",
            )
        return Watch(asked, stop_after, verify_each)

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Watch:
        """The inverse of `to_json`."""
        return Watch(
            tuple(document["print_after"]), document["stop_after"], document["verify_each"]
        )

    def to_json(self) -> dict[str, Any]:
        """As `from_json` reads it."""
        return {
            "print_after": list(self.print_after),
            "stop_after": self.stop_after,
            "verify_each": self.verify_each,
        }


UNWATCHED = Watch()


def run_stages(
    stages: Sequence[Stage],
    context: object,
    progress: StageSink,
    watch: Watch = UNWATCHED,
    show: Shown | None = None,
) -> dict[str, Any]:
    """Run `stages` in order; give the values that no later stage took, by stage.

    Args:
        context: first argument of every stage and check.
        show: takes the text of stages that `watch` prints; asked only for those.

    Raises:
        PassContractError: TW-INT-003, a stage gave another type than it says.
        Whatever a stage or, with `verify_each`, a check raises.
    """
    values: dict[str, Any] = {}
    for number, stage in enumerate(stages):
        progress.stage(stage.name, "started")
        value = named(stage.does)(context, *(values[name] for name in stage.takes))
        kind = named(stage.gives)
        if not isinstance(value, kind):
            raise PassContractError(
                stage.name, f"its value is a {type(value).__name__}, not a {kind.__name__}"
            )
        progress.stage(stage.name, "finished")
        values[stage.name] = value
        if watch.verify_each and stage.checks:
            named(stage.checks)(context, value)
        if stage.name in watch.print_after and show is not None:
            show(stage.name, named(stage.shows)(value))
        if stage.name == watch.stop_after:
            break
        wanted = {name for later in stages[number + 1 :] for name in later.takes}
        for name in [name for name in values if name not in wanted and name != stage.name]:
            del values[name]
        del value
    return values


def named(path: str) -> Any:
    """What `module:attribute` names."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)

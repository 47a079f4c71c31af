"""The list of stages: what it promises of itself, and what a developer sees of each stage."""

from __future__ import annotations

import inspect
import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from onnx_models import conv_net, saved

from worker.compiler.cache import MemoryCache
from worker.compiler.errors import CompilerError, OptionError, PassContractError
from worker.compiler.options import CompileOptions, VerifyMode
from worker.compiler.stages import UNWATCHED, Stage, Watch, named, run_stages
from worker.job.job import run_job
from worker.job.request import JobOutcome, JobRequest
from worker.job.stages import NAMES, STAGES

HERE = __name__


class Heard:
    """A sink that keeps what it hears."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, str]] = []
        self.artifacts: list[str] = []

    def stage(self, name: str, state: str) -> None:
        self.stages.append((name, state))

    def units(self, solved: int, cached: int, total: int) -> None:
        del solved, cached, total

    def artifact(self, name: str, file_name: str) -> None:
        del file_name
        self.artifacts.append(name)


@dataclass(frozen=True)
class Grown:
    """A value of a made-up stage."""

    text: str


def begin(context: str) -> Grown:
    return Grown(context)


def grow(context: str, value: Grown) -> Grown:
    return Grown(value.text + context)


def both(context: str, first: Grown, second: Grown) -> Grown:
    del context
    return Grown(f"{first.text}/{second.text}")


def number(context: str) -> int:
    return len(context)


def text_of(value: Grown) -> str:
    return value.text


def refuse_long(context: str, value: Grown) -> None:
    if len(value.text) > len(context):
        raise ValueError(value.text)


def made_up(name: str, does: str, *takes: str, checks: str = "") -> Stage:
    return Stage(
        name, f"{HERE}:{does}", takes, f"{HERE}:Grown", f"{HERE}:text_of",
        f"{HERE}:{checks}" if checks else "",
    )  # fmt: skip


LINE = (
    made_up("one", "begin"),
    made_up("two", "grow", "one", checks="refuse_long"),
    made_up("three", "both", "one", "two"),
)


def run(request: JobRequest, folder: Path, cache: MemoryCache) -> tuple[JobOutcome, Heard]:
    heard = Heard()
    return run_job(request, folder, cache, heard), heard


def request_of(folder: Path, watch: Watch = UNWATCHED) -> JobRequest:
    options = CompileOptions(verify=VerifyMode.NONE)
    hardware = {"preset": "stcp920-inferred"}
    path = saved(conv_net(), folder)
    return JobRequest(path, "net", hardware, options, folder / "build", watch=watch)


# --- the list -------------------------------------------------------------------------------------


def test_every_stage_takes_what_an_earlier_one_gives_and_says_its_types() -> None:
    gives: dict[str, type] = {}
    for stage in STAGES:
        kind = named(stage.gives)
        function = named(stage.does)
        hints = get_type_hints(function, vars(inspect.getmodule(function)))
        taken = list(inspect.signature(function).parameters)[1:]
        assert [hints[name] for name in taken] == [gives[name] for name in stage.takes], stage.name
        assert hints["return"] is kind, stage.name
        shown = get_type_hints(named(stage.shows))
        assert shown["return"] is str
        assert next(iter(shown.values())) is kind, stage.name
        if stage.checks:
            assert kind in get_type_hints(named(stage.checks)).values(), stage.name
        gives[stage.name] = kind
    assert len(gives) == len(STAGES)
    untaken = set(NAMES) - {name for stage in STAGES for name in stage.takes}
    assert untaken == {"report"}, "a value that no stage takes is work for nothing"


def test_a_line_of_stages_runs_in_order_and_forgets_what_nobody_takes() -> None:
    heard = Heard()
    found = run_stages(LINE, "ab", heard)
    assert found == {"three": Grown("ab/abab")}
    assert heard.stages == [
        (s, w) for s in ("one", "two", "three") for w in ("started", "finished")
    ]


def test_a_value_of_another_type_is_refused_where_it_is_made() -> None:
    wrong = (LINE[0], replace(LINE[1], does=f"{HERE}:number", takes=()), LINE[2])
    heard = Heard()
    with pytest.raises(PassContractError, match="two: its value is a int, not a Grown"):
        run_stages(wrong, "ab", heard)
    assert heard.stages[-1] == ("two", "started")


def test_checks_run_only_when_they_are_asked_for() -> None:
    run_stages(LINE, "ab", Heard())
    with pytest.raises(ValueError, match="abab"):
        run_stages(LINE, "ab", Heard(), Watch(verify_each=True))


def test_only_the_stages_asked_for_are_shown() -> None:
    shown: list[tuple[str, str]] = []
    watch = Watch(("one", "three"))
    run_stages(LINE, "ab", Heard(), watch, lambda stage, text: shown.append((stage, text)))
    assert shown == [("one", "ab"), ("three", "ab/abab")]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"print_after": ["codgen"]}, "--print-after codgen: there is no such stage"),
        ({"stop_after": "end"}, "--stop-after end: there is no such stage"),
        (
            {"print_after": ["verify"], "stop_after": "codegen"},
            "--print-after verify: it does not run with --stop-after codegen",
        ),
    ],
)
def test_a_watch_that_cannot_be_kept_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        Watch.of(NAMES, **asked)
    assert caught.value.code == "TW-OPT-001"
    assert words in caught.value.message


def test_a_watch_survives_the_way_to_the_child() -> None:
    watch = Watch.of(NAMES, ["schedule", "convert", "schedule"], "codegen", True)
    assert watch.print_after == ("schedule", "convert")
    assert Watch.from_json(json.loads(json.dumps(watch.to_json()))) == watch


# --- the stages of a job --------------------------------------------------------------------------


def test_a_job_stops_where_it_is_told_to(tmp_path: Path) -> None:
    cache = MemoryCache()
    files: list[set[str]] = []
    for number, name in enumerate(NAMES):
        folder = tmp_path / name
        outcome, heard = run(request_of(tmp_path, Watch((name,), name)), folder, cache)
        assert [s for s, state in heard.stages if state == "finished"] == [*NAMES[: number + 1]]
        text = (folder / f"after-{name}.txt").read_text()
        assert text.strip(), name
        if name != "report":
            assert outcome.summary == {"stopped_after": name}
            assert not (folder / "report.json").exists()
        files.append({path.name for path in folder.iterdir()} - {f"after-{name}.txt"})
    assert all(before <= after for before, after in itertools.pairwise(files))
    assert files[0] == set()
    assert "net.twb" not in files[NAMES.index("simulate")]


def test_watching_changes_no_result(tmp_path: Path) -> None:
    plain, _ = run(request_of(tmp_path), tmp_path / "plain", MemoryCache())
    watch = Watch.of(NAMES, NAMES, verify_each=True)
    watched, _ = run(request_of(tmp_path, watch), tmp_path / "watched", MemoryCache())
    assert watched.bundle_digest == plain.bundle_digest
    assert watched.summary == plain.summary
    shown = {name for name, _ in watched.artifacts} - {name for name, _ in plain.artifacts}
    assert shown == {f"after_{name}" for name in NAMES}


def test_the_text_of_a_stage_is_the_same_in_every_run(tmp_path: Path) -> None:
    texts: list[dict[str, str]] = []
    for k in range(2):
        run(request_of(tmp_path, Watch(NAMES[:6])), tmp_path / str(k), MemoryCache())
        texts.append({n: (tmp_path / str(k) / f"after-{n}.txt").read_text() for n in NAMES[:6]})
    assert texts[0] == texts[1]
    assert "Conv" in texts[0]["ingest"]
    assert "part 0 on" in texts[0]["partition"]
    assert "schedule" in texts[0]["schedule"]
    assert "tw_unit_" in texts[0]["codegen"]


# --- each check finds a fault of its own ----------------------------------------------------------


def broken_by(monkeypatch: pytest.MonkeyPatch, stage: str, spoil: Any) -> None:
    """What a stage gives is spoiled before it is handed on."""
    found = next(s for s in STAGES if s.name == stage)
    module = inspect.getmodule(named(found.does))
    name = found.does.partition(":")[2]
    genuine = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *given: spoil(genuine(*given)))


def test_a_model_out_of_order_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(model: Any) -> Any:
        nodes = list(model.ir.graph)
        model.ir.graph.remove(nodes[0])
        model.ir.graph.append(nodes[0])
        return model

    broken_by(monkeypatch, "simplify", spoil)
    with pytest.raises(PassContractError, match=r"simplify: .* before it is made"):
        run(request_of(tmp_path, Watch(verify_each=True)), tmp_path / "o", MemoryCache())


def test_a_node_in_no_part_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(parts: Any) -> Any:
        first = parts.parts[0]
        return replace(parts, parts=(replace(first, nodes=first.nodes[1:]), *parts.parts[1:]))

    broken_by(monkeypatch, "partition", spoil)
    with pytest.raises(PassContractError, match="do not hold every node once"):
        run(request_of(tmp_path, Watch(verify_each=True)), tmp_path / "o", MemoryCache())


def test_parts_out_of_order_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(parts: Any) -> Any:
        first = parts.parts[0]
        head = replace(first, nodes=first.nodes[:1], outputs=("made",))
        tail = replace(first, nodes=first.nodes[1:], inputs=("made",))
        return replace(parts, parts=(tail, head, *parts.parts[1:]))

    broken_by(monkeypatch, "partition", spoil)
    with pytest.raises(PassContractError, match="part 0 reads made before it is made"):
        run(request_of(tmp_path, Watch(verify_each=True)), tmp_path / "o", MemoryCache())


def test_a_program_that_is_not_its_schedule_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transfer of another offset: the schedule stage alone would not look."""

    def spoil(found: Any) -> Any:
        unit = found.program.units[0]
        rows = unit.program.instructions.copy()
        moved = next(k for k, row in enumerate(rows) if row["bytes"] and row["src"] == -1)
        rows["src_offset"][moved] += rows["bytes"][moved]
        spoiled = replace(unit, program=replace(unit.program, instructions=rows))
        units = (spoiled, *found.program.units[1:])
        return replace(found, program=replace(found.program, units=units))

    broken_by(monkeypatch, "schedule", spoil)
    with pytest.raises(CompilerError) as caught:
        run(request_of(tmp_path, Watch(verify_each=True)), tmp_path / "o", MemoryCache())
    assert caught.value.code == "TW-INT-002"


def test_a_call_before_its_inputs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(found: Any) -> Any:
        linked = found.program.linked
        calls = linked.program.calls[::-1]
        assert len(calls) > 1
        turned = replace(linked, program=replace(linked.program, calls=calls))
        return replace(found, program=replace(found.program, linked=turned))

    broken_by(monkeypatch, "schedule", spoil)
    request = request_of(tmp_path, Watch(verify_each=True))
    options = CompileOptions(strategy="naive", verify=VerifyMode.NONE)
    with pytest.raises(CompilerError, match="before it is made"):
        run(replace(request, options=options), tmp_path / "o", MemoryCache())


def test_a_kernel_that_is_not_its_program_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(model: Any) -> Any:
        first = model.units[0]
        return replace(model, units=(replace(first, kernel=first.kernel + " "), *model.units[1:]))

    broken_by(monkeypatch, "codegen", spoil)
    with pytest.raises(PassContractError, match="is not what its schedule and program give"):
        run(request_of(tmp_path, Watch(verify_each=True)), tmp_path / "o", MemoryCache())


def test_a_bundle_that_changed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(made: Any) -> Any:
        with made.path.open("ab") as file:
            file.write(b"x")
        return made

    broken_by(monkeypatch, "package", spoil)
    with pytest.raises(PassContractError, match="has not the digest"):
        run(request_of(tmp_path, Watch(verify_each=True)), tmp_path / "o", MemoryCache())


def test_a_lost_artifact_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(outcome: Any) -> Any:
        (tmp_path / "o" / "layers.csv").unlink()
        return outcome

    broken_by(monkeypatch, "report", spoil)
    with pytest.raises(PassContractError, match=r"layers\.csv was announced"):
        run(request_of(tmp_path, Watch(verify_each=True)), tmp_path / "o", MemoryCache())

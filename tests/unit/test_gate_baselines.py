"""Where the base comes from: commits, files, servers; and what is said when there is none.

Models are JSON texts (`gate_documents.JsonCompiler`): a gate over git without a compile.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from gate_documents import TOOLCHAIN, JsonCompiler
from gate_repository import TeamRepository

from service.gate.baseline import is_same_toolchain
from service.gate.baseline_file import read_baseline, write_baseline
from service.gate.gate import Asked, Gate
from service.gate.git import NoBaseline
from service.gate.markdown import markdown
from service.gate.runs import Outcome
from service.gate.served import commit_label, label_of
from service.gate.together import Threads
from service.gate.verdict import Check, Place, Result, State, Verdict
from worker.compiler.errors import CompilerError, InputError

GATE = """
schema: 1
models: [{path: m/*.onnx}]
hardware: [{spec: chip.yaml}]
baseline: {source: merge-base, branch: main}
regressions: [{figure: latency_cycles, percent: 1}]
"""
FILES = {"gate.yaml": GATE, "chip.yaml": "slower_by: 1", "m/a.onnx": '{"x": 100}'}
OLD = {**TOOLCHAIN, "lower": "0"}


@pytest.fixture
def team(tmp_path: Path) -> TeamRepository:
    made = TeamRepository(tmp_path / "team")
    made.commit(FILES, "first")
    made.git("checkout", "-q", "-b", "work")
    return made


def run(
    team: TeamRepository, compiler: JsonCompiler | None = None, *, file: str = "gate.yaml",
    **asked: Any,
) -> Verdict:  # fmt: skip
    question = Asked(team.root / file, date(2026, 6, 1), **asked)
    made = compiler or JsonCompiler()
    gate = Gate(question, made, lambda text: None, together=Threads(4))
    return gate.verdict(gate.head())


def test_the_base_is_where_the_branch_left_main(team: TeamRepository) -> None:
    team.git("checkout", "-q", "main")
    team.commit({"m/a.onnx": '{"x": 50}'}, "main is faster now; not this branch's fault")
    team.git("checkout", "-q", "work")
    assert run(team).state is State.PASS
    team.write({"m/a.onnx": '{"x": 102}'})  # needs no commit
    verdict = run(team)
    assert verdict.state is State.FAIL
    (failed,) = verdict.of(Result.FAILED)
    assert (failed.base, failed.head) == (100, 102)
    assert verdict.base == "merge base with main"
    assert run(team, revision="main").of(Result.FAILED)[0].base == 50
    assert run(team, revision="main").base == "main"
    assert run(team, revision="HEAD").of(Result.FAILED)[0].base == 100
    assert "there is no commit nowhere" in run(team, revision="nowhere").first_line


def test_a_spec_is_the_bases_too(team: TeamRepository) -> None:
    team.write({"chip.yaml": "# faster?\nslower_by: 2"})
    verdict = run(team)
    (failed,) = verdict.of(Result.FAILED)
    assert (failed.base, failed.head) == (100, 200)
    assert verdict.place_of(failed).path == "chip.yaml"
    assert verdict.place_of(failed).line == 2


def test_nothing_is_checked_out_and_nothing_is_written(team: TeamRepository) -> None:
    before = (team.git("status", "--porcelain"), team.git("rev-parse", "HEAD"), team.git("branch"))
    run(team)
    after = (team.git("status", "--porcelain"), team.git("rev-parse", "HEAD"), team.git("branch"))
    assert before == after


def test_models_that_came_and_went(team: TeamRepository) -> None:
    (team.root / "m/a.onnx").rename(team.root / "m/b.onnx")
    verdict = run(team)
    checks = {(f.check, f.model, f.result) for f in verdict.findings}
    assert (Check.MISSING, "a", Result.FAILED) in checks
    assert (Check.NEW, "b", Result.NOTED) in checks
    assert verdict.first_line == "FAIL: a on chip is missing: the base has it"


def test_the_bases_own_gate_file_says_what_it_had(team: TeamRepository) -> None:
    options = GATE + "options: {effort: fast}\n"
    team.commit({"gate.yaml": options, "m/z.onnx": '{"x": 9}'})
    team.git("branch", "-q", "-f", "main")
    narrowed = options.replace("m/*.onnx", "m/a.onnx").replace("fast", "thorough")
    team.write({"gate.yaml": narrowed})
    compiler = JsonCompiler()
    verdict = run(team, compiler)
    assert [f.model for f in verdict.findings if f.check is Check.MISSING] == ["z"]
    assert [order.options["effort"] for order in compiler.seen] == ["thorough", "fast"]


def test_a_change_of_the_gates_own_rules_is_said(team: TeamRepository) -> None:
    team.write({"gate.yaml": GATE.replace("percent: 1", "percent: 99"), "m/a.onnx": '{"x": 150}'})
    verdict = run(team)
    assert verdict.state is State.PASS
    (note,) = [f for f in verdict.findings if f.check is Check.RULES]
    assert note.message == "this change also changes the gate's own regressions"
    assert verdict.place_of(note).line == 6
    assert " changed " in markdown(verdict).partition("\n")[0]
    team.write({"gate.yaml": f"# the same rules\n{GATE}", "m/a.onnx": '{"x": 100}'})
    same = run(team)
    assert not [f for f in same.findings if f.check is Check.RULES]
    assert " unchanged " in markdown(same).partition("\n")[0]


def test_a_base_without_a_gate_file_is_read_by_todays(team: TeamRepository) -> None:
    team.git("rm", "-q", "gate.yaml")
    team.commit()
    team.git("branch", "-q", "-f", "main")
    team.write({"gate.yaml": GATE, "m/a.onnx": '{"x": 200}'})
    assert run(team).state is State.FAIL
    team.commit({"gate.yaml": "schema: 99"})
    team.git("branch", "-q", "-f", "main")
    team.write({"gate.yaml": GATE, "m/a.onnx": '{"x": 300}'})
    assert run(team).of(Result.FAILED)[0].base == 200


def test_a_gate_in_a_folder_of_the_repository(tmp_path: Path) -> None:
    team = TeamRepository(tmp_path / "team")
    team.commit({f"npu/ci/{name}": text for name, text in FILES.items()})
    team.write({"npu/ci/chip.yaml": "slower_by: 3"})
    verdict = run(team, file="npu/ci/gate.yaml")
    (failed,) = verdict.of(Result.FAILED)
    assert failed.base == 100
    assert verdict.place_of(failed).path == "npu/ci/chip.yaml"
    assert verdict.file == "npu/ci/gate.yaml"


def test_a_model_that_fails_now(team: TeamRepository) -> None:
    team.write({"m/a.onnx": '{"refuse": "it has a cycle"}'})
    verdict = run(team)
    assert verdict.first_line == (
        "FAIL: a on chip fails: TW-MODEL-004 it has a cycle (node loop); the base compiles"
    )
    team.commit()
    team.git("branch", "-q", "-f", "main")
    assert run(team).state is State.NEUTRAL


def test_a_spec_that_is_refused_is_shown_at_its_line(team: TeamRepository) -> None:
    team.write({"chip.yaml": "slower_by: 1\n# a comment\nbroken: 1"})
    verdict = run(team)
    (failed,) = verdict.of(Result.FAILED)
    assert failed.message == "a on chip fails: TW-SPEC-001 broken is not a field; the base compiles"
    assert verdict.place_of(failed) == Place("chip.yaml", 3)


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"


def test_pointers_of_lfs_are_said(team: TeamRepository) -> None:
    team.commit({"m/a.onnx": LFS})
    team.git("branch", "-q", "-f", "main")
    verdict = run(team)
    (failed,) = verdict.of(Result.FAILED)
    assert "m/a.onnx is a pointer of Git LFS" in failed.message
    assert "git lfs pull" in failed.message
    team.write({"m/a.onnx": '{"x": 1}'})
    verdict = run(team)
    assert verdict.state is State.NEUTRAL
    assert verdict.first_line.startswith(
        "NEUTRAL: a on chip has no baseline: m/a.onnx is a pointer of Git LFS"
    )


def test_lfs_filters_bring_the_contents_where_they_are_here(team: TeamRepository) -> None:
    team.git("config", "filter.lfs.smudge", """printf '{"x": 77}'""")
    team.git("config", "filter.lfs.clean", "cat")
    team.commit({"m/a.onnx": LFS, ".gitattributes": "*.onnx filter=lfs"})
    team.git("branch", "-q", "-f", "main")
    team.write({"m/a.onnx": '{"x": 99}'})
    assert run(team).of(Result.FAILED)[0].base == 77


def test_there_is_no_baseline(team: TeamRepository, tmp_path: Path) -> None:
    team.git("branch", "-q", "-D", "main")
    assert run(team).first_line == (
        "NEUTRAL: no baseline: there is no branch main: fetch it, or mend baseline.branch;"
        " nothing to check"
    )
    other = tmp_path / "plain"
    for name, text in FILES.items():
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_text(text)
    gate = Gate(Asked(other / "gate.yaml", date(2026, 6, 1)), JsonCompiler(), lambda text: None)
    line = gate.verdict(gate.head()).first_line
    assert line.startswith("NEUTRAL: no baseline: the gate file is in no git repository")


def test_models_that_are_not_in_git_are_no_baseline(team: TeamRepository) -> None:
    team.git("rm", "-q", "--cached", "-r", "m")
    team.write({".gitignore": "m/"})
    team.commit()
    team.git("branch", "-q", "-f", "main")
    assert run(team).first_line.startswith(
        "NEUTRAL: no baseline: merge base with main has none of the models and specs"
    )


def test_branches_with_nothing_in_common(team: TeamRepository) -> None:
    team.git("checkout", "-q", "--orphan", "island")
    team.commit({"m/a.onnx": '{"x": 1}'})
    assert "HEAD and main have no commit in common" in run(team).first_line


def test_a_shallow_clone_says_what_to_fetch(team: TeamRepository, tmp_path: Path) -> None:
    team.commit({"m/a.onnx": '{"x": 1}'})
    team.commit({"m/a.onnx": '{"x": 2}'})
    team.git("checkout", "-q", "main")
    team.commit({"m/a.onnx": '{"x": 3}'})
    clone = tmp_path / "clone"
    subprocess.run(
        ["git", "clone", "-q", "--depth", "1", "--no-single-branch", "-b", "work",
         f"file://{team.root}", str(clone)], check=True, capture_output=True,
    )  # fmt: skip
    gate = Gate(Asked(clone / "gate.yaml", date(2026, 6, 1)), JsonCompiler(), lambda text: None)
    verdict = gate.verdict(gate.head())
    assert verdict.state is State.NEUTRAL
    assert "the clone is shallow" in verdict.first_line
    assert "fetch-depth: 0" in verdict.first_line


def test_origins_branch_counts_before_a_stale_local_one(
    team: TeamRepository, tmp_path: Path
) -> None:
    clone = TeamRepository(tmp_path / "clone")
    clone.git("remote", "add", "origin", str(team.root))
    clone.git("fetch", "-q", "origin")
    clone.git("reset", "-q", "--hard", "origin/main")  # the local main stays here
    team.git("checkout", "-q", "main")
    team.commit({"m/a.onnx": '{"x": 400}'})
    clone.git("fetch", "-q", "origin")
    clone.git("checkout", "-q", "-b", "work", "origin/main")
    assert run(clone).state is State.PASS
    clone.write({"m/a.onnx": '{"x": 401}'})
    found = [f for f in run(clone).findings if f.check is Check.REGRESSION]
    assert found[0].base == 400


class Broken(JsonCompiler):
    """Fails at the second compile, by no fault of the model."""

    def outcome(self, order: Any) -> Outcome:
        if self.seen:
            raise CompilerError("TW-SVC-009", "out of memory")
        return super().outcome(order)


def test_a_machine_that_fails_at_the_base_is_no_verdict_on_it(team: TeamRepository) -> None:
    verdict = run(team, Broken())
    assert verdict.state is State.NEUTRAL
    assert "the base could not be compiled: TW-SVC-009 out of memory" in verdict.first_line


# --- baselines in a file ---------------------------------------------------------------------


FILE_GATE = GATE.replace("source: merge-base, branch: main", "source: file, path: base.json")


@pytest.fixture
def stored(team: TeamRepository) -> Iterator[TeamRepository]:
    """The team keeps its baseline in a file, made by the old toolchain."""
    team.write({"gate.yaml": FILE_GATE})
    keep(team, JsonCompiler(toolchain=OLD))
    team.commit()
    yield team


def keep(team: TeamRepository, compiler: JsonCompiler) -> None:
    gate = Gate(Asked(team.root / "gate.yaml", date(2026, 6, 1)), compiler, lambda text: None)
    write_baseline(gate.baseline_path(), gate.pairs, gate.head())


def test_a_file_of_the_same_toolchain_needs_no_compile(stored: TeamRepository) -> None:
    stored.write({"m/a.onnx": '{"x": 150}'})
    compiler = JsonCompiler(toolchain=OLD)
    verdict = run(stored, compiler)
    assert len(compiler.seen) == 1
    assert verdict.base == "base.json"
    (failed,) = verdict.of(Result.FAILED)
    assert (failed.base, failed.head) == (100, 150)


def test_a_file_has_equal_bytes_for_equal_results(stored: TeamRepository) -> None:
    first = (stored.root / "base.json").read_bytes()
    keep(stored, JsonCompiler(toolchain=OLD))
    assert (stored.root / "base.json").read_bytes() == first


def test_another_toolchain_recomputes_the_base_from_the_commit_of_the_file(
    stored: TeamRepository,
) -> None:
    stored.commit({"m/a.onnx": '{"x": 150}'})
    compiler = JsonCompiler()
    verdict = run(stored, compiler)
    (failed,) = verdict.of(Result.FAILED)
    assert (failed.base, failed.head) == (100, 150)
    assert len(compiler.seen) == 2
    assert not verdict.of(Result.NEUTRAL)


def test_what_cannot_be_recomputed_is_neutral_with_the_reason(stored: TeamRepository) -> None:
    (stored.root / "base.json").write_text((stored.root / "base.json").read_text() + "\n")
    verdict = run(stored)
    assert verdict.state is State.NEUTRAL
    assert verdict.first_line.startswith(
        "NEUTRAL: a on chip has no baseline: the baseline was made by another toolchain"
        " (Tilewright 1.0) and cannot be computed anew: base.json has changes that are not"
        " committed"
    )
    stored.git("checkout", "-q", "base.json")
    stored.write({"m/a.onnx": '{"x": 1}'})
    document = json.loads((stored.root / "base.json").read_text())
    document["pairs"][0]["documents"]["report"]["model"]["sha256"] = "ff"
    stored.commit({"base.json": json.dumps(document)})
    assert "has another model" in run(stored).first_line


def test_a_file_may_be_read_as_the_branch_had_it(stored: TeamRepository) -> None:
    stored.write({"gate.yaml": FILE_GATE.replace("base.json", "base.json, branch: main")})
    stored.commit()
    stored.git("branch", "-q", "-f", "main")
    stored.write({"m/a.onnx": '{"x": 500}'})
    keep(stored, JsonCompiler(toolchain=OLD))  # a pull request that brings its own baseline
    verdict = run(stored, JsonCompiler(toolchain=OLD))
    assert verdict.of(Result.FAILED)[0].base == 100
    assert verdict.base == "base.json at merge base with main"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no baseline"),
        ("{}", "is no baseline"),
        ('{"schema_version": 2, "pairs": []}', "has version 2"),
        ('{"schema_version": 1, "pairs": [{"model": "a", "hardware": "chip", "documents": {}}]}',
         "the report of a on chip"),
        ('{"schema_version": 1, "pairs": [{"model": "a", "hardware": "chip", "documents":'
         ' {"report": {"toolchain": {"strategies": 1}}}}]}', "the report of a on chip"),
    ],
)  # fmt: skip
def test_damaged_files_are_neutral(stored: TeamRepository, text: str, words: str) -> None:
    stored.write({"base.json": text})
    verdict = run(stored)
    assert verdict.state is State.NEUTRAL
    assert words in verdict.first_line
    with pytest.raises(NoBaseline, match=r"b\.json"):
        read_baseline(stored.root / "base.json", "b.json")


def test_a_report_of_another_version_is_neutral(stored: TeamRepository) -> None:
    document = json.loads((stored.root / "base.json").read_text())
    document["pairs"][0]["documents"]["report"]["schema_version"] = 2
    stored.write({"base.json": json.dumps(document)})
    assert run(stored, JsonCompiler(toolchain=OLD)).state is State.NEUTRAL


def test_a_file_that_is_not_there(stored: TeamRepository) -> None:
    (stored.root / "base.json").unlink()
    assert "--write-baseline` writes it" in run(stored).first_line


def test_a_baseline_of_failures_is_not_written(stored: TeamRepository) -> None:
    before = (stored.root / "base.json").read_bytes()
    stored.write({"m/a.onnx": '{"refuse": "no"}'})
    with pytest.raises(InputError) as caught:
        keep(stored, JsonCompiler())
    assert caught.value.code == "TW-GATE-002"
    assert (stored.root / "base.json").read_bytes() == before


def test_only_a_file_can_be_written(team: TeamRepository) -> None:
    gate = Gate(Asked(team.root / "gate.yaml", date(2026, 6, 1)), JsonCompiler(), print)
    with pytest.raises(InputError, match="is no file"):
        gate.baseline_path()


def test_toolchains_are_the_same_where_both_have_a_strategy() -> None:
    assert is_same_toolchain(TOOLCHAIN, dict(TOOLCHAIN))
    assert not is_same_toolchain(TOOLCHAIN, OLD)
    more = {**TOOLCHAIN, "strategies": {**TOOLCHAIN["strategies"], "t": {"version": "9"}}}
    assert is_same_toolchain(TOOLCHAIN, more)
    other = {**TOOLCHAIN, "strategies": {"s": {"version": "2", "distribution": "d 1.0"}}}
    assert not is_same_toolchain(TOOLCHAIN, other)


# --- baselines on a server -------------------------------------------------------------------


class Jobs:
    """The jobs of a server, by label."""

    def __init__(self, jobs: dict[str, Outcome], again: dict[str, Outcome] | None = None) -> None:
        self.jobs = jobs
        self.anew = again or {}
        self.asked: list[str] = []

    def latest(self, label: str) -> Outcome:
        self.asked.append(label)
        if label not in self.jobs:
            raise NoBaseline(f"the server has no succeeded job with the label {label}")
        return self.jobs[label]

    def again(self, label: str) -> Outcome:
        if label not in self.anew:
            raise NoBaseline("its job fails now")
        return self.anew[label]


def served(team: TeamRepository, server: Jobs) -> Verdict:
    asked = Asked(team.root / "gate.yaml", date(2026, 6, 1))
    gate = Gate(asked, JsonCompiler(), lambda text: None, server)  # type: ignore[arg-type]
    return gate.verdict(gate.head())


def one(cycles: int, toolchain: dict[str, Any]) -> Outcome:
    from gate_documents import Kernel, outcome

    return outcome(Kernel("x", {"engine:PE": cycles}), toolchain=toolchain)


def test_jobs_are_found_by_label_or_by_the_commit_of_the_branch(team: TeamRepository) -> None:
    by_label = GATE.replace("source: merge-base, branch: main", "source: server, label: nightly")
    team.write({"gate.yaml": by_label})
    server = Jobs({"nightly/a/chip": one(80, TOOLCHAIN)})
    verdict = served(team, server)
    assert verdict.of(Result.FAILED)[0].base == 80
    assert server.asked == ["nightly/a/chip"]
    team.write({"gate.yaml": GATE.replace("merge-base", "server")})
    base = team.git("rev-parse", "main")
    label = f"gate:{base[:12]}/a/chip"
    assert label == label_of(commit_label(base), "a", "chip")
    assert served(team, Jobs({label: one(90, TOOLCHAIN)})).of(Result.FAILED)[0].base == 90
    missing = served(team, Jobs({}))
    assert missing.state is State.NEUTRAL
    assert "no succeeded job with the label gate:" in missing.first_line


def test_a_job_of_another_toolchain_runs_again(team: TeamRepository) -> None:
    by_label = GATE.replace("source: merge-base, branch: main", "source: server, label: nightly")
    team.write({"gate.yaml": by_label})
    label = "nightly/a/chip"
    server = Jobs({label: one(10, OLD)}, {label: one(70, TOOLCHAIN)})
    assert served(team, server).of(Result.FAILED)[0].base == 70
    verdict = served(team, Jobs({label: one(10, OLD)}))
    assert verdict.state is State.NEUTRAL
    assert "another toolchain" in verdict.first_line


def test_a_servers_baseline_needs_a_server(team: TeamRepository) -> None:
    team.write({"gate.yaml": GATE.replace("merge-base", "server")})
    verdict = run(team)
    assert verdict.state is State.NEUTRAL
    assert "it is a server's, and none is given (--server URL)" in verdict.first_line


def test_labels_have_their_limit() -> None:
    long = label_of("l" * 90, "model", "hardware")
    assert len(long) <= 100
    assert long != label_of("l" * 90, "model", "hardware2")


def test_jobs_of_a_clean_tree_are_labelled_with_its_commit(team: TeamRepository) -> None:
    def labels(server: Jobs | None, **asked: Any) -> list[str | None]:
        compiler = JsonCompiler()
        question = Asked(team.root / "gate.yaml", date(2026, 6, 1), **asked)
        Gate(question, compiler, lambda text: None, server).head()  # type: ignore[arg-type]
        return [order.label for order in compiler.seen]

    head = team.git("rev-parse", "HEAD")
    assert labels(Jobs({})) == [f"gate:{head[:12]}/a/chip"]
    assert labels(Jobs({}), label="nightly") == ["nightly/a/chip"]
    assert labels(None) == [None]  # nobody would look for it
    team.write({"m/a.onnx": '{"x": 1}'})
    assert labels(Jobs({})) == [None]  # no commit has this


def test_a_gate_whose_rules_are_for_nobody_is_refused(team: TeamRepository) -> None:
    team.write({"gate.yaml": GATE.replace("percent: 1", "percent: 1, model: b")})
    with pytest.raises(InputError) as caught:
        run(team)
    assert [f.pointer for f in caught.value.findings] == ["/regressions/0"]
    team.write({"gate.yaml": GATE.replace("m/*.onnx", "n/*.onnx")})
    with pytest.raises(InputError, match=r"no file is n/\*\.onnx"):
        run(team)
    with pytest.raises(InputError, match="there is no such gate file"):
        run(team, file="none.yaml")

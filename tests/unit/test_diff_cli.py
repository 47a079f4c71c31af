"""`tilewright diff` on files: its text, its forms, both traces in one, refusals."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from compared_runs import NODES, SLOW, bundle, layers, report, schedule_of, slow_spec, trace, write
from typer.testing import CliRunner, Result

from service.cli.main import app

GOLDEN = Path(__file__).parents[1] / "golden" / "diff"


def diff(*words: object) -> Result:
    return CliRunner().invoke(app, ["diff", *map(str, words)])


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`base`, `same` and `slow` in the folder where the command runs."""
    write(tmp_path / "base", NODES, layers())
    write(tmp_path / "same", NODES, layers())
    write(tmp_path / "slow", NODES, layers(a=40, c=90), spec=slow_spec(), **SLOW)
    (tmp_path / "same" / "run.json").write_text(json.dumps({"timings": {"schedule": 3.0}}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "words"), [("spec_field.txt", ()), ("spec_field.md", ("--markdown",))]
)
def test_one_changed_spec_field_as_it_is_printed(
    folders: Path, request: pytest.FixtureRequest, name: str, words: tuple[str, ...]
) -> None:
    result = diff("base", "slow", *words)
    assert result.exit_code == 0, result.output
    if request.config.getoption("--update-golden"):
        (GOLDEN / name).write_text(result.stdout, encoding="utf-8")
    assert result.stdout == (GOLDEN / name).read_text(encoding="utf-8")


def test_the_page_in_docs_defines_the_document(folders: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
    told = json.loads(diff("base", "slow", "--json").stdout)
    _, _, rest = page.partition("\n## What is compared\n")
    defined = re.findall(r"^\| `([a-z_]+)` \|", rest.partition("\n## ")[0], re.MULTILINE)
    assert set(defined) == set(told) - {"schema_version", "base", "head"}


def test_the_same_twice_and_what_depends_on_the_run_are_no_difference(folders: Path) -> None:
    for head in ("base", "same", "same/toy.twb", "same/report.json"):
        result = diff("base", head)
        assert (result.exit_code, result.stdout) == (0, "no difference: 175 cycles, 175 ns\n")


def test_every_form_of_a_side_tells_the_same(folders: Path) -> None:
    told = json.loads(diff("base", "slow", "--json").stdout)
    for base, head in (("base/toy.twb", "slow"), ("base", "slow/toy.twb"),
                       ("base/report.json", "slow/report.json")):  # fmt: skip
        other = json.loads(diff(base, head, "--json").stdout)
        assert [other[key] for key in ("layers", "causes", "figures")] == [
            told[key] for key in ("layers", "causes", "figures")
        ]
        assert other["reasons"] == told["reasons"]


def test_a_report_alone_is_that_report_and_says_what_it_lacks(folders: Path) -> None:
    (folders / "slow" / "report.json").rename(folders / "base" / "other.json")
    result = diff("base", "base/other.json")
    assert result.stdout.startswith("slower by 45.7 %")
    assert "not compared: fields of the machine (hardware.json of the bundle) of head" in (
        result.stderr
    )
    shown = CliRunner().invoke(app, ["report", "base/other.json", "--json"])
    assert json.loads(shown.stdout)["summary"]["latency_cycles"] == 255


def test_long_tables_are_cut_and_say_so(folders: Path) -> None:
    many = {f"figure_{k:02}": k for k in range(20)}
    document = report(NODES, layers())
    document["summary"] |= many
    (folders / "base" / "more.json").write_text(json.dumps(document))
    short, whole = diff("base", "base/more.json"), diff("base", "base/more.json", "--all")
    assert short.stdout.count("\nfigure_") == 10 and whole.stdout.count("\nfigure_") == 20
    assert "and 10 more; --all shows them" in short.stderr
    assert "--all" not in whole.stderr


def test_the_page_holds_everything_and_asks_for_nothing(folders: Path) -> None:
    assert diff("base", "slow", "--html", "page.html").exit_code == 0
    page = (folders / "page.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "/levels/DRAM/read_bytes_per_cycle" in page and "port:DRAM.read" in page
    assert not re.search(r"<script|https?://|src=", page)


def test_names_are_text_in_every_form(folders: Path) -> None:
    bad = "<b>|`x`"
    renamed = json.loads(json.dumps(layers(a=99)).replace('"a"', json.dumps(bad)))
    nodes = [{**NODES[0], "name": bad}, *NODES[1:]]
    write(folders / "bad", nodes, renamed)
    assert diff("base", "bad", "--html", "page.html").exit_code == 0
    assert "<b>|" not in (folders / "page.html").read_text(encoding="utf-8")
    markdown = diff("base", "bad", "--markdown").stdout
    assert "\\<b>\\|\\`x\\`" in markdown and "<b>|" not in markdown.replace("\\<b>\\|", "")


def test_both_traces_stand_in_one_file_on_one_axis(folders: Path) -> None:
    assert diff("base", "slow", "--trace", "both.json.gz").exit_code == 0
    document = json.loads(gzip.decompress((folders / "both.json.gz").read_bytes()))
    names: dict[int, str] = {}
    slices: dict[str, tuple[float, float]] = {}
    for event in document["traceEvents"]:
        if event["name"] == "process_name":
            assert event["pid"] not in names
            names[event["pid"]] = event["args"]["name"]
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            slices[f"{names[event['pid']]} {event['name']}"] = (event["ts"], event["dur"])
    assert list(names.values()) == [
        "base: program",
        "base: core 2",
        "head: program",
        "head: core 2",
    ]
    assert slices == {
        "base: program Conv": (0.0, 0.175), "base: core 2 COMPUTE": (0.0, 0.0875),
        "head: program Conv": (0.0, 0.255), "head: core 2 COMPUTE": (0.0, 0.1275),
    }  # fmt: skip
    assert [document["otherData"][side]["cycles"] for side in ("base", "head")] == [175, 255]
    first = (folders / "both.json.gz").read_bytes()
    diff("base", "slow", "--trace", "both.json.gz")
    assert (folders / "both.json.gz").read_bytes() == first


@pytest.mark.parametrize(
    ("name", "content", "code", "message"),
    [
        ("nothing/there", None, "TW-CLI-001", "there is no such file or folder"),
        ("torn.twb", b"PK no zip", "TW-RUN-001", "is no bundle"),
        ("text.json", b"{", "TW-RUN-001", "is not JSON"),
        ("nan.json", b'{"a": NaN}', "TW-RUN-001", "is not JSON"),
        ("deep.json", b"[" * 100_000, "TW-RUN-001", "is not JSON"),
        ("old.json", b'{"schema_version": 2}', "TW-CMP-001", "the report has version 2"),
        ("format.twb", bundle(report(NODES, layers()), schedule_of(layers()), {}, version=2),
         "TW-RUN-004", "the bundle has format 2"),
    ],
)  # fmt: skip
def test_bad_sides_are_refused(
    folders: Path, name: str, content: bytes | None, code: str, message: str
) -> None:
    if content is not None:
        (folders / name).write_bytes(content)
    result = diff("base", name)
    assert result.exit_code == 3, result.output
    assert code in result.stderr and message in result.stderr
    assert name in result.stderr
    assert json.loads(diff("base", name, "--json").stdout)["code"] == code


@pytest.mark.parametrize(
    "data",
    [b"", b"plain", *(gzip.compress(text, mtime=0) for text in (
        b"{", b"7", b'{"traceEvents": 7}', b'{"traceEvents": [{"pid": -1}]}',
        b'{"traceEvents": ["x"]}', b'{"traceEvents": [], "otherData": 7}',
        b'{"traceEvents": [{"pid": 1, "name": "process_name", "args": ["name"]}]}',
    )), trace(5)[:-9]],
    ids=["empty", "plain", "torn", "a number", "no list", "no process", "no event", "no data",
         "no arguments", "cut"],
)  # fmt: skip
def test_what_is_no_trace_is_refused(folders: Path, data: bytes) -> None:
    (folders / "slow" / "trace.json.gz").write_bytes(data)
    result = diff("base", "slow", "--trace", "both.json.gz")
    assert result.exit_code == 3
    assert "TW-RUN-001" in result.stderr and "slow is no trace" in result.stderr


def test_an_empty_folder_and_two_forms_at_once_are_refused(folders: Path) -> None:
    (folders / "empty").mkdir()
    assert "holds neither report.json nor a bundle" in diff("base", "empty").stderr
    assert diff("base", "slow", "--json", "--markdown").exit_code == 2


def test_several_bundles_in_a_folder_are_no_guess(folders: Path) -> None:
    (folders / "same" / "second.twb").write_bytes((folders / "slow" / "toy.twb").read_bytes())
    told: dict[str, Any] = json.loads(diff("base", "same", "--json").stdout)
    assert told["verdict"] == "same"
    assert told["head"]["missing"] == ["fields of the machine (hardware.json of the bundle)"]

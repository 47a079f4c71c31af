"""`gate`: does this tree make anything worse than agreed?"""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.connection import DataDirOption, ServerOption, load_settings, quiet_logs
from service.cli.exits import Exit
from service.cli.failures import Failure
from service.cli.output import JsonFlag, note, print_json, print_table, print_text

if TYPE_CHECKING:
    from service.gate.gate import Asked, Gate
    from service.gate.runs import Compiler
    from service.gate.served import Served
    from service.gate.together import Threads
    from service.gate.verdict import Verdict

app = typer.Typer(
    help="Fail when a change of a model, a spec or an option makes anything worse than agreed.",
    invoke_without_command=True,
)
_ANNOTATIONS = ("github",)
_TITLES = {"result": "result", "what": "what"}


@app.callback()
def gate(
    context: typer.Context,
    file: Annotated[Path, typer.Option("-f", "--file", help="The gate file.")] = Path(
        "tilewright.yaml"
    ),
    base: Annotated[
        str | None,
        typer.Option(
            help="Compare with this commit, instead of where HEAD and the branch parted.",
            metavar="COMMIT",
        ),
    ] = None,
    today: Annotated[
        str | None,
        typer.Option(help="The day on which waivers are judged (default today).", metavar="DAY"),
    ] = None,
    write_baseline: Annotated[
        bool,
        typer.Option("--write-baseline", help="Write the gate file's baseline, judge nothing."),
    ] = False,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit's XML to this file.")] = None,
    sarif: Annotated[Path | None, typer.Option(help="Write SARIF 2.1.0 to this file.")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write the text of a comment to this file.")
    ] = None,
    annotations: Annotated[
        str | None, typer.Option(help="github: print its workflow commands, too.")
    ] = None,
    server: ServerOption = None,
    local: Annotated[
        bool, typer.Option("--local", help="Compile in this process (default without a server).")
    ] = False,
    label: Annotated[
        str | None, typer.Option(help="Label of the server's jobs (default gate:COMMIT).")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="Compiles at the same time (default on a server 8, here TILEWRIGHT_WORKERS).",
        ),
    ] = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Compile every model for every chip of a gate file, here and in the base, and judge.

    The first line is the verdict and its biggest cause.  Exit code 0: nothing failed (or nothing
    could be compared, and the line says why); 1: something did; 3: the gate file is refused.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    from service.gate.gate import Asked
    from service.gate.served import Served
    from service.gate.together import ON_A_SERVER, Threads

    if annotations is not None and annotations not in _ANNOTATIONS:
        raise typer.BadParameter(f"one of {', '.join(_ANNOTATIONS)}", param_hint="--annotations")
    if annotations is not None and as_json:
        raise typer.BadParameter("contradicts --json", param_hint="--annotations")
    if label is not None and (local or not server):
        raise typer.BadParameter("needs a server (--server URL)", param_hint="--label")
    outputs = {"--junit": junit, "--sarif": sarif, "--markdown": markdown, "--base": base,
               "--today": today, "--annotations": annotations}  # fmt: skip
    given = [name for name, value in outputs.items() if value is not None]
    if write_baseline and given:
        raise typer.BadParameter("judges nothing", param_hint=f"--write-baseline, {given[0]}")
    asked = Asked(file, _day(today), base, label)
    quiet_logs()
    if server:
        from service.client import Client

        with Client(server) as client:
            served = Served(client)
            if local:
                verdict = _here(asked, data_dir, served, jobs, write_baseline=write_baseline)
            else:
                threads = Threads(jobs or ON_A_SERVER)
                verdict = _judged(asked, served, served, threads, write_baseline=write_baseline)
    else:
        verdict = _here(asked, data_dir, None, jobs, write_baseline=write_baseline)
    if verdict is None:
        return
    _write(verdict, junit, sarif, markdown)
    _print(verdict, annotations, as_json=as_json)
    if verdict.state == "FAIL":
        raise typer.Exit(Exit.GATE_FAILED)


def _refuse_options(context: typer.Context) -> None:
    """Options before the name of a further verb would do nothing."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"does nothing with {context.invoked_subcommand}",
                param_hint=f"--{name.replace('_', '-')}",
            )


def _day(text: str | None) -> date:
    """
    Raises:
        typer.BadParameter: it is no day.
    """
    if text is None:
        return datetime.now(UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text} is no day; YYYY-MM-DD", param_hint="--today") from error


def _here(
    asked: Asked, data_dir: Path | None, server: Served | None, jobs: int | None, *,
    write_baseline: bool,
) -> Verdict | None:  # fmt: skip
    from service.gate.here import Here
    from service.gate.together import Threads

    settings = load_settings(data_dir)
    threads = Threads(jobs or settings.workers)
    with Here(settings, threads.stop) as compiler:
        return _judged(asked, compiler, server, threads, write_baseline=write_baseline)


def _judged(
    asked: Asked, compiler: Compiler, server: Served | None, threads: Threads, *,
    write_baseline: bool,
) -> Verdict | None:  # fmt: skip
    """The verdict; None: a baseline was written instead."""
    from service.gate.gate import Gate

    run = Gate(asked, compiler, note, server, threads)
    if asked.revision is not None and not run.has_revision:
        raise typer.BadParameter("the gate file's baseline is no commit's", param_hint="--base")
    if write_baseline:
        _write_baseline(run)
        return None
    return run.verdict(run.head())


def _write_baseline(run: Gate) -> None:
    from service.gate.baseline_file import write_baseline

    path = run.baseline_path()
    write_baseline(path, run.pairs, run.head())
    print_text(str(path))
    note(f"{len(run.pairs)} pairs; commit the file")


def _write(verdict: Verdict, junit: Path | None, sarif: Path | None, markdown: Path | None) -> None:
    if junit is not None:
        from service.gate.junit import junit as junit_text

        junit.write_bytes(junit_text(verdict))
    if sarif is not None:
        from service.cli.explain import package_version
        from service.gate.sarif import sarif as sarif_text

        sarif.write_bytes(sarif_text(verdict, package_version()))
    if markdown is not None:
        from service.gate.markdown import markdown as markdown_text

        markdown.write_bytes(markdown_text(verdict).encode("utf-8", "replace"))


def _print(verdict: Verdict, annotations: str | None, *, as_json: bool) -> None:
    from service.gate.annotations import github_annotations
    from service.gate.shown import COLUMNS, rows

    if as_json:
        print_json(verdict.as_json())
        return
    print_text(verdict.first_line)
    found = rows(verdict)
    if found:
        print_text("")
        print_table(COLUMNS, found, _TITLES)
    for line in github_annotations(verdict) if annotations is not None else ():
        print_text(line)


@app.command("schema")
def schema(as_json: JsonFlag = False) -> None:
    """Print the JSON Schema of gate files."""
    del as_json  # a schema is JSON either way
    from service.gate.schema import gate_json_schema

    print_json(gate_json_schema())


@app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(help="The repository.", file_okay=False)] = Path("."),
    parts: Annotated[
        list[str] | None,
        typer.Option("--for", help="github, gitlab or pre-commit; repeatable (default all)."),
    ] = None,
    branch: Annotated[
        str | None, typer.Option(help="Branch to compare with (default that of origin, or main).")
    ] = None,
    preset: Annotated[
        str, typer.Option(help="The chip, where the repository has no spec.")
    ] = "kapla-edge",
    package: Annotated[
        str | None, typer.Option(help="What pip installs (default this version).")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a gate file, its schema, a workflow with its action, and so on; replace nothing."""
    from service.cli.explain import package_version
    from service.gate.setting_up import PARTS, set_up

    for part in parts or ():
        if part not in PARTS:
            raise typer.BadParameter(f"one of {', '.join(PARTS)}", param_hint="--for")
    named = package or f"tilewright=={package_version()}"
    texts = set_up(folder, parts or PARTS, named, branch, preset)
    there = [path for path in texts if (folder / path).exists()]
    if there:
        raise Failure(
            "TW-CLI-001", f"there is already {', '.join(there)}; nothing is written",
            remedy="Move it away, or choose with --for what is written.",
        )  # fmt: skip
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    if as_json:
        print_json({"files": list(texts)})
        return
    for path in texts:
        print_text(str(folder / path))
    note("next: look at tilewright.yaml, run `tilewright gate`, commit")


@app.command("comment")
def comment(
    text: Annotated[Path, typer.Argument(help="What --markdown wrote.")],
    number: Annotated[int, typer.Option(min=1, help="Of the pull or merge request.")],
    token: Annotated[
        str,
        typer.Option(
            envvar="TILEWRIGHT_COMMENT_TOKEN", help="May write comments.", show_default=False
        ),
    ],
    github: Annotated[
        str | None, typer.Option(help="A repository on GitHub.", metavar="OWNER/NAME")
    ] = None,
    gitlab: Annotated[
        str | None, typer.Option(help="A project on GitLab.", metavar="GROUP/NAME")
    ] = None,
    api: Annotated[
        str | None, typer.Option(help="Address of the API (default the public host's).")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Keep one comment at a pull request: written when there is something new to say, else left."""
    from service.gate.comment import GitHub, GitLab, Thread, keep_comment

    if (github is None) == (gitlab is None):
        raise typer.BadParameter("give one of the two", param_hint="--github, --gitlab")
    thread: Thread
    if github is not None:
        thread = GitHub(api or "https://api.github.com", github, number, token)
    else:
        thread = GitLab(api or "https://gitlab.com/api/v4", str(gitlab), number, token)
    try:
        done = keep_comment(thread, text.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Failure("TW-CLI-001", f"{text}: {error}") from error
    if as_json:
        print_json({"comment": str(done)})
    else:
        print_text(f"comment {done}")

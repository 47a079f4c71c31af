"""stdout carries data, stderr chatter; both plain when they are not a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from service.text import one_line

TIMES = frozenset({"created", "started", "finished", "cancel_requested", "last_used", "expires"})
"""Fields that hold seconds since the epoch."""
SHOWN_FINDINGS = 50
"""A terminal shows this many findings of one failure; the JSON document has all."""
_LEAST_COLUMNS = 8
"""What the last column of a one-line table keeps on the narrowest terminal."""
_JSON_KEY = "tilewright.json"


def _remember(context: typer.Context, value: bool) -> bool:
    context.meta[_JSON_KEY] = value
    return value


JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print the API's JSON on stdout.", callback=_remember)
]


def wants_json(context: typer.Context) -> bool:
    """Say whether the verb that ran under this context was given --json."""
    return bool(context.meta.get(_JSON_KEY))


def print_json(document: object) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def print_json_line(document: object) -> None:
    """Write one JSON document as one line, for a stream of them."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def print_found(found: Any, show: Callable[[Any], None], *, as_json: bool) -> None:
    """Write what the API answered: as JSON, or as the verb shows it."""
    if as_json:
        print_json(found)
    else:
        show(found)


def print_items(
    rows: Sequence[Mapping[str, object]],
    columns: Sequence[str],
    shown: Callable[[Any], Mapping[str, object]] = lambda row: row,
    *,
    as_json: bool,
    titles: Mapping[str, str] | None = None,
) -> None:
    """Write a list: as JSON as it came, or as a table of what `shown` makes of its rows."""
    if as_json:
        print_json({"items": rows})
    else:
        print_table(columns, [shown(row) for row in rows], titles)


def print_text(text: str) -> None:
    """Write text to stdout, ended by one newline."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Write one line of chatter to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def is_interactive() -> bool:
    """Say whether chatter may move the cursor."""
    return sys.stderr.isatty()


def cell(value: object) -> str:
    """Show one value of a table: null as a dash, floats short, containers as JSON."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case int():
            return f"{value:,}" if abs(value) >= 10_000 else str(value)
        case dict() | list() | tuple():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return str(value)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Mapping[str, object]],
    titles: Mapping[str, str] | None = None,
) -> None:
    """Print rows: tab-separated lines into a pipe, a Rich table on a terminal.

    With `titles` a terminal shows those columns only, under these names, each row on one line: what
    is too long for it loses its end, in the last column first.
    """
    if not sys.stdout.isatty():
        print_text("\t".join(columns))
        for row in rows:
            print_text("\t".join(one_line(cell(row.get(name))) for name in columns))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    shown = titles or {name: name for name in columns}
    cells = [[one_line(cell(row.get(name))) for name in shown] for row in rows]
    if titles:
        room = _widths([max(map(len, c)) for c in zip(titles.values(), *cells, strict=True)],
                       console.width)  # fmt: skip
        cells = [[_shortened(text, n) for text, n in zip(r, room, strict=True)] for r in cells]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in shown.values():
        table.add_column(name, overflow="fold")
    for texts in cells:
        # Text, not str: names from a user's model must not be read as markup.
        table.add_row(*map(Text, texts))
    console.print(table)


def _widths(wanted: list[int], width: int) -> list[int]:
    """Columns cut to a terminal: the last gives way first, then the widest but the first."""
    widths = list(wanted)
    while sum(widths) + 2 * len(widths) > width and max(widths[1:]) > _LEAST_COLUMNS:
        inner = max(range(1, len(widths)), key=widths.__getitem__)
        widths[-1 if widths[-1] > _LEAST_COLUMNS else inner] -= 1
    return widths


def _shortened(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"


def print_fields(document: Mapping[str, object], names: Sequence[str]) -> None:
    """Print `name: value` lines, aligned."""
    shown = [(name, document[name]) for name in names if name in document]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        text = moment(value) if name in TIMES else cell(value)
        print_text(f"{name + ':':<{width + 2}}{one_line(text)}")


def moment(value: object) -> str:
    """Show seconds since the epoch as local time, anything else as a cell."""
    if not isinstance(value, float):
        return cell(value)
    local = datetime.fromtimestamp(value, tz=UTC).astimezone()
    return local.isoformat(sep=" ", timespec="seconds")


def print_problem(problem: Mapping[str, object]) -> None:
    """Explain a failure on stderr: what, where, limit against actual, every finding, what to do."""
    code, title = problem.get("code", "?"), problem.get("title", "error")
    note(f"error {code}: {one_line(str(title))}")
    detail = problem.get("detail")
    if detail and detail != title:
        note(f"  {one_line(str(detail))}")
    for name in ("stage", "node", "pointer", "attribute", "limit", "actual"):
        if problem.get(name) not in (None, "", []):
            note(f"  {name}: {one_line(cell(problem[name]))}")
    findings = problem.get("errors")
    findings = findings if isinstance(findings, list) else []
    for finding in findings[:SHOWN_FINDINGS]:
        if isinstance(finding, dict):
            where = finding.get("pointer") or finding.get("node") or ""
            note(f"  - {where}: {one_line(str(finding.get('message', '')))}")
            if finding.get("allowed") is not None:
                note(f"      allowed {cell(finding['allowed'])}, got {cell(finding.get('actual'))}")
    if len(findings) > SHOWN_FINDINGS:
        note(f"  ... and {len(findings) - SHOWN_FINDINGS} more; --json lists all")
    hints = problem.get("hints")
    for hint in hints if isinstance(hints, list) else []:
        note(f"  hint: {one_line(str(hint))}")

"""`certify`: whether what schedules claim to be proven holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.asking import asked
from service.cli.output import JsonFlag, cell, print_json, print_table, print_text
from service.cli.sources import bundle_of

BROKEN = 1
"""Exit status where a certificate does not hold."""


def certify(
    source: Annotated[
        Path, typer.Argument(metavar="BUNDLE|FOLDER", help="A *.twb bundle, or a job's folder.")
    ],
    as_json: JsonFlag = False,
) -> None:
    """Check the certificates of a bundle's kernels: that nothing is better than their bounds.

    Small spaces of tilings are enumerated, of large ones a thousand are drawn, by plain code that
    shares nothing with the search but the prices.  Exit status 1: one does not hold.
    """
    path = bundle_of(source).resolve()
    rows: list[dict[str, Any]] = asked(
        "worker.children.certify_child", {"source": str(path)}, [path], "check of certificates"
    )["items"]
    certified = [row for row in rows if row["certificate"] is not None]
    broken = [row for row in certified if not row["certificate"]["holds"]]
    if as_json:
        print_json({"items": rows})
    else:
        print_table(
            ("kernel", "node", "best", "bound", "gap", "tilings", "of", "least", "holds"),
            [_shown(row) for row in certified],
            {"tilings": "looked at", "least": "best of these"},
        )
        tilings = sum(row["certificate"]["checked_tilings"] for row in certified)
        print_text(
            f"\n{len(certified)} of {len(rows)} kernels have a certificate, {len(broken)} of which"
            f" do not hold; {cell(tilings)} tilings were looked at"
        )
    if broken:
        raise typer.Exit(BROKEN)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    found = row["certificate"]
    least = found["least"]
    return {
        "kernel": row["kernel"],
        "node": row["onnx_nodes"][0] if row["onnx_nodes"] else "",
        "best": round(found["best"]),
        "bound": round(found["bound"]),
        "gap": None if found["gap"] is None else f"{found['gap']:.2%}",
        "tilings": found["checked_tilings"],
        "of": "all" if found["is_whole"] else "a sample",
        "least": None if least is None else round(least),
        "holds": found["holds"],
    }

"""Tables of the page: values of the report as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from worker.compiler.errors import Detail


def html_cell(value: Detail) -> str:
    """One `<td>`: null is empty, numbers are right-aligned, text is escaped."""
    if value is None:
        return "<td></td>"
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, int):
        return f'<td class="n">{value:,}</td>'
    if isinstance(value, float):
        return f'<td class="n">{value:,.4g}</td>'
    if isinstance(value, list | tuple):  # a strategy's own rows may have either
        return f"<td>{escape(', '.join(map(str, value)))}</td>"
    return f"<td>{escape(str(value))}</td>"


def html_table(columns: Sequence[str], rows: Sequence[Mapping[str, Detail]]) -> str:
    """A scrolling table of `columns`; what a row lacks is an empty cell."""
    head = "".join(f"<th>{escape(c)}</th>" for c in columns)
    body = "".join(
        "<tr>" + "".join(html_cell(row.get(c)) for c in columns) + "</tr>" for row in rows
    )
    return f'<div class="scroll" tabindex="0"><table><tr>{head}</tr>{body}</table></div>'


def rows_of(document: Mapping[str, Detail], key: str) -> list[dict[str, Detail]]:
    """The objects of a list in `document`; empty where there is no such list."""
    value = document.get(key)
    return [r for r in value if isinstance(r, dict)] if isinstance(value, list) else []


def flat(document: Detail, prefix: str = "") -> list[dict[str, Detail]]:
    """Rows of `figure` and `value`, nested objects by dotted names."""
    rows: list[dict[str, Detail]] = []
    if isinstance(document, dict):
        for key, value in document.items():
            if isinstance(value, dict):
                rows += flat(value, f"{prefix}{key}.")
            else:
                rows.append({"figure": prefix + key, "value": value})
    return rows

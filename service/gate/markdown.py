"""A verdict as the comment of a pull request: one that stays, and changes only when it has to.

Its first line is a mark that no reader sees: by it the comment is found again, and by the digest in
it, known to be the same.  Nothing in the text depends on commits or days, so that an equal verdict
is an equal comment.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256

from service.gate.verdict import Check, Compared, Finding, Result, State, Verdict, counted
from service.gate.words import change, percent
from service.text import one_line

MARK = "tilewright-gate"
_MOST_ROWS = 20
_MOST_CHARACTERS = 600
"""Of one sentence: hosts refuse long comments."""
_HEAD = ("| model | chip | latency | energy | what changed most |", "|---|---|---|---|---|")
_SPECIAL = re.compile(r"([\\`*_\[\]|#~])")
_SIGNS = {State.PASS: "✅", State.FAIL: "❌", State.NEUTRAL: "⚪"}


def markdown(verdict: Verdict) -> str:
    """Give the comment, its mark first."""
    body = "\n".join(_body(verdict)) + "\n"
    digest = sha256(body.encode("utf-8", "replace")).hexdigest()
    changed = "changed" if is_worth_telling(verdict) else "unchanged"
    return f"<!-- {MARK} {escaped_file(verdict.file)} {changed} {digest} -->\n{body}"


def escaped_file(path: str) -> str:
    """A path that ends no comment of HTML and has no spaces."""
    return re.sub(r"[^A-Za-z0-9._/]", "_", path)


def is_worth_telling(verdict: Verdict) -> bool:
    """Whether there is more to say than that nothing changed."""
    is_told = verdict.of(Result.FAILED, Result.WARNED, Result.NEUTRAL, Result.WAIVED)
    is_told = is_told or [f for f in verdict.findings if f.check is Check.RULES]
    return bool(is_told) or any(not pair.is_same for pair in verdict.pairs)


def _body(verdict: Verdict) -> list[str]:
    word, _, said = verdict.first_line.partition(": ")
    lines = [f"### {_SIGNS[verdict.state]} {word} · tilewright gate", "", _text(said), ""]
    lines += _pair_table(verdict.pairs, verdict.base)
    for title, results in (
        ("Failed", (Result.FAILED,)),
        ("Warned", (Result.WARNED,)),
        ("Waived", (Result.WAIVED,)),
        ("Not told", (Result.NEUTRAL,)),
    ):
        lines += _list(title, verdict.of(*results), verdict)
    notes = verdict.of(Result.NOTED)
    if notes:
        lines += ["<details><summary>Notes</summary>", ""]
        lines += [f"- {_text(f.message)}" for f in notes[:_MOST_ROWS]]
        lines += [*_more(len(notes)), "", "</details>", ""]
    held = counted(len(verdict.of(Result.PASSED)), "check holds", "checks hold")
    lines.append(f"{held}. Figures are simulated: a difference is no noise.")
    return lines


def _pair_table(pairs: Sequence[Compared], base: str) -> list[str]:
    shown = [pair for pair in pairs if not pair.is_same]
    lines: list[str] = []
    if shown:
        lines += [f"Compared with {_text(base)}:", "", *_HEAD]
        lines += [
            f"| {_text(p.model)} | {_text(p.hardware)} |"
            f" {_moved(p.base_latency_ms, p.head_latency_ms, 'latency_ms')} |"
            f" {_moved(p.base_energy_mj, p.head_energy_mj, 'energy_mj')} |"
            f" {_text(p.cause if p.went_in or p.cause else p.headline)} |"
            for p in shown[:_MOST_ROWS]
        ]
        lines += [*_more(len(shown)), ""]
    if len(shown) < len(pairs):
        lines += [f"{len(pairs) - len(shown)} of {len(pairs)} pairs have the figures they had.", ""]
    went_in = Counter(sentence for pair in shown for sentence in pair.went_in)
    if went_in:
        lines += ["What differs:", ""]
        lines += [
            f"- {_text(sentence)} ({count} of {len(pairs)} pairs)"
            for sentence, count in list(went_in.items())[:_MOST_ROWS]
        ]
        lines += [*_more(len(went_in)), ""]
    return lines


def _moved(base: float | None, head: float | None, figure: str) -> str:
    if base is None or head is None:
        return "–" if head is None else change(head, head, figure).partition(" -> ")[2]
    if base == head:
        return "="
    return f"{change(base, head, figure)} ({percent(base, head)})"


def _list(title: str, findings: Sequence[Finding], verdict: Verdict) -> list[str]:
    if not findings:
        return []
    lines = [f"**{title}**", ""]
    for finding in findings[:_MOST_ROWS]:
        place = verdict.place_of(finding)
        lines.append(f"- {_text(finding.message)} ({_text(place.path)}:{place.line})")
    return [*lines, *_more(len(findings)), ""]


def _more(count: int) -> list[str]:
    return ["", f"… and {count - _MOST_ROWS} more."] if count > _MOST_ROWS else []


def _text(text: str) -> str:
    """Names of models and nodes are anybody's: no markup, no mention, no reference."""
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}…"
    escaped = _SPECIAL.sub(r"\\\1", one_line(text).replace("&", "&amp;"))
    return escaped.replace("<", "&lt;").replace("@", "&#64;").replace("://", ":&#47;&#47;")

"""Text of graphs, schedules and programs that somebody damaged is refused by its parser."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from corpus_files import CORPUS, body

from worker.compiler.errors import CompilerError
from worker.compiler.ir.parse import parse_graph
from worker.compiler.isa.text import parse_program
from worker.compiler.schedule.text import parse_schedule

PARSERS: dict[str, Callable[[str], object]] = {
    ".graph": parse_graph,
    ".schedule": parse_schedule,
    ".program": parse_program,
}
MUTANTS = 60
_WORD = re.compile(r"[A-Za-z_]+|-?\d+")
_STRANGE = ("-1", "9" * 30, "9" * 5000, "1e999", "", "nan", '"', "[", "Σ", "\x00", "co", "inf")


def mutant(text: str, rng: random.Random) -> str:
    """The text with one thing wrong."""
    lines = text.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            return text[: rng.randrange(len(text))]
        case 1:
            del lines[at]
        case 2:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case 3:
            lines[at] = "  " * rng.randrange(4000) + lines[at]
        case 4:
            place = rng.randrange(len(lines[at]))
            lines[at] = lines[at][:place] + lines[at][place + 1 :]
        case _:
            words = list(_WORD.finditer(lines[at]))
            if words:
                word = rng.choice(words)
                new = rng.choice((*_STRANGE, rng.choice(words).group()))
                lines[at] = lines[at][: word.start()] + new + lines[at][word.end() :]
    return "".join(lines)


@pytest.mark.parametrize(
    "path",
    sorted(path for path in CORPUS.iterdir() if path.suffix in PARSERS),
    ids=lambda path: path.name,
)
def test_damaged_text_is_refused_by_the_parser(path: Path) -> None:
    parse, text = PARSERS[path.suffix], body(path)
    parse(text)
    for seed in range(MUTANTS):
        damaged = mutant(text, random.Random(f"{path.name} {seed}"))
        try:
            parse(damaged)
        except CompilerError:
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {damaged[:2000]}") from error


@pytest.mark.parametrize("suffix", [".schedule"])
def test_a_tree_of_ten_thousand_levels_is_refused(suffix: str) -> None:
    path = next(p for p in sorted(CORPUS.iterdir()) if p.suffix == suffix)
    head, _, _ = body(path).partition("tree\n")
    tree = "".join("  " * k + f"loop parallel i{k} 1\n" for k in range(1, 10_001))
    with pytest.raises(CompilerError):
        PARSERS[suffix](f"{head}tree\n{tree}")

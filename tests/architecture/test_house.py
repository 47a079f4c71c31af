"""The house rules that generic linters cannot know."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.compiler.error_catalog import ERROR_CATALOG
from worker.compiler.rejection import ReasonCode

REPO = Path(__file__).resolve().parent.parent.parent
SOURCES = sorted(
    p
    for top in ("tilewright", "service", "worker", "migrations")
    for p in (REPO / top).rglob("*.py")
)


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in SOURCES:
        yield path, ast.parse(path.read_text())


def test_no_file_is_more_than_one_idea() -> None:
    lengths = {p: len(p.read_text().splitlines()) for p in SOURCES}
    assert len(lengths) > 50
    too_long = {str(p.relative_to(REPO)): n for p, n in lengths.items() if n > 500}
    assert not too_long
    ordered = sorted(n for n in lengths.values() if n > 0)
    assert ordered[len(ordered) // 2] <= 200


def test_no_rooms_without_a_name() -> None:
    banned = {"utils.py", "helpers.py", "common.py", "misc.py"}
    assert not [p for p in SOURCES if p.name in banned]


def test_every_package_of_the_compiler_says_what_it_does() -> None:
    silent = [
        str(p.relative_to(REPO))
        for p, tree in modules()
        if p.name == "__init__.py" and "compiler" in p.parts and ast.get_docstring(tree) is None
    ]
    assert not silent


def test_error_codes_in_the_source_are_in_the_catalogue() -> None:
    used: dict[str, str] = {}
    for path in SOURCES:
        for code in re.findall(r"\bTW-[A-Z]+-\d{3}\b", path.read_text()):
            used.setdefault(code, str(path.relative_to(REPO)))
    unknown = {code: where for code, where in used.items() if code not in ERROR_CATALOG}
    assert not unknown


@pytest.mark.parametrize("entry", ERROR_CATALOG.values(), ids=lambda e: e.code)
def test_every_error_has_a_remedy_and_a_contract_exit_code(entry: object) -> None:
    assert entry.remedy.endswith(".")  # type: ignore[attr-defined]
    assert entry.exit_code in {2, 3, 4, 5, 6, 7}  # type: ignore[attr-defined]
    assert 400 <= entry.status < 600  # type: ignore[attr-defined]


def test_reason_codes_are_their_own_names() -> None:
    assert all(str(code) == code.name for code in ReasonCode)


def test_pure_rooms_read_no_clock_environment_or_global_random() -> None:
    banned = re.compile(
        r"\b(time\.(time|monotonic|perf_counter)\(|os\.environ|os\.getenv|random\.(random|randint)"
        r"|np\.random\.(rand|seed)|pickle\.|datetime\.now)"
    )
    guilty = {
        str(p.relative_to(REPO)): found.group(0)
        for p in SOURCES
        if ("compiler" in p.parts or "simulator" in p.parts)
        and (found := banned.search(p.read_text()))
    }
    assert not guilty


def test_the_environment_is_read_in_settings_only() -> None:
    guilty = [
        str(p.relative_to(REPO))
        for p in SOURCES
        if p.name != "settings.py"
        # handing the whole environment on to a child process reads nothing from it
        and re.search(r"(?<!\{\*\*)\bos\.(environ|getenv)\b", p.read_text())
        and "supervisor" not in p.name
    ]
    assert not guilty


def test_readme_shows_exactly_two_set_up_commands() -> None:
    readme = (REPO / "README.md").read_text()
    assert re.findall(r"^    (pip install .*)$", readme, re.MULTILINE) == [
        "pip install . && tilewright demo",
        "pip install '.[test]' && pytest",
    ]


def test_readme_links_resolve() -> None:
    readme = (REPO / "README.md").read_text()
    targets = re.findall(r"\]\(([^)#:]+)\)", readme)
    assert targets
    assert not [t for t in targets if not (REPO / t).exists()]


def test_no_committed_text_names_a_machine_path_or_a_registry() -> None:
    needle = re.compile(
        "/" + r"work/(main|shared|\.library)|/" + "opt/tw|pypi" + r"\.org|npm" + "js"
    )
    guilty = []
    for pattern in ("**/*.py", "**/*.md", "**/*.yaml", "**/*.yml", "**/*.toml", "Dockerfile"):
        for path in REPO.glob(pattern):
            parts = path.relative_to(REPO).parts
            if any(part.startswith(".") or part in ("build", "venv") for part in parts):
                continue
            if needle.search(path.read_text()):
                guilty.append(str(path.relative_to(REPO)))
    assert not guilty

"""The guide is built out of docs/ without a warning, and served as it was built."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from api_fixtures import Serve, Served, assert_problem

from worker.compiler.error_catalog import ERROR_CATALOG

REPO = Path(__file__).parents[2]
ROOT = "/docs/guide/"
CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `sphinx-build -W` makes of what the image is built from: a dead link is an error."""
    for name in ("furo", "myst_parser"):
        pytest.importorskip(name, reason="the extra `docs` is not installed")
    folder = tmp_path_factory.mktemp("guide")
    stage = (REPO / "Dockerfile").read_text().split(" AS guide\n")[1].split("\nFROM ")[0]
    for names in re.findall(r"^COPY (.*) \S+$", stage, re.MULTILINE):
        for name in names.split():
            (folder / name).parent.mkdir(exist_ok=True)
            copy = shutil.copytree if (REPO / name).is_dir() else shutil.copy
            copy(REPO / name, folder / name)
    (words,) = re.findall(r"sphinx-build (-W.*) /guide", stage)
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", *words.replace("/tmp", str(folder)).split(), "site"],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )  # fmt: skip
    assert (built.returncode, built.stderr) == (0, "")
    return folder / "site"


class Loaded(HTMLParser):
    """What a page loads by itself, and where its links lead."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "src" in given:
            self.loads.append(given["src"])
        if "href" in given:
            (self.links if tag == "a" else self.loads).append(given["href"])


def read(page: Path) -> Loaded:
    found = Loaded()
    found.feed(page.read_text(encoding="utf-8"))
    return found


def test_nothing_comes_from_elsewhere_and_every_link_leads_somewhere(site: Path) -> None:
    pages = sorted(site.glob("*.html"))
    assert len(pages) > 10
    for page in pages:
        found = read(page)
        assert found.loads
        for address in [*found.loads, *found.links]:
            parts = urlsplit(address)
            if parts.scheme == "data":
                continue
            if address in found.links and parts.netloc:
                continue  # a link is followed by who clicks it
            assert not parts.scheme, (page.name, address)
            assert not parts.netloc, (page.name, address)
            assert (site / (parts.path or page.name)).exists(), (page.name, address)
    for sheet in site.rglob("*.css"):
        addresses = re.findall(r"url\(\s*['\"]?([^)'\"]*)|@import\s+(\S+)", sheet.read_text())
        assert not [one for pair in addresses for one in pair if one and "data:" not in one[:5]]


def test_every_page_is_in_the_table_of_contents(site: Path) -> None:
    entries = {urlsplit(address).path for address in read(site / "index.html").links}
    assert {f"{page.stem}.html" for page in (REPO / "docs").glob("*.md")} <= entries | {
        "index.html"
    }


def plain(text: str) -> str:
    """What is read of a page, in one line."""
    return " ".join(unescape(re.sub(r"<[^>]+>", "", text)).split())


def test_every_error_code_has_its_meaning_and_remedy(site: Path) -> None:
    html = (site / "errors.html").read_text()
    assert len(ERROR_CATALOG) > 80
    for code, entry in ERROR_CATALOG.items():
        section = plain(html.split(f'<section id="{code.lower()}">')[1].split("</section>")[0])
        assert section.startswith(f"{code} {entry.title}.")
        assert " ".join(entry.remedy.replace("`", "").split()) in section
        assert f"HTTP {entry.status}" in section
        assert f"exit code {entry.exit_code}" in section


def test_every_route_and_type_is_on_the_page_of_the_api(site: Path, serve: Serve) -> None:
    document = serve(worker=False).http.get("/openapi.json").json()
    text = plain((site / "api.html").read_text())
    for path, methods in document["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in text
    for name, schema in document["components"]["schemas"].items():
        assert f'id="{name.lower()}"' in (site / "api.html").read_text()
        assert all(field in text for field in schema.get("properties", {}))


def test_it_is_served_as_it_was_built(site: Path, serve: Serve) -> None:
    http = serve(worker=False, guide_dir=site).http
    moved = http.get("/docs/guide")
    assert (moved.status_code, moved.headers["location"]) == (308, ROOT)
    assert http.get(ROOT).content == (site / "index.html").read_bytes()
    for path in site.rglob("*"):
        name = path.relative_to(site).as_posix()
        if not path.is_file() or name.startswith("."):
            continue
        body = path.read_bytes()
        answer = http.get(ROOT + name, params={"v": "1"})  # as Sphinx names its scripts
        assert (answer.status_code, answer.content) == (200, body), name
        etag = answer.headers["etag"]
        assert etag == f'"{sha256(body).hexdigest()}"'
        assert answer.headers["cache-control"] == "no-cache"
        head = http.head(ROOT + name)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(body))
        assert http.get(ROOT + name, headers={"If-None-Match": etag}).status_code == 304
    assert http.get(f"{ROOT}errors.html").headers["content-type"] == "text/html; charset=utf-8"
    assert http.get(f"{ROOT}searchindex.js").headers["content-type"].startswith("text/javascript")


def test_pages_may_run_what_stands_in_them_and_nothing_else(site: Path, serve: Serve) -> None:
    http = serve(worker=False, guide_dir=site).http
    policy = http.get(ROOT).headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert "unsafe-inline" not in policy
    assert "unsafe-eval" not in policy
    for kind in ("script-src", "style-src"):
        given = rules[kind].split()
        assert given[0] == "'self'"
        assert all(re.fullmatch(r"'sha256-[\w+/]{43}='", one) for one in given[1:])


@pytest.mark.parametrize(
    "name",
    ["nothing.html", "%2e%2e/index.md", "..%2findex.md", ".buildinfo", "_static", "x" * 600],
    ids=["unknown", "above", "escaped", "hidden", "folder", "long"],
)
def test_other_names_are_refused(name: str, site: Path, serve: Serve) -> None:
    answer = serve(worker=False, guide_dir=site).http.get(f"{ROOT}{name}")
    assert answer.status_code in {404, 422}
    assert_problem(answer, answer.status_code, answer.json()["code"])


def test_links_and_hidden_files_of_the_folder_are_not_served(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "secret").write_text("s")
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "index.html").write_text("<p>hello")
    (folder / ".hidden").write_text("h")
    (folder / "link.html").symlink_to(tmp_path / "secret")
    http = serve(worker=False, guide_dir=folder).http
    assert http.get(ROOT).text == "<p>hello"
    assert http.get(f"{ROOT}.hidden").status_code == 404
    assert http.get(f"{ROOT}link.html").status_code == 404


def test_without_a_site_the_route_says_how_to_build_it(tmp_path: Path, serve: Serve) -> None:
    served = serve(worker=False, guide_dir=tmp_path / "later")
    problem = assert_problem(served.http.get(ROOT), 404, "TW-SVC-001")
    (how,) = problem["hints"]
    assert "sphinx-build" in how
    assert "TILEWRIGHT_GUIDE_DIR" in how
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "index.html").write_text("<p>built")
    assert served.http.get(ROOT).text == "<p>built"
    assert_problem(serve(worker=False).http.get(ROOT), 404, "TW-SVC-001")


def test_it_needs_no_key(site: Path, serve: Serve) -> None:
    http = serve(worker=False, guide_dir=site, require_key=True).http
    assert http.get(ROOT).status_code == 200
    assert http.get("/docs/guides").status_code == 401


def browse(url: str, folder: Path) -> tuple[str, str]:
    """A page as a browser has it after its scripts ran, and what it complained of."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}",
         "--enable-logging=stderr", "--virtual-time-budget=8000", "--dump-dom", url],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stdout, "\n".join(re.findall(r"CONSOLE.*", done.stderr))


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
@pytest.mark.parametrize("page", ["index.html", "errors.html", "search.html?q=energy"])
def test_a_browser_is_refused_nothing(
    page: str, site: Path, serve: Callable[..., Served], tmp_path: Path
) -> None:
    served = serve(worker=False, guide_dir=site)
    text, complaints = browse(f"{served.url}{ROOT}{page}", tmp_path / "profile")
    assert complaints == ""
    assert 'data-theme="' in text  # the script in the page ran
    if "?" in page:
        assert "figures.html" in text.split('id="search-results"')[1]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_a_browser_complains_of_what_the_policy_forbids(tmp_path: Path, serve: Serve) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "index.html").write_text("<!doctype html><p onclick=x()>hello<img src=//127.0.0.2/x>")
    served = serve(worker=False, guide_dir=folder)
    _, complaints = browse(f"{served.url}{ROOT}", tmp_path / "profile")
    assert "Content Security Policy" in complaints

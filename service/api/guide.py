"""The built documentation: its files in memory, and what its pages may load and run.

The site is made by Sphinx out of `docs/`, not at run time: `TILEWRIGHT_GUIDE_DIR` names the folder.
"""

from __future__ import annotations

import mimetypes
import threading
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
"""What the machine's own table may call otherwise."""
MOST_BYTES = 64 * 1024 * 1024
"""A folder with more than this is no guide: nothing of it is read."""


@dataclass(frozen=True, slots=True)
class GuideFile:
    """A file of the site."""

    body: bytes
    sha256: str
    media_type: str


@dataclass(frozen=True, slots=True)
class Guide:
    """A site as it lay in its folder when it was first asked for."""

    files: dict[str, GuideFile]
    """By path below the site's root, with `/`."""
    policy: str
    """Content-Security-Policy of all pages."""


class _Inline(HTMLParser):
    """Texts of pages that a browser runs or applies from within them."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: set[str] = set()
        self.styles: set[str] = set()
        self.attributes: set[str] = set()
        self._open: set[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if (style := given.get("style")) is not None:
            self.attributes.add(style)
        if tag == "script" and "src" not in given:
            self._open = self.scripts
        elif tag == "style":
            self._open = self.styles

    def handle_data(self, data: str) -> None:
        # Both elements hold raw text, which the parser gives in one piece.
        if self._open is not None:
            self._open.add(data)
            self._open = None

    def handle_endtag(self, tag: str) -> None:
        if tag in {"script", "style"}:
            self._open = None


def read_guide(folder: Path) -> Guide | None:
    """Read a built site; None where the folder holds none.

    Hidden files and whatever is no plain file inside the folder are left out.

    Cost: every byte of it is read and hashed, and its pages are parsed, once.
    """
    if not (folder / "index.html").is_file():
        return None
    root = folder.resolve()
    files: dict[str, GuideFile] = {}
    left = MOST_BYTES
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if any(part.startswith(".") for part in name.parts) or path.is_symlink():
            continue
        if not path.is_file():
            continue
        left -= path.stat().st_size
        if left < 0:
            return None
        body = path.read_bytes()
        kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0]
        files[name.as_posix()] = GuideFile(
            body, sha256(body).hexdigest(), kind or "application/octet-stream"
        )
    return Guide(files, _policy(f.body for name, f in files.items() if name.endswith(".html")))


class GuideFolder:
    """The folder of a setting, read when it is first asked for."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._read: Guide | None = None

    def get(self) -> Guide | None:
        """Give the site; None where there is none, which is looked for again the next time."""
        with self._lock:
            if self._read is None and self._folder is not None:
                self._read = read_guide(self._folder)
            return self._read


def _policy(pages: Iterable[bytes]) -> str:
    """Allow what comes from this server, and of what stands in the pages exactly that."""
    found = _Inline()
    for page in pages:
        found.feed(page.decode("utf-8"))
        found.close()
        found.reset()
    return "; ".join(
        [
            "default-src 'none'",
            " ".join(["script-src 'self'", *_hashes(found.scripts)]),
            " ".join(["style-src 'self'", *_hashes(found.styles)]),
            " ".join(["style-src-attr 'unsafe-hashes'", *_hashes(found.attributes)]),
            "img-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        ]
    )


def _hashes(texts: set[str]) -> list[str]:
    digests = (b64encode(sha256(text.encode()).digest()).decode() for text in sorted(texts))
    return [f"'sha256-{digest}'" for digest in digests]

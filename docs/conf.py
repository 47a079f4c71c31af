"""How Sphinx makes the site: `sphinx-build -W docs guide`, with the extra `docs` installed.

Nothing is loaded from elsewhere: no fonts, no scripts, no counters.  Pages on errors and on the API
are written here while the site is built, from the tables and the description that the product uses.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

from written import PAGES  # beside this file

project = "Tilewright"
extensions = ["myst_parser"]
myst_heading_anchors = 4
highlight_language = "none"
smartquotes = False  # two dashes of an option stay two
html_theme = "furo"
html_title = "Tilewright"
html_copy_source = False
html_use_index = False
html_permalinks = False
html_static_path = ["static"]
html_css_files = ["tables.css"]


def _write(app: Sphinx, page: str, source: list[str]) -> None:
    """Put what is made of the product behind what a page says by itself."""
    del app
    if page in PAGES:
        source[0] += "\n" + PAGES[page]()


def setup(app: Sphinx) -> None:
    """Sphinx's hook."""
    app.connect("source-read", _write)

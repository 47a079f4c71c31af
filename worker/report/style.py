"""How every page looks that is one file: no scripts, no requests, opens from a mail attachment."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape

from worker.report.cause_bars import STYLE as CAUSE_STYLE
from worker.report.mesh_map import STYLE as MESH_STYLE

_STYLE = """
:root{color-scheme:light dark;--paper:#fff;
--ink:#1b1f24;--dim:#667;--line:#d8dce2;--bar:#6aa0d8;--dark:#1f5fa8;
--bad:#b3261e;--ok:#1a7f37}
@media (prefers-color-scheme:dark){:root{--paper:#12151a;--ink:#e6e9ee;--dim:#a2abb8;
--line:#323a45;--bar:#4d88c6;--dark:#a9cdf5;--bad:#ff9d92;--ok:#6fce8c}}
body{font:14px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1180px;
margin:24px auto;padding:0 16px}
h1{font-size:22px}h2{font-size:17px;margin-top:32px;border-bottom:1px solid var(--line)}
table{border-collapse:collapse;width:100%;font-size:12.5px}
th,td{text-align:left;padding:3px 8px;border-bottom:1px solid var(--line);vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}.scroll{overflow:auto;max-height:560px}
svg{width:100%;height:auto}svg text{fill:var(--dim)}.grid{stroke:var(--line)}
.roof{stroke:var(--bad);stroke-dasharray:5 3}.bar{fill:var(--bar)}
.whisker{stroke:var(--dark)}.bound{fill:var(--dark)}
.dot{fill:var(--bar);fill-opacity:.65;stroke:var(--dark)}.dim{fill:var(--line)}.area{fill:var(--bar);fill-opacity:.6}
.least{stroke:var(--ink);stroke-width:1.2}.over{fill:transparent}
.bad{color:var(--bad);font-weight:600}.ok{color:var(--ok)}
"""


_SHEET = _STYLE + CAUSE_STYLE + MESH_STYLE
_DIGEST = b64encode(sha256(_SHEET.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'"
"""Nothing is loaded, no script runs, and of styles this sheet alone."""


def page_of(title: str, parts: Sequence[str]) -> str:
    """One page out of pieces of HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_SHEET}</style></head><body>"
        + "".join(parts)
        + "</body></html>\n"
    )

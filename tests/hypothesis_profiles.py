"""How many examples property tests try: a profile, named by TILEWRIGHT_TEST_EXAMPLES.

`default` is for every run of the suite and `ci` for .ci/run: both try the same examples each time,
so a run is repeatable and a failure is one for everybody.  `nightly` draws new ones every time, and
`python -m benchmarks.campaigns` runs it.  A test states no number of its own; one whose examples
compile or lower whole programs is marked `COSTLY` and tries a part of its profile's.
"""

from __future__ import annotations

import os

from hypothesis import settings

_EXAMPLES = {"default": 20, "ci": 30, "nightly": 500}
_COSTLY_SHARE = 5

for _name, _count in _EXAMPLES.items():
    settings.register_profile(
        _name, max_examples=_count, deadline=None, derandomize=_name != "nightly"
    )
settings.load_profile(os.environ.get("TILEWRIGHT_TEST_EXAMPLES", "default"))

COSTLY = settings(max_examples=settings().max_examples // _COSTLY_SHARE)
"""For tests whose single example takes tens of milliseconds or more."""

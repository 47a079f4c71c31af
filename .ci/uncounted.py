"""Choose the tests that run without coverage: what they tread others tread, in less time.

Coverage doubles the time of a test's own process (Python 3.11, C tracer).  After

    pytest --cov=tilewright --cov=service --cov=worker --cov-branch --cov-report= \
        --cov-context=test --durations=0 tests | tee LOG

`python .ci/uncounted.py LOG > NEW; mv NEW .ci/uncounted` takes test functions one by one, always
the one with most new branches a second (those of the compiler core three times, whose gate is the
closer one), until as many are trodden as KEPT says; what is left and takes a second or more is
printed: by function, or the file where none of it is taken.  What stands in `.ci/uncounted`, or is
new, stays as it is; begin with an empty one to choose anew.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterable
from heapq import heappop, heappush
from pathlib import Path

KEPT = 0.996
"""Share of what the tests tread that are counted now: 91.1 % of all and 92.8 of the core before,
for gates of 90 and 92."""
CORE, CORE_WEIGHT = "worker/compiler/", 3
_ROW = re.compile(r"\s*([\d.]+)s (?:call|setup|teardown)\s+(tests/\S+?::[^\s\[]+)")

Branch = tuple[int, int, int]


def seconds(log: Path) -> dict[str, float]:
    """Test function -> seconds, of the rows of --durations."""
    found: dict[str, float] = defaultdict(float)
    for line in log.read_text().splitlines():
        if row := _ROW.match(line):
            found[row[2]] += float(row[1])
    return found


def trodden(data: Path) -> tuple[dict[str, set[Branch]], set[int]]:
    """Test function -> branches (file number, from, to); and the numbers of the core's files.

    Under "" are those of what ran outside of tests: imports, mostly.
    """
    found: dict[str, set[Branch]] = defaultdict(set)
    with sqlite3.connect(data) as rows:
        core = {k for k, path in rows.execute("select id, path from file") if CORE in path}
        names = {
            k: re.split(r"[\[|]", name)[0] for k, name in rows.execute("select * from context")
        }
        for test, *branch in rows.execute("select context_id, file_id, fromno, tono from arc"):
            found[names[test]].add((branch[0], branch[1], branch[2]))
    return found, core


def counted(found: dict[str, set[Branch]], core: set[int], took: dict[str, float]) -> set[str]:
    """The functions whose branches make up KEPT of all."""

    def worth(branches: Iterable[Branch]) -> int:
        return sum(CORE_WEIGHT if file in core else 1 for file, _, _ in branches)

    have = found.pop("", set())
    wanted = KEPT * len(have.union(*found.values()))
    queue: list[tuple[float, str]] = []
    chosen: set[str] = set()
    for name in sorted(found):
        heappush(queue, (-worth(found[name]), name))
    while queue and len(have) < wanted:
        _, name = heappop(queue)
        found[name] -= have
        rate = worth(found[name]) / (took.get(name, 0.0) + 0.1)
        if queue and rate < -queue[0][0]:
            heappush(queue, (-rate, name))
            continue
        have |= found[name]
        chosen.add(name)
    return chosen


def main() -> None:
    took = seconds(Path(sys.argv[1]))
    found, core = trodden(Path(".coverage"))
    known = {name.partition("::")[0] for name in found}
    chosen = counted(found, core, took)
    kept = {name.partition("::")[0] for name in chosen}
    left = set(Path(".ci/uncounted").read_text().split())
    before = frozenset(left)
    for name, spent in took.items():
        file = name.partition("::")[0]
        if file not in before and file in known and name not in chosen and spent >= 1:
            left.add(name if file in kept else file)
    sys.stdout.write("".join(f"{name}\n" for name in sorted(left)))


if __name__ == "__main__":
    main()

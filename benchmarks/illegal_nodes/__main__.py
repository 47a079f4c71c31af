"""`python -m benchmarks.illegal_nodes`: is every illegal node refused at ingest, by its name?

Every case of ONNX's node tests is changed in one attribute or constant, each way `mutants` knows.
A mutant is illegal when one of `oracles` says so.  Printed: how many of those are refused at ingest
with the user's node, every one that is not, and every mutant that all oracles accept and we refuse.
`--op NAME` for one operator, `--every N` for each N-th case, `--jobs` processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.illegal_nodes.mutants import NODE, UNCHANGED, Mutant, base_of, mutants_of
from benchmarks.illegal_nodes.oracles import refused_by, runner_of
from benchmarks.onnx_coverage import Case, node_cases
from worker.compiler.errors import CompilerError
from worker.compiler.frontend.bind import bind, symbols_of
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.simplify import simplify
from worker.compiler.frontend.sizes import require_sizes

_MEMORY_BYTES = 3 << 30
_CPU_S = 60
KINDS = ("refused", "accepted", "internal", "no node", "crash")


@dataclass(frozen=True, slots=True)
class Row:
    """One mutant: what we said of it, and what the oracles did."""

    case: str
    op_type: str
    what: str
    ours: str
    """One of KINDS."""
    detail: str
    oracle: str
    """Who refuses it, and why; empty when nobody does."""

    @property
    def is_miss(self) -> bool:
        """Illegal and not refused by its node, or an internal error whatever it is."""
        return self.ours in ("internal", "crash") or bool(self.oracle and self.ours != "refused")

    @property
    def is_alarm(self) -> bool:
        """Refused though everybody else takes it."""
        return not self.oracle and self.what != UNCHANGED and self.ours in ("refused", "no node")


def ingest(mutant: Mutant, path: Path) -> tuple[str, str]:
    """(kind, words) of what reading the model gives."""
    path.write_bytes(mutant.model.SerializeToString())
    try:
        loaded = load_model(path, Limits())
        model = simplify(bind(loaded, dict.fromkeys(symbols_of(loaded), 3)))
        require_sizes(model, Limits())
    except CompilerError as error:
        said = f"{error.code} {error.message}"
        if error.code.startswith("TW-INT"):
            return "internal", said
        nodes = {error.place.node, *(f.node for f in error.findings)} - {None}
        return ("refused" if nodes == {NODE} else "no node"), said
    except Exception as error:  # whatever else comes out is the finding
        return "internal", f"{type(error).__name__}: {error}"
    return "accepted", ""


def rows_of(case: Case) -> Iterator[Row]:
    """All mutants of one case, judged in children that may crash; none of a case we refuse."""
    base = base_of(case)
    models = [base, *mutants_of(base)]
    done = 0
    while done < len(models):
        ours, oracles = _in_child(models, done)
        for mutant, (kind, detail), said in zip(models[done:], ours, oracles, strict=False):
            yield Row(case.name, case.op_type, mutant.what, kind, detail, said)
        if done == 0 and ours and ours[0][0] != "accepted":
            return
        done += len(oracles)
        if done < len(models):  # the child died, of us or of an oracle
            kind, detail = ours[-1] if len(ours) > len(oracles) else ("crash", "the child died")
            yield Row(case.name, case.op_type, models[done].what, kind, detail, "crash: it died")
            done += 1


def _in_child(models: Sequence[Mutant], skip: int) -> tuple[list[tuple[str, str]], list[str]]:
    """What we and the oracles say of the models from `skip` on, until the child dies."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _judge(models, skip, writer)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file.read().splitlines()]
    os.waitpid(pid, 0)
    return [(line[0], line[1]) for line in lines[::2]], [line[0] for line in lines[1::2]]


def _judge(models: Sequence[Mutant], skip: int, writer: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries warn there
    runner = runner_of(models[0])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutant.onnx"
        for mutant in models[skip:]:
            ours, detail = ingest(mutant, path)
            os.write(writer, (json.dumps([ours, detail[:300]]) + "\n").encode())
            oracle = refused_by(mutant, runner)
            os.write(writer, (json.dumps([oracle]) + "\n").encode())
            if ours != "accepted" and mutant.what == UNCHANGED:
                return


def shown(row: Row) -> str:
    """A line for a miss or an alarm, else nothing."""
    if row.is_miss:
        said = f"{row.detail} <- {row.oracle}"
        return f"MISS  {row.ours:8} {row.op_type} {row.case}: {row.what}: {said}\n"
    return f"ALARM {row.op_type} {row.case}: {row.what}: {row.detail}\n" if row.is_alarm else ""


def counts(rows: Sequence[Row]) -> str:
    """The last lines: how many, and how they ended."""
    illegal = Counter(r.ours for r in rows if r.oracle)
    legal = Counter(r.ours for r in rows if not r.oracle)
    skipped = sum(r.what == UNCHANGED and r.ours != "accepted" for r in rows)
    return (
        f"{skipped} cases are refused unchanged\n"
        f"{len(rows)} models of {len({r.case for r in rows})} cases\n"
        f"illegal: {', '.join(f'{illegal[k]} {k}' for k in KINDS)}\n"
        f"others:  {', '.join(f'{legal[k]} {k}' for k in KINDS)}\n"
    )


def judged(cases: Sequence[Case], jobs: int) -> Iterator[Row]:
    """The rows of all cases, in their order."""
    if jobs == 1:
        for case in cases:
            yield from rows_of(case)
        return
    with get_context("fork").Pool(jobs) as pool:
        for rows in pool.imap(_listed, cases, chunksize=2):
            yield from rows


def _listed(case: Case) -> list[Row]:
    return list(rows_of(case))


def main(argv: list[str] | None = None) -> int:
    """Run the command; exit 1 when there is a miss."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.illegal_nodes")
    parser.add_argument("--op", help="cases of one operator only")
    parser.add_argument("--every", type=int, default=1, help="each N-th case only")
    parser.add_argument("--jobs", type=int, default=1, help="children at a time")
    args = parser.parse_args(argv)
    cases = [c for c in node_cases() if args.op in (None, c.op_type)][:: args.every]
    rows = []
    for row in judged(cases, args.jobs):
        rows.append(row)
        sys.stdout.write(shown(row))
        sys.stdout.flush()
    sys.stdout.write(counts(rows))
    return int(any(r.is_miss for r in rows))


if __name__ == "__main__":
    sys.exit(main())

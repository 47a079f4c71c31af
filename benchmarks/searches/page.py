"""What the searches found, as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

from benchmarks.searches.problem import Ran
from worker.compiler.options import Objective
from worker.compiler.tiling.nest.branch_bound import NEAR

SMALL = "small "
"""What names of small operators begin with."""
SLACK = 1e-9
"""What sums in another order may be off by."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One problem."""

    operator: str
    preset: str
    memories: str
    objective: Objective
    ours: Ran
    rivals: Mapping[str, Ran | None]
    """By name; None: it does not take the problem."""
    lesser: Mapping[str, Ran | None]
    """The same with lesser budgets, by `name at budget`."""
    everywhere: float | None
    """The best of `naive`'s in all its spaces; None: no rival was better in this one."""

    def ratio(self, name: str) -> float | None:
        """Score of a rival's over that of ours; None: it has none."""
        run = self.rivals.get(name) or self.lesser.get(name)
        return None if run is None or run.score is None else run.score / self.best

    @property
    def best(self) -> float:
        """Score of ours."""
        assert self.ours.score is not None, "the problem has a tiling that fits"
        return self.ours.score

    @property
    def is_small(self) -> bool:
        """Whether its space may be looked at as a whole: means leave it out."""
        return self.operator.startswith(SMALL)


def faults(cells: Sequence[Cell]) -> list[str]:
    """Tilings that are better than what is proven of all."""
    return [
        f"{cell.operator} on {cell.preset}: {name} {run.score} is below {cell.ours.outcome.bound}"
        for cell in cells
        for name, run in cell.rivals.items()
        if run is not None and run.score is not None
        and run.score < cell.ours.outcome.bound * (1 - SLACK)
    ]  # fmt: skip


def page(cells: Sequence[Cell]) -> str:
    """All tables."""
    rivals = list(cells[0].rivals)
    large = [cell for cell in cells if not cell.is_small]
    blocks = [
        "## Better than ours\n\n" + _better(cells),
        "## Geometric means\n\n" + _means(large, rivals),
        "## Lesser budgets\n\n" + _budgets(large),
        "## Small spaces, looked at one by one\n\n" + _small(cells),
        "## Every problem\n\n" + _every(cells, rivals),
    ]
    return "\n\n".join(blocks) + "\n"


def _table(head: Sequence[str], rows: Iterator[list[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _better(cells: Sequence[Cell]) -> str:
    """Rivals that found less than ours by more than branch and bound looks for."""

    def rows() -> Iterator[list[str]]:
        for cell in cells:
            for name in cell.rivals:
                ratio = cell.ratio(name)
                if ratio is not None and ratio * NEAR < 1:
                    assert cell.everywhere is not None
                    whole = cell.best * ratio / cell.everywhere
                    gap = cell.best / cell.ours.outcome.bound - 1
                    yield [cell.operator, cell.preset, cell.memories, name, f"{ratio:.3f}",
                           f"{gap:.3f}", f"{whole:.3f}"]  # fmt: skip

    found = list(rows())
    near = sum(
        1 for cell in cells for name in cell.rivals
        if (ratio := cell.ratio(name)) is not None and ratio * NEAR >= 1 and ratio < 1 - SLACK
    )  # fmt: skip
    head = ("operator", "preset", "memories", "search", "over ours", "our gap", "over every space")
    text = _table(head, iter(found)) if found else "None."
    return f"{text}\n\nBetter by no more than {NEAR - 1:.3f}, which ours does not look for: {near}."


def _means(cells: Sequence[Cell], rivals: Sequence[str]) -> str:
    """By preset: the mean, the least and the most of a rival's score over that of ours."""

    def rows() -> Iterator[list[str]]:
        groups: dict[str, list[Cell]] = {}
        for cell in cells:
            by = "" if cell.objective is Objective.LATENCY else f", {cell.objective}"
            groups.setdefault(cell.preset + by, []).append(cell)
        latency = [cell for cell in cells if cell.objective is Objective.LATENCY]
        for name, group in (*groups.items(), ("all, by latency", latency)):
            if not group:
                continue
            gaps = [cell.best / cell.ours.outcome.bound for cell in group]
            row = [name, str(len(group)), f"{_mean(gaps) - 1:.3f}"]
            for rival in rivals:
                ratios = [r for cell in group if (r := cell.ratio(rival)) is not None]
                none = len(group) - len(ratios)
                said = f"{_mean(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}"
                spent = sum(run.seconds for cell in group if (run := cell.rivals[rival]))
                times = spent / sum(cell.ours.seconds for cell in group)
                row.append(
                    f"{said}{f', none {none}' * bool(none)}), {times:.1f}x" if ratios else ""
                )
            yield row

    rivals = [name for name in rivals if name != "every"]
    return _table(("preset", "problems", "our gap", *rivals), rows())


def _budgets(cells: Sequence[Cell]) -> str:
    """By cycles: the same of rivals that were given less to price."""
    latency = [cell for cell in cells if cell.objective is Objective.LATENCY]

    def rows() -> Iterator[list[str]]:
        for name in latency[0].lesser if latency else ():
            ratios = [r for cell in latency if (r := cell.ratio(name)) is not None]
            spent = sum(run.seconds for cell in latency if (run := cell.lesser[name]))
            times = spent / sum(cell.ours.seconds for cell in latency)
            if ratios:
                yield [name, f"{_mean(ratios):.3f}", f"{min(ratios):.3f}", f"{max(ratios):.3f}",
                       str(len(latency) - len(ratios)), f"{times:.1f}"]  # fmt: skip

    return _table(("search", "mean", "least", "most", "none", "CPU over ours"), rows())


def _small(cells: Sequence[Cell]) -> str:
    """The optimum beside what searches found."""

    def rows() -> Iterator[list[str]]:
        for cell in cells:
            optimum = cell.ratio("every")
            run = cell.rivals.get("every")
            if optimum is None or run is None:
                continue
            ratios = [(name, cell.ratio(name)) for name in cell.rivals if name != "every"]
            yield [cell.operator, cell.preset, f"{run.tilings:,}", f"{1 / optimum:.4f}"] + [
                "none" if ratio is None else f"{ratio / optimum:.4f}" for _, ratio in ratios
            ]

    names = [name for name in cells[0].rivals if name != "every"]
    return _table(("operator", "preset", "tilings", "ours", *names), rows())


def _every(cells: Sequence[Cell], rivals: Sequence[str]) -> str:
    def rows() -> Iterator[list[str]]:
        for cell in cells:
            ours, bound = cell.ours, cell.ours.outcome.bound
            row = [cell.operator, cell.preset, cell.memories, _cost(cell, cell.best),
                   _cost(cell, bound), f"{cell.best / bound - 1:.3f}", f"{ours.tilings:,}",
                   f"{ours.seconds:.2f}"]  # fmt: skip
            for name in rivals:
                run, ratio = cell.rivals[name], cell.ratio(name)
                if run is None:
                    row.append("")
                    continue
                said = "none" if ratio is None else f"{ratio:.3f}"
                row.append(f"{said} ({run.tilings:,}; {run.seconds / ours.seconds:.1f}x)")
            yield row

    head = ("operator", "preset", "memories", "ours", "bound", "gap", "priced", "CPU s", *rivals)
    return _table(head, rows())


def _cost(cell: Cell, cost: float) -> str:
    """In cycles or nanojoules."""
    return f"{cost:,.0f}" if cell.objective is Objective.LATENCY else f"{cost / 1e3:,.0f} nJ"


def _mean(ratios: Sequence[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))

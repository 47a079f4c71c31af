"""Tables 1 to 5 and the ablation as markdown: what the paper prints beside what we simulate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.papers.graphturbo_paper import (
    ASTITCH_MEAN,
    GPU,
    KNEE,
    ROWS,
    SPEEDUP_KNOWN,
    SPEEDUP_MEAN,
    STEP_MEANS,
)
from benchmarks.papers.graphturbo_results import Results, geomean, mean, ratio

_VARIANT = {"TVM": "layerwise", "GraphTurbo": "full"}


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}f}"


def pair(paper: float | None, ours: float | None, digits: int = 2) -> str:
    """`paper / ours`."""
    left = "-" if paper is None else f"{paper:g}"
    return f"{left} / {number(ours, digits)}"


def table(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """A headed markdown table."""
    return [
        f"### {title}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns),
        *("| " + " | ".join(line) + " |" for line in lines), "",
    ]  # fmt: skip


def table_1(results: Results) -> list[str]:
    """BERT-128 by batch; both definitions of throughput (4-papers 1.5, A1)."""
    lines = []
    for row in KNEE:
        variant = _VARIANT.get(row.who)
        ms = results.batch_ms("B", variant, row.samples, row.batch) if variant else None
        lines.append((
            row.who, str(row.batch), f"{row.rounds} x {row.samples}",
            f"{row.throughput:g}", number(row.batch / row.latency_ms * 1e3, 0),
            number(None if ms is None else row.batch / ms * 1e3, 0),
            pair(row.latency_ms, ms),
        ))  # fmt: skip
    return table(
        f"Table 1: BERT-128 on {results.preset}",
        ("approach", "batch", "rounds x samples", "paper sent/s as printed",
         "paper batch / latency", "ours", "ms (paper / ours)"), lines,
    )  # fmt: skip


def table_2(results: Results) -> list[str]:
    """Speedups, throughputs, and samples per cluster."""
    lines: list[tuple[str, ...]] = []
    for row in ROWS:
        full, tvm = results.full(row), results.tvm(row)
        cell = results.cell(row.label, "full", row.samples)
        lines.append((
            row.label, row.name, str(row.batch),
            pair(row.tvm_samples, results.tvm_samples(row), 0),
            pair(row.samples, None if full is None else full[1], 0),
            "-" if cell is None else str(cell["picked"]),
            pair(row.tvm_throughput, None if tvm is None else row.batch / tvm * 1e3, 0),
            number(None if full is None else row.batch / full[0] * 1e3, 0),
            pair(SPEEDUP_KNOWN.get(row.label), results.speedup(row)),
            pair(None, results.over_astitch(row)),
            "-" if cell is None else f"{cell['mac_pct']:.1f}",
        ))  # fmt: skip
    lines += [_mean_line("mean", results, mean), _mean_line("geomean", results, geomean)]
    return table(
        f"Table 2 and Fig. 14: {results.preset} (paper / ours)",
        ("", "model", "batch", "n TVM", "n GraphTurbo", "strategy's own n x rounds", "TVM per s",
         "GraphTurbo per s", "GraphTurbo / TVM", "GraphTurbo / AStitch", "MACs offloaded %"), lines,
    )  # fmt: skip


def _mean_line(
    name: str, results: Results, average: Callable[[list[float]], float]
) -> tuple[str, ...]:
    speedups, astitch = results.every(results.speedup), results.every(results.over_astitch)
    paper = (SPEEDUP_MEAN, ASTITCH_MEAN) if name == "mean" else (None, None)
    return (
        "", name, *[""] * 6, pair(paper[0], None if speedups is None else average(speedups)),
        pair(paper[1], None if astitch is None else average(astitch)), "",
    )  # fmt: skip


def table_3(results: Results) -> list[str]:
    """Tensors by memory."""
    lines = []
    for row in ROWS:
        cell = results.cell(row.label, "full", row.samples)
        base = results.cell(row.label, "layerwise", row.tvm_samples)
        share = None if cell is None else lb_share(cell["scopes"])
        lines.append((
            row.label, row.name,
            f"{row.tvm_ddr}/0/0", "-" if base is None else _triple(base["scopes"]),
            "-" if row.crafted is None else _triple(row.crafted),
            _triple(row.scopes), "-" if cell is None else _triple(cell["scopes"]),
            f"{lb_share(row.scopes):.0f} / {number(share, 0)}",
        ))  # fmt: skip
    return table(
        f"Table 3: tensors in DDR/LLB/L1 on {results.preset}",
        ("", "model", "TVM, paper", "layerwise, ours", "crafted, paper", "GraphTurbo, paper",
         "GraphTurbo, ours", "L1 % (paper / ours)"), lines,
    )  # fmt: skip


def lb_share(scopes: Sequence[int]) -> float:
    """Percentage of tensors in the local buffers, of (home, global, local)."""
    return 100.0 * scopes[2] / max(1, sum(scopes))


def _triple(values: Sequence[int]) -> str:
    return "/".join(str(v) for v in values)


def table_4(results: Results) -> list[str]:
    """CPU seconds of compiling; theirs are of another machine and with LLVM: ratios compare."""
    lines = []
    for row in ROWS:
        found = [results.cell(row.label, v, row.samples) for v in ("layerwise", "astitch", "full")]
        ours = ["-" if cell is None else number(cell["compile_s"]) for cell in found]
        lines.append((
            row.label, row.name, _triple(row.compile_s), " / ".join(ours),
            pair(round(row.compile_s[2] / row.compile_s[0], 2), results.compile_ratio(row)),
        ))  # fmt: skip
    return table(
        f"Table 4: CPU seconds of compiling on {results.preset}",
        ("", "model", "paper TVM/AStitch/GraphTurbo", "ours", "GraphTurbo / TVM (paper / ours)"),
        lines,
    )  # fmt: skip


def ablation(results: Results) -> list[str]:
    """Fig. 15 as ratios of neighbours; the paper prints only their means."""
    names = ("v1 / TVM", "v2 / TVM", "v3 / v2", "full / v3", "layerwise, same samples")
    steps = {row.label: results.steps(row) for row in ROWS}
    lines = [
        (row.label, row.name, *(number(steps[row.label][name]) for name in names)) for row in ROWS
    ]
    for title, average in (("mean", mean), ("geomean", geomean)):
        line = []
        for name in names:
            values = results.step(name)
            paper = STEP_MEANS.get(name) if title == "mean" else None
            line.append(pair(paper, None if values is None else average(values)))
        lines.append(("", title, *line))
    return table(
        f"Ablation (Fig. 15) on {results.preset}",
        ("", "model", *(f"{name} gain" for name in names)), lines,
    )  # fmt: skip


def table_5(results: Results) -> list[str]:
    """ResNet18-Tailor on the A100."""
    lines = []
    for batch, (tvm, cutlass, turbo) in GPU.items():
        ours = results.gpu(batch)
        lines.append((
            str(batch), pair(tvm, ours["TVM"]), pair(cutlass, ours["CUTLASS"]),
            pair(turbo, ours["GraphTurbo"]), number(ours["uncapped"]),
            pair(round(tvm / turbo, 2), ratio(ours["TVM"], ours["GraphTurbo"])),
            pair(round(cutlass / turbo, 2), ratio(ours["CUTLASS"], ours["GraphTurbo"])),
        ))  # fmt: skip
    return table(
        "Table 5: ResNet18-Tailor on a100, ms (paper / ours)",
        ("batch", "TVM", "CUTLASS fusion", "GraphTurbo", "ours without the two-layer cap",
         "over TVM", "over CUTLASS"), lines,
    )  # fmt: skip

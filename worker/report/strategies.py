"""The `strategies` and `handed_over` sections: what was compared, what won, and why."""

from __future__ import annotations

from worker.compiler.descriptors import AUTO
from worker.compiler.errors import Detail
from worker.compiler.judge.compiled import CompiledModel, Program
from worker.compiler.options import CompileOptions
from worker.simulator.results import ModelSimulation


def strategies_section(
    compiled: CompiledModel, whole: ModelSimulation, options: CompileOptions
) -> list[Detail]:
    """A row for every program that was compared, the chosen one first.

    Figures are of whole simulated programs, host parts and launches included; null where a strategy
    has no program.
    """
    chosen: dict[str, Detail] = {
        "name": compiled.strategy,
        "chosen": True,
        "latency_cycles": whole.cycles,
        "energy_pj": whole.energy_pj,
        "offchip_bytes": whole.traffic[0].read_bytes + whole.traffic[0].write_bytes,
        "peak_bytes": compiled.home_bytes,
        "kernels": compiled.num_kernels,
        "reason": compiled.programs[0].reason if compiled.programs else _because(options),
    }
    return [chosen, *(_row(program) for program in compiled.programs[1:])]


def _row(program: Program) -> dict[str, Detail]:
    return {
        "name": program.name,
        "chosen": False,
        **figures_of(program),
        "kernels": program.kernels,
        "reason": program.reason,
    }


def figures_of(program: Program) -> dict[str, Detail]:
    """What a program takes; null where it could not be made."""
    figures = program.figures
    return {
        "latency_cycles": None if figures is None else figures.cycles,
        "energy_pj": None if figures is None else figures.energy_pj,
        "offchip_bytes": None if figures is None else figures.offchip_bytes,
        "peak_bytes": None if figures is None else figures.peak_bytes,
    }


def _because(options: CompileOptions) -> str:
    if options.strategy == AUTO:
        return "the only program there is"
    return "asked for by name"


def handed_section(compiled: CompiledModel) -> list[Detail]:
    """Operators that one strategy grouped and whose kernels are another's, with the reason."""
    return [
        {
            "onnx_nodes": list[Detail](row.nodes),
            "strategy": row.strategy,
            "to": row.to,
            "reason": row.why,
        }
        for row in compiled.handed
    ]

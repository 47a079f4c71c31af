"""`compile`: one model on one machine, as the command line does it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Unpack

from tilewright.options import Hardware, Model, Options, PathLike, order_of, settings_for
from tilewright.result import Result
from worker.compiler.errors import CompilerError
from worker.job.request import NoProgress, ProgressSink

if TYPE_CHECKING:
    from service.settings import Settings


def compile(  # noqa: A001 - users write tw.compile
    model: Model,
    hardware: Hardware,
    *,
    output: PathLike | None = None,
    data_dir: PathLike | None = None,
    progress: ProgressSink | None = None,
    **options: Unpack[Options],
) -> Result:
    """Compile a model for a machine, simulate it and check it against ONNX Runtime.

    It is what `tilewright compile --local` does, by the same code: the model is read and compiled
    in a child process in the sandbox (SECURITY.md), under the limits of TILEWRIGHT_* settings, and
    what was solved once is taken from the data directory's cache.  Interrupting ends the child.

    Example:
        >>> import tilewright as tw
        >>> result = tw.compile("model.onnx", "kapla-16x16", objective="energy", verify="none")
        >>> [row["chosen"] for row in result.strategies if row["reason"].startswith("least")]
        [True]

    Args:
        model: path of an .onnx file or of a .zip with external data, its bytes, or a `ModelProto`.
        hardware: name of a preset, path of a spec, a document, or a `Machine`.
        output: folder for the files; default a temporary one that lives as long as the result.
        data_dir: where the cache is; default TILEWRIGHT_DATA_DIR, else ~/.local/share/tilewright.
        progress: told of stages, units and files while they come.
        **options: strategy, strategy_options, variant, objective, effort, precision, partition,
            symbols, loop_trips, calibration, verify, inputs, link, seed, fail_on_fallback,
            require_cache, no_cache: see `Options`.

    Raises:
        OptionError: TW-OPT-001, an option does not exist or has no such value.
        ModelError, SpecError, InputError: the model, the hardware or a file is refused.
        Infeasible: something does not fit the machine.
        CompilerError: everything else, by its `code`; all of these are CompilerErrors.

    Cost: the child's imports (1 s) and the compile; seconds for the models of benchmarks/MODELS.md,
        less where the cache knows them.
    """
    from service.orders.here import compile_here

    settings = settings_for(data_dir)
    folder, temporary = results_folder(output)
    with TemporaryDirectory(prefix="tilewright-order-") as given:
        order = order_of(model, hardware, options, folder, Path(given))
        done = compile_here(order, settings, progress or NoProgress())
    return finished(done, folder, temporary, settings)


def results_folder(output: PathLike | None) -> tuple[Path, TemporaryDirectory[str] | None]:
    """The user's folder, or a temporary one, which goes when nothing refers to it any more."""
    if output is not None:
        return Path(output), None
    temporary = TemporaryDirectory(prefix="tilewright-")
    return Path(temporary.name), temporary


def finished(
    job: Mapping[str, Any],
    folder: Path,
    temporary: TemporaryDirectory[str] | None,
    settings: Settings,
) -> Result:
    """The result of a job document whose files are in `folder`.

    Raises:
        CompilerError: the job did not succeed; its class and code are those of the refusal.
    """
    from worker.sandbox.problems import error_of

    if job["state"] == "succeeded":
        return Result(folder, settings, temporary)
    problem = job.get("error")
    if isinstance(problem, Mapping):
        raise error_of(problem)
    code = "TW-SVC-008" if job["state"] == "timed_out" else "TW-SVC-007"
    raise CompilerError(code, f"the job ended as {job['state']}")

"""`mcp`: the verbs of this command line as tools of an agent, over the Model Context Protocol.

Each tool is one verb, run in a process of its own with `--json`: what it says and refuses is what a
person would get.  The official SDK speaks the protocol (`pip install 'tilewright[mcp]'`).
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.cli.connection import DataDirOption, ServerOption
from service.cli.failures import Failure

if TYPE_CHECKING:
    from asyncio.subprocess import Process

MOST_LAYERS = 100
_INSTRUCTIONS = """Compile ONNX models for deep-learning accelerators that a spec describes, and
find out why they take as long as they do. All figures are simulated and the same every time. Begin
with `presets` for chips and `compile`; `layers` says where the time goes, `explain_layer` why and
what would help, `diff` what a change did, `explore` which chip of a range is worth building."""

Document = dict[str, Any]
Tool = Callable[..., Awaitable[Document]]


class Refused(Exception):
    """A verb's own refusal: its problem document."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        super().__init__(json.dumps(problem))


class Verbs:
    """Runs verbs of the command line."""

    def __init__(self, server: str | None, data_dir: Path | None) -> None:
        self._server = () if server is None else ("--server", server)
        self._data = () if data_dir is None else ("--data-dir", str(data_dir))

    @property
    def is_served(self) -> bool:
        """Whether a server does the work."""
        return bool(self._server)

    async def run(self, *words: str, serves: bool = False, stores: bool = True) -> Document:
        """What a verb prints with `--json`.  When the caller is canceled, so is the verb.

        Args:
            serves: it may ask a server.
            stores: it takes a data directory.

        Raises:
            Refused: it ended with a problem.
        """
        import asyncio  # not for every other verb

        placed = (*words, *(self._server if serves else ()), *(self._data if stores else ()))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "service.cli.main", *placed, "--json",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            out, said = await process.communicate()
        except asyncio.CancelledError:
            await _end(process)
            raise
        try:
            document = json.loads(out)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            text = said.decode("utf-8", "replace").strip()
            raise Refused(Failure("TW-CLI-001", text[-2000:] or "no answer").to_problem())
        if process.returncode and "code" in document and "detail" in document:
            raise Refused(document)
        return document


async def _end(process: Process) -> None:
    """End a verb, and what it has started: it may clean up first.

    Who starts a program in the background lets it ignore Ctrl-C, and so what that starts.
    """
    import asyncio  # not for every other verb

    for number, seconds in ((signal.SIGINT, 5.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):  # it may have ended meanwhile
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), seconds)
            return


class Tools:
    """What an agent is offered; a method's text and types are the tool's description."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    async def presets(self) -> Document:
        """List the hardware presets: names for `hardware` elsewhere, with a sentence each."""
        found = await self._verbs.run("hardware", "ls", stores=False)
        rows = [{name: row[name] for name in ("name", "description")} for row in found["presets"]]
        return {"presets": rows}

    async def show_hardware(self, hardware: str) -> Document:
        """Give a preset or a spec file written out: memories, links, engines, with evidence."""
        return await self._verbs.run("hardware", "show", hardware, stores=False)

    async def lint_hardware(self, spec: str) -> Document:
        """Say everything that is wrong or doubtful about a hardware spec file."""
        return await self._verbs.run("hardware", "lint", spec, stores=False)

    async def preflight(
        self, model: str, hardware: str, symbols: dict[str, int] | None = None
    ) -> Document:
        """Say which operators of a model (.onnx, or .zip) would go to the host, and what does not
        fit, without compiling.  `symbols` binds symbolic dimensions."""
        words = ("preflight", model, "--hardware", hardware, *_set(symbols))
        return await self._verbs.run(*words, stores=False)

    async def compile(
        self, model: str, hardware: str, output: str, objective: str = "latency",
        strategy: str = "auto", precision: str = "native", effort: str = "normal",
        verify: str = "sample", symbols: dict[str, int] | None = None, label: str | None = None,
    ) -> Document:  # fmt: skip
        """Compile a model for a chip into the folder `output`: kernels, schedule, simulated run.

        Gives figures (cycles, seconds, picojoules, bytes), what they are bound by, the programs
        that competed, and insights.  `hardware` is a preset or a spec file; `objective` latency,
        energy, edp, offchip or peak_memory; `verify` none, sample or full.
        """
        job = await self._verbs.run(
            "compile", model, "--hardware", hardware, "-o", output, "--objective", objective,
            "--strategy", strategy, "--precision", precision, "--effort", effort,
            "--verify", verify, *_set(symbols), *(() if label is None else ("--label", label)),
            serves=True,
        )  # fmt: skip
        report = await self._verbs.run("report", output, stores=False)
        told = ("summary", "strategies", "insights", "warnings", "verification")
        return {
            "folder": output, "job": job.get("id"),
            **{name: report[name] for name in told if name in report},
        }  # fmt: skip

    async def layers(self, results: str, most: int = 20) -> Document:
        """Give the layers of a result that take the most cycles, with causes of every cycle.

        `results` is the folder of a compile, a bundle, or a job's id.
        """
        found = await self._verbs.run("layers", results, serves=True)
        rows = sorted(found["items"], key=lambda row: -(row.get("cycles_total") or 0))
        shown = rows[: max(1, min(most, MOST_LAYERS))]
        return {"items": shown, "left_out": len(rows) - len(shown)}

    async def explain_layer(self, results: str, layer: int, what_if: bool = True) -> Document:
        """Explain one layer: its loop nest with bytes at every level, who is to blame for its
        cycles, what else its strategy offers, and with `what_if` what twice as much of each
        resource would bring.  `layer` is `index` of `layers`; `results` a folder or a bundle."""
        flag = "--what-if" if what_if else "--no-what-if"
        return await self._verbs.run("explain", "layer", str(layer), results, flag, stores=False)

    async def explain_error(self, code: str) -> Document:
        """Say what an error code (TW-...) means and what to do about it."""
        return await self._verbs.run("explain", code, stores=False)

    async def diff(self, base: str, head: str) -> Document:
        """Compare two results: how figures and layers moved, and why (spec fields, model nodes,
        options, toolchain, decisions).  Each is a folder, a report.json, a bundle, a job's id or a
        label."""
        return await self._verbs.run("diff", base, head, serves=True)

    async def explore(
        self, model: str, hardware: str, vary: list[str], output: str, winners: int = 1,
        symbols: dict[str, int] | None = None,
    ) -> Document:  # fmt: skip
        """Estimate a model on every chip of a range and give the Pareto front of time, energy,
        on-chip bytes, area and off-chip bandwidth; winners are compiled and simulated.

        `vary` are FIELD=VALUES of the spec: `GBUF.capacity_bytes=64KiB,128KiB`, `x0.5,x2` of what
        it is, `16KiB..1MiB` doubled.  It goes on where it was stopped; with a server it is a sweep
        there, over all of its workers, whose id is told.
        """
        ranges = [word for one in vary for word in ("--vary", one)]
        words = (model, "--hardware", hardware, *ranges, "-o", output, "--winners", str(winners),
                 *_set(symbols))  # fmt: skip
        told: Document = {}
        if self._verbs.is_served:
            sweep = await self._verbs.run("sweep", *words, "--explore", serves=True)
            rows = [row for item in sweep["items"] for row in item["estimates"] if item["part"]]
            best = [item for item in sweep["items"] if not item["part"]]
            told = {"sweep": sweep["id"], "state": sweep["state"], "failures": sweep["failures"]}
        else:
            found = await self._verbs.run("explore", *words)
            rows, best = found["rows"], found["winners"]
        front = [row for row in rows if row["is_on_front"]]
        return {"front": front, "chips": len(rows), "winners": best, "folder": output, **told}


def _set(symbols: Mapping[str, int] | None) -> Sequence[str]:
    return [word for name, n in (symbols or {}).items() for word in ("--set", f"{name}={n}")]


OFFERED = (
    "presets", "show_hardware", "lint_hardware", "preflight", "compile", "layers", "explain_layer",
    "explain_error", "diff", "explore",
)  # fmt: skip
WRITING = frozenset({"compile", "explore"})
"""Those that write files; none changes what is there but the folder that it is given."""


def mcp(
    server: ServerOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Serve an agent on stdin and stdout by the Model Context Protocol.

    Its tools are verbs of this command line: presets, compile, layers, explain, diff, explore. They
    read and write files as whoever starts it; with --server compiles and explorations run there,
    with the API key of TILEWRIGHT_KEY.
    """
    try:
        sdk = importlib.import_module("mcp.server")
        errors = importlib.import_module("mcp.server.mcpserver.exceptions")
        types = importlib.import_module("mcp.types")
    except ImportError as error:
        raise Failure(
            "TW-CLI-004", f"the protocol's package is not installed: {error}",
            remedy="pip install 'tilewright[mcp]'",
        ) from error  # fmt: skip
    from service.cli.explain import package_version

    tools = Tools(Verbs(server, data_dir))
    host = sdk.MCPServer("tilewright", instructions=_INSTRUCTIONS, version=package_version())
    for name in OFFERED:
        hints = types.ToolAnnotations(
            read_only_hint=name not in WRITING, destructive_hint=False, idempotent_hint=True,
            open_world_hint=server is not None,
        )  # fmt: skip
        host.tool(annotations=hints)(_told(getattr(tools, name), errors.ToolError))
    host.run()


def _told(tool: Tool, error: type[Exception]) -> Tool:
    """The tool, with what it refuses as the protocol's own error, which agents see whole."""

    @wraps(tool)
    async def call(*args: Any, **values: Any) -> Document:
        try:
            return await tool(*args, **values)
        except Refused as refusal:
            raise error(str(refusal)) from refusal

    return call

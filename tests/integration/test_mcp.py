"""`tilewright mcp`: a real agent's client, over stdin and stdout."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from api_fixtures import Serve
from typer.testing import CliRunner

from service.cli.main import app
from service.cli.mcp import OFFERED, WRITING, Document, Tools, Verbs

with_protocol = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None,
    reason="the protocol's package is not installed (tilewright[mcp])",
)

CHIP = """\
schema_version: 1
name: mine
inherits: kapla-16x16
levels: [{name: GBUF, capacity_bytes: 262144}]
"""


def asked(folder: Path, ask: Callable[[Any], Awaitable[None]]) -> None:
    """Start the server, speak to it, and end it."""

    from mcp import Client, StdioServerParameters

    kept = {k: v for k, v in os.environ.items() if not k.startswith("TILEWRIGHT_")}
    started = StdioServerParameters(
        command=sys.executable,
        args=["-m", "service.cli.main", "mcp", "--data-dir", str(folder / "data")],
        env=kept, cwd=folder,
    )  # fmt: skip

    async def talk() -> None:
        async with Client(started) as client:
            await ask(client)

    asyncio.run(asyncio.wait_for(talk(), 300))


async def call(client: Any, tool: str, **values: Any) -> dict[str, Any]:
    """What a tool answers."""
    result = await client.call_tool(tool, values)
    assert not result.is_error, result.content
    document = json.loads(result.content[0].text)
    assert isinstance(document, dict)
    return document


async def refused(client: Any, tool: str, **values: Any) -> dict[str, Any]:
    """The problem that a tool answers with."""
    result = await client.call_tool(tool, values)
    assert result.is_error
    text = result.content[0].text
    document = json.loads(text[text.index("{") :])
    assert isinstance(document, dict)
    return document


@with_protocol
def test_tools_are_described(tmp_path: Path) -> None:
    async def ask(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == set(OFFERED)
        for name, tool in tools.items():
            assert len(tool.description) > 40
            assert tool.annotations.read_only_hint is (name not in WRITING)
        assert tools["compile"].input_schema["required"] == ["model", "hardware", "output"]

    asked(tmp_path, ask)
    assert all(hasattr(Tools, name) for name in OFFERED)


@with_protocol
def test_an_agent_works_through_a_chip(tmp_path: Path) -> None:
    """Compile, look, explain, compare; and refusals are problems."""
    (tmp_path / "mine.yaml").write_text(CHIP)
    assert CliRunner().invoke(app, ["model", "example", str(tmp_path / "m.onnx")]).exit_code == 0

    async def ask(client: Any) -> None:
        names = [row["name"] for row in (await call(client, "presets"))["presets"]]
        assert "kapla-16x16" in names
        assert (await call(client, "show_hardware", hardware="kapla-16x16"))["name"]
        assert "errors" in await call(client, "lint_hardware", spec="mine.yaml")
        assert await call(client, "preflight", model="m.onnx", hardware="mine.yaml")
        made = await call(
            client, "compile", model="m.onnx", hardware="mine.yaml", output="mine",
            verify="none", strategy="naive", effort="fast",
        )  # fmt: skip
        cycles = made["summary"]["latency_cycles"]
        layers = await call(client, "layers", results="mine", most=3)
        assert len(layers["items"]) == 3
        assert layers["left_out"] > 0
        taken = [row["cycles_total"] for row in layers["items"]]
        assert taken == sorted(taken, reverse=True)
        index = layers["items"][0]["index"]
        told = await call(client, "explain_layer", results="mine", layer=index, what_if=False)
        assert told["index"] == index
        same = await call(client, "diff", base="mine", head="mine")
        assert same["verdict"] == "same"
        assert same["base"]["latency_cycles"] == cycles
        problem = await refused(
            client, "compile", model="nothing.onnx", hardware="mine.yaml", output="x"
        )
        assert problem["code"] == "TW-CLI-001"
        problem = await refused(client, "compile", model="m.onnx", hardware="nochip", output="x")
        assert problem["code"].startswith("TW-")
        assert problem["hints"]
        assert (await call(client, "explain_error", code=problem["code"]))["remedy"]

    asked(tmp_path, ask)


def test_of_a_range_the_front_is_told() -> None:
    """And how many chips there were: a range may have thousands."""
    asked_for: list[str] = []

    class Told(Verbs):
        async def run(self, *words: str, serves: bool = False, stores: bool = True) -> Document:
            asked_for.extend(words)
            rows = [{"chip": k, "is_on_front": k % 3 == 0} for k in range(7)]
            return {"rows": rows, "winners": []}

    found = asyncio.run(
        Tools(Told(None, None)).explore("m", "h", ["A.x=1,2", "B.y=x2"], "out", 0, {"N": 4})
    )
    assert found == {
        "front": [{"chip": k, "is_on_front": True} for k in (0, 3, 6)], "chips": 7, "winners": [],
        "folder": "out",
    }  # fmt: skip
    assert asked_for == [
        "explore", "m", "--hardware", "h", "--vary", "A.x=1,2", "--vary", "B.y=x2", "-o", "out",
        "--winners", "0", "--set", "N=4",
    ]  # fmt: skip


def test_with_a_server_a_range_is_explored_there(serve: Serve, tmp_path: Path) -> None:
    """The front, and the winners, that the same command finds here."""
    served = serve("worker.job.job:run_job", memory_base_bytes=2 << 30)
    model = tmp_path / "m.onnx"
    assert CliRunner().invoke(app, ["model", "example", str(model)]).exit_code == 0
    vary = ["GBUF.capacity_bytes=16,16KiB..64KiB"]

    def told(server: str | None, data: Path | None, output: str) -> Document:
        tools = Tools(Verbs(server, data))
        asked_for = (str(model), "kapla-edge", vary, str(tmp_path / output), 1)
        return asyncio.run(asyncio.wait_for(tools.explore(*asked_for), 240))

    there, here = told(served.url, None, "there"), told(None, tmp_path / "data", "here")
    assert there["chips"] == here["chips"] == 4
    figures = [[row["latency_s"] for row in found["front"]] for found in (there, here)]
    assert sorted(figures[0]) == sorted(figures[1])
    assert there["state"] == "succeeded"
    assert there["failures"] == []
    (winner,) = there["winners"]
    assert winner["job"]
    assert served.client.sweep(there["sweep"])["label"] is None
    assert (tmp_path / "there" / "sweep.html").exists()


def test_a_canceled_tool_ends_its_verb(tmp_path: Path) -> None:
    """One that would run for ever: a server."""

    async def cancel() -> None:
        running = asyncio.create_task(Verbs(None, tmp_path).run("serve", "--port", "0"))
        while not (tmp_path / "tilewright.db").exists():
            assert not running.done(), running
            await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(asyncio.wait_for(cancel(), 90))
    left = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
    assert not [words for words in left if str(tmp_path) in words]


def test_a_canceled_tool_ends_where_nobody_listens_to_ctrl_c(tmp_path: Path) -> None:
    """As in a program that a shell has put in the background."""
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        test_a_canceled_tool_ends_its_verb(tmp_path)
    finally:
        signal.signal(signal.SIGINT, usual)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    result = CliRunner().invoke(app, ["mcp"])
    assert result.exit_code == 2
    assert "TW-CLI-004" in result.stderr
    assert "tilewright[mcp]" in result.stderr


def test_the_page_lists_the_tools() -> None:
    page = Path(__file__, "../../../docs/agents.md").resolve().read_text()
    assert tuple(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == OFFERED

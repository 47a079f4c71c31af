"""The one comment: created, found again, changed only with its text; on hosts that answer on
loopback as the real ones do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from typer.testing import CliRunner

from service.cli.main import app


def comment(digest: str, changed: str = "changed", file: str = "gate.yaml") -> str:
    return f"<!-- tilewright-gate {file} {changed} {digest} -->\n### verdict {digest}\n"


class Host:
    """Comments of one request, over HTTP."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str, str]] = []
        self.status = 200
        host = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                if url.path == "/user":
                    return self._answer({"id": 7})
                query = parse_qs(url.query)
                page, size = int(query["page"][0]), int(query["per_page"][0])
                return self._answer(host.rows[(page - 1) * size : page * size])

            def do_POST(self) -> None:
                body = self._body()
                host.rows.append({"id": len(host.rows) + 1, "body": body,
                                  "user": {"type": "Bot"}, "author": {"id": 7}})  # fmt: skip
                self._answer(host.rows[-1])

            def do_PATCH(self) -> None:
                number = int(self.path.rpartition("/")[2])
                host.rows[number - 1]["body"] = self._body()
                self._answer(host.rows[number - 1])

            def do_PUT(self) -> None:
                self.do_PATCH()

            def _body(self) -> str:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                return str(json.loads(data)["body"])

            def _answer(self, document: object) -> None:
                token = self.headers.get("Authorization") or self.headers.get("PRIVATE-TOKEN")
                path = unquote(urlsplit(self.path).path)
                host.requests.append((self.command, path, str(token)))
                data = json.dumps(document).encode()
                self.send_response(host.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *words: object) -> None:
                del words

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def written(self) -> list[str]:
        return [f"{method} {path}" for method, path, _ in self.requests if method != "GET"]


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()


def keep(host: Host, folder: Path, text: str, *where: str) -> Any:
    (folder / "gate.md").write_text(text)
    words = ["gate", "comment", str(folder / "gate.md"), "--number", "5", "--api", host.url, *where]
    return CliRunner().invoke(app, words, env={"TILEWRIGHT_COMMENT_TOKEN": "secret"})


SIDES = [
    (("--github", "team/npu"), "POST /repos/team/npu/issues/5/comments",
     "PATCH /repos/team/npu/issues/comments/1", "Bearer secret"),
    (("--gitlab", "team/npu"), "POST /projects/team/npu/merge_requests/5/notes",
     "PUT /projects/team/npu/merge_requests/5/notes/1", "secret"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "create", "update", "token"), SIDES)
def test_one_comment_that_changes_with_its_text(
    host: Host, tmp_path: Path, where: tuple[str, ...], create: str, update: str, token: str
) -> None:
    def done(text: str) -> str:
        result = keep(host, tmp_path, text, *where)
        assert result.exit_code == 0, result.output
        return str(result.stdout).strip()

    assert done(comment("1" * 64, "unchanged")) == "comment left out"
    assert host.written() == []
    assert done(comment("2" * 64)) == "comment created"
    assert done(comment("2" * 64)) == "comment kept"
    assert done(comment("3" * 64)) == "comment updated"
    assert done(comment("4" * 64, "unchanged")) == "comment updated"  # what it said is over
    assert host.written() == [create, update, update]
    assert [row["body"] for row in host.rows] == [comment("4" * 64, "unchanged")]
    assert {sent for _, _, sent in host.requests} == {token}


def test_others_comments_are_left_alone(host: Host, tmp_path: Path) -> None:
    host.rows = [
        {"id": k + 1, "body": "hello", "user": {"type": "User"}, "author": {"id": 1}}
        for k in range(150)
    ]  # fmt: skip
    host.rows[3]["body"] = comment("9" * 64)  # a person who copied the mark
    host.rows[4].update(body=comment("9" * 64, file="other.yaml"), user={"type": "Bot"})
    assert keep(host, tmp_path, comment("1" * 64), *SIDES[0][0]).stdout == "comment created\n"
    assert keep(host, tmp_path, comment("2" * 64), *SIDES[0][0]).stdout == "comment updated\n"
    assert host.written()[-1].endswith("/comments/151")  # found on the second page


def test_what_goes_wrong_is_explained(host: Host, tmp_path: Path) -> None:
    host.status = 403
    result = keep(host, tmp_path, comment("1" * 64), *SIDES[0][0])
    assert result.exit_code == 5
    assert "TW-GATE-003" in result.stderr
    assert "403" in result.stderr
    assert "secret" not in result.output
    host.status = 200
    assert keep(host, tmp_path, "no mark", *SIDES[0][0]).exit_code == 3
    both = keep(host, tmp_path, comment("1" * 64), "--github", "a/b", "--gitlab", "a/b")
    assert both.exit_code == 2
    host.url = "http://127.0.0.1:9"
    assert keep(host, tmp_path, comment("1" * 64), *SIDES[0][0]).exit_code == 5

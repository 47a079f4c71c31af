"""Schedules as text: the cached form, the golden-file surface, and its parser.

Grammar (two spaces of indentation per level; a node's children are the lines indented below it):
    schedule STRATEGY cycles=N
    graph
      ...                                    as ir.text prints it
    tree
      loop KIND VAR TRIP [stride=N]          one child
      seq                                    children in order
      place TENSOR MEMORY [start:extent, ..] [copies=N] [dtype=T] [init=identity]     one child
      move TENSOR SRC : DST [start:extent, ..] [fill=V]
      compute OP ENGINE [start:extent, ..] [intrinsic=NAME] [recompute]
      pipe VAR TRIP                          queues, then stages
        queue TENSOR MEMORY [..] depth=N from=I to={J, ..} [dtype=T] [init=identity]
        stage OFFSET                         one child
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from worker.compiler.errors import VerifyError
from worker.compiler.heuristics import LOWERING, Heuristic
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.parse import Tokens, parse_affine, parse_graph
from worker.compiler.ir.text import number, print_graph, quote
from worker.compiler.schedule.nodes import (
    Box,
    Compute,
    Init,
    Loop,
    LoopKind,
    Move,
    Node,
    Pipe,
    Place,
    Queue,
    Schedule,
    Seq,
    Span,
    Stage,
)


def print_schedule(schedule: Schedule) -> str:
    """Print a schedule.  `parse_schedule(print_schedule(s)) == s`."""
    lines = [f"schedule {quote(schedule.strategy)} cycles={schedule.predicted_cycles}"]
    if schedule.without:
        lines[0] += f" without={','.join(schedule.without)}"
    lines += [f"note {note}" for note in schedule.notes]
    lines.append("graph")
    lines += [f"  {line}" for line in print_graph(schedule.graph).splitlines()]
    lines.append("tree")
    _print(schedule.root, 1, lines)
    return "\n".join(lines) + "\n"


def _box(box: Box) -> str:
    return "[" + ", ".join(f"{span.start}:{span.extent}" for span in box) + "]"


def _storage(dtype: DType | None, init: Init) -> str:
    text = "" if dtype is None else f" dtype={dtype}"
    return text if init is Init.UNDEFINED else f"{text} init={init}"


def _print(node: Node, level: int, lines: list[str]) -> None:
    pad = "  " * level
    match node:
        case Loop(var, trip, kind, body, stride):
            step = f" stride={stride}" if stride else ""
            lines.append(f"{pad}loop {kind} {quote(var)} {trip}{step}")
            _print(body, level + 1, lines)
        case Seq(parts):
            lines.append(f"{pad}seq")
            for part in parts:
                _print(part, level + 1, lines)
        case Place():
            copies = "" if node.copies == 1 else f" copies={node.copies}"
            lines.append(
                f"{pad}place {quote(node.tensor)} {quote(node.memory)} {_box(node.tile)}"
                f"{copies}{_storage(node.dtype, node.init)}"
            )
            _print(node.body, level + 1, lines)
        case Move():
            fill = "" if node.fill is None else f" fill={number(node.fill)}"
            lines.append(
                f"{pad}move {quote(node.tensor)} {quote(node.src)} : {quote(node.dst)}"
                f" {_box(node.box)}{fill}"
            )
        case Compute():
            intrinsic = "" if node.intrinsic is None else f" intrinsic={quote(node.intrinsic)}"
            again = " recompute" if node.recompute else ""
            lines.append(
                f"{pad}compute {quote(node.op)} {quote(node.engine)} {_box(node.box)}"
                f"{intrinsic}{again}"
            )
        case Pipe():
            _print_pipe(node, level, lines)
        case _:
            assert_never(node)


def _print_pipe(pipe: Pipe, level: int, lines: list[str]) -> None:
    pad = "  " * level
    lines.append(f"{pad}pipe {quote(pipe.var)} {pipe.trip}")
    for queue in pipe.queues:
        to = ", ".join(map(str, queue.consumers))
        lines.append(
            f"{pad}  queue {quote(queue.tensor)} {quote(queue.memory)} {_box(queue.tile)}"
            f" depth={queue.depth} from={queue.producer} to={{{to}}}"
            f"{_storage(queue.dtype, queue.init)}"
        )
    for stage in pipe.stages:
        lines.append(f"{pad}  stage {stage.core_offset}")
        _print(stage.body, level + 2, lines)


@dataclass(slots=True)
class _Line:
    level: int
    tokens: Tokens


def parse_schedule(text: str) -> Schedule:
    """Parse what `print_schedule` prints.

    Raises:
        VerifyError: the text does not follow the grammar (line and token named), or the graph
            breaks a rule.
    """
    rows = text.splitlines()
    try:
        tree_at = rows.index("tree")
    except ValueError:
        raise VerifyError("parse", "line 1", "grammar", "a schedule needs a tree") from None
    head = Tokens(rows[0], 1)
    head.expect("schedule")
    strategy = head.name()
    cycles = _named(head, "cycles").integer()
    without = _without(head) if head.peek() else ()
    at = 1
    while rows[at].startswith("note "):
        at += 1
    if rows[at] != "graph":
        raise VerifyError("parse", f"line {at + 1}", "grammar", "expected 'graph'")
    graph = parse_graph("\n".join(row[2:] for row in rows[at + 1 : tree_at]) + "\n")
    lines = []
    for offset, row in enumerate(rows[tree_at + 1 :]):
        if row.strip():
            indent = len(row) - len(row.lstrip(" "))
            lines.append(_Line(indent // 2, Tokens(row, tree_at + offset + 2)))
    parser = _Parser(lines)
    root = parser.node(1)
    parser.finish()
    notes = tuple(row.removeprefix("note ") for row in rows[1:at])
    return Schedule(graph, root, strategy, cycles, without, notes)


def _without(tokens: Tokens) -> tuple[Heuristic, ...]:
    _named(tokens, "without")
    found = [tokens.one_of(Heuristic)]
    while tokens.take(","):
        found.append(tokens.one_of(Heuristic))
    if found != sorted(set(found)) or not LOWERING.issuperset(found):
        raise tokens.error("without lists heuristics of lowering, sorted, each once")
    return tuple(found)


def _named(tokens: Tokens, name: str) -> Tokens:
    tokens.expect(name)
    tokens.expect("=")
    return tokens


def _take_named(tokens: Tokens, name: str) -> bool:
    if tokens.take(name):
        tokens.expect("=")
        return True
    return False


def _parse_box(tokens: Tokens) -> Box:
    def span() -> Span:
        start = parse_affine(tokens)
        tokens.expect(":")
        return Span(start, tokens.integer())

    return tokens.listed("[", "]", span)


def _parse_storage(tokens: Tokens) -> tuple[DType | None, Init]:
    dtype = tokens.one_of(DType) if _take_named(tokens, "dtype") else None
    init = tokens.one_of(Init) if _take_named(tokens, "init") else Init.UNDEFINED
    return dtype, init


@dataclass(slots=True)
class _Parser:
    lines: list[_Line]
    at: int = 0

    def peek(self, level: int) -> Tokens | None:
        """The next line when it stands at `level`."""
        if self.at < len(self.lines) and self.lines[self.at].level == level:
            return self.lines[self.at].tokens
        return None

    def finish(self) -> None:
        if self.at < len(self.lines):
            raise self.lines[self.at].tokens.error("unexpected line")

    def take(self, level: int) -> Tokens:
        tokens = self.peek(level)
        if tokens is None:
            where = min(self.at, len(self.lines) - 1)
            raise VerifyError("parse", f"tree line {where + 1}", "grammar", "a child is missing")
        self.at += 1
        return tokens

    def children(self, level: int) -> tuple[Node, ...]:
        found = []
        while self.peek(level) is not None:
            found.append(self.node(level))
        return tuple(found)

    def node(self, level: int) -> Node:
        tokens = self.take(level)
        match tokens.name():
            case "loop":
                kind, var, trip = tokens.one_of(LoopKind), tokens.name(), tokens.integer()
                stride = tokens.integer() if _take_named(tokens, "stride") else 0
                return Loop(var, trip, kind, self.node(level + 1), stride)
            case "seq":
                return Seq(self.children(level + 1))
            case "place":
                tensor, memory, box = tokens.name(), tokens.name(), _parse_box(tokens)
                copies = tokens.integer() if _take_named(tokens, "copies") else 1
                dtype, init = _parse_storage(tokens)
                return Place(tensor, memory, box, copies, self.node(level + 1), dtype, init)
            case "move":
                tensor, src = tokens.name(), tokens.name()
                tokens.expect(":")
                dst, box = tokens.name(), _parse_box(tokens)
                fill = tokens.number() if _take_named(tokens, "fill") else None
                return Move(tensor, src, dst, box, fill)
            case "compute":
                op, engine, box = tokens.name(), tokens.name(), _parse_box(tokens)
                intrinsic = tokens.name() if _take_named(tokens, "intrinsic") else None
                return Compute(op, box, engine, intrinsic, tokens.take("recompute"))
            case "pipe":
                return self.pipe(level, tokens)
            case word:
                raise tokens.error(f"unknown node {word!r}")

    def pipe(self, level: int, tokens: Tokens) -> Pipe:
        var, trip = tokens.name(), tokens.integer()
        queues: list[Queue] = []
        stages: list[Stage] = []
        while (line := self.peek(level + 1)) is not None:
            self.at += 1
            if line.take("queue"):
                queues.append(_parse_queue(line))
            else:
                line.expect("stage")
                offset = line.integer()
                stages.append(Stage(self.node(level + 2), offset))
        return Pipe(var, trip, tuple(stages), tuple(queues))


def _parse_queue(tokens: Tokens) -> Queue:
    tensor, memory, box = tokens.name(), tokens.name(), _parse_box(tokens)
    depth = _named(tokens, "depth").integer()
    producer = _named(tokens, "from").integer()
    _named(tokens, "to")
    consumers = tokens.listed("{", "}", tokens.integer)
    dtype, init = _parse_storage(tokens)
    return Queue(tensor, memory, box, depth, producer, consumers, dtype, init)

"""Schedules as text: the golden-file surface and the stored form in the cache.

One node a line, children indented by two spaces:
    loop VAR TRIP KIND [stride N]        seq            place T @MEM [box] copies N [dtype D] [init I]
    move T SRC -> DST [box] [fill V]     compute OP [box] on ENGINE [as INTRINSIC] [recompute]
    pipe VAR TRIP                        stage +OFFSET
    queue T @MEM [box] depth N from I to {J, ..} [dtype D] [init I]
A box is a list of `start : extent`.  The graph follows after a line `graph`.
"""

from __future__ import annotations

from worker.compiler.errors import VerifyError
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


def _box(box: Box) -> str:
    return "[" + ", ".join(f"{s.start} : {s.extent}" for s in box) + "]"


def _storage(dtype: DType | None, init: Init) -> str:
    text = "" if dtype is None else f" dtype {dtype}"
    return text if init is Init.UNDEFINED else f"{text} init {init}"


def print_node(node: Node, indent: int = 0) -> list[str]:
    """Lines of a tree."""
    pad = "  " * indent
    match node:
        case Loop(var, trip, kind, body, stride):
            tail = f" stride {stride}" if kind is LoopKind.CORES else ""
            return [f"{pad}loop {quote(var)} {trip} {kind}{tail}", *print_node(body, indent + 1)]
        case Seq(parts):
            lines = [f"{pad}seq"]
            for part in parts:
                lines += print_node(part, indent + 1)
            return lines
        case Place(tensor, memory, tile, copies, body, dtype, init):
            head = (f"{pad}place {quote(tensor)} @{quote(memory)} {_box(tile)} copies {copies}"
                    f"{_storage(dtype, init)}")  # fmt: skip
            return [head, *print_node(body, indent + 1)]
        case Move(tensor, src, dst, box, fill):
            tail = "" if fill is None else f" fill {number(fill)}"
            return [f"{pad}move {quote(tensor)} {quote(src)} to {quote(dst)} {_box(box)}{tail}"]
        case Compute(op, box, engine, intrinsic, recompute):
            tail = "" if intrinsic is None else f" as {quote(intrinsic)}"
            again = " recompute" if recompute else ""
            return [f"{pad}compute {quote(op)} {_box(box)} on {quote(engine)}{tail}{again}"]
        case Pipe(var, trip, stages, queues):
            lines = [f"{pad}pipe {quote(var)} {trip}"]
            lines += [f"{pad}  {_queue(q)}" for q in queues]
            for stage in stages:
                lines.append(f"{pad}  stage {stage.core_offset}")
                lines += print_node(stage.body, indent + 2)
            return lines


def _queue(queue: Queue) -> str:
    readers = ", ".join(map(str, queue.consumers))
    return (f"queue {quote(queue.tensor)} @{quote(queue.memory)} {_box(queue.tile)}"
            f" depth {queue.depth} from {queue.producer} to {{{readers}}}"
            f"{_storage(queue.dtype, queue.init)}")  # fmt: skip


def print_schedule(schedule: Schedule) -> str:
    """Print a schedule with its graph.  `parse_schedule(print_schedule(s)) == s`."""
    head = f"schedule {quote(schedule.strategy)} predicted {schedule.predicted_cycles}"
    return "\n".join([head, *print_node(schedule.root), "graph", print_graph(schedule.graph)])


def _parse_box(tokens: Tokens) -> Box:
    def span() -> Span:
        start = parse_affine(tokens)
        tokens.expect(":")
        return Span(start, tokens.integer())

    return tokens.listed("[", "]", span)


def _parse_storage(tokens: Tokens) -> tuple[DType | None, Init]:
    dtype = DType(tokens.name()) if tokens.take("dtype") else None
    init = Init(tokens.name()) if tokens.take("init") else Init.UNDEFINED
    return dtype, init


class _Reader:
    """A cursor over indented lines."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = [(k, line) for k, line in enumerate(lines, 2) if line.strip()]
        self._at = 0

    def depth(self) -> int:
        if self._at >= len(self._lines):
            return -1
        line = self._lines[self._at][1]
        return (len(line) - len(line.lstrip(" "))) // 2

    def word(self) -> str:
        return self._lines[self._at][1].split()[0] if self._at < len(self._lines) else ""

    def line(self) -> Tokens:
        number, text = self._lines[self._at]
        self._at += 1
        return Tokens(text, number)

    def node(self, depth: int) -> Node:
        """Parse the node whose line stands at `depth`."""
        if self.depth() != depth:
            line = self._lines[min(self._at, len(self._lines) - 1)][0]
            raise VerifyError("parse", f"line {line}", "grammar", f"no node at depth {depth}")
        tokens = self.line()
        match tokens.name():
            case "loop":
                var, trip, kind = tokens.name(), tokens.integer(), LoopKind(tokens.name())
                stride = tokens.integer() if tokens.take("stride") else 0
                return Loop(var, trip, kind, self.node(depth + 1), stride)
            case "seq":
                parts: list[Node] = []
                while self.depth() == depth + 1:
                    parts.append(self.node(depth + 1))
                return Seq(tuple(parts))
            case "place":
                tensor = tokens.name()
                tokens.expect("@")
                memory, tile = tokens.name(), _parse_box(tokens)
                tokens.expect("copies")
                copies = tokens.integer()
                dtype, init = _parse_storage(tokens)
                return Place(tensor, memory, tile, copies, self.node(depth + 1), dtype, init)
            case "move":
                tensor, src = tokens.name(), tokens.name()
                tokens.expect("to")
                dst, box = tokens.name(), _parse_box(tokens)
                fill = tokens.number() if tokens.take("fill") else None
                return Move(tensor, src, dst, box, fill)
            case "compute":
                op, box = tokens.name(), _parse_box(tokens)
                tokens.expect("on")
                engine = tokens.name()
                intrinsic = tokens.name() if tokens.take("as") else None
                return Compute(op, box, engine, intrinsic, tokens.take("recompute"))
            case "pipe":
                return self._pipe(tokens, depth)
            case word:
                raise tokens.error(f"unknown node {word!r}")

    def _pipe(self, tokens: Tokens, depth: int) -> Pipe:
        var, trip = tokens.name(), tokens.integer()
        queues: list[Queue] = []
        stages: list[Stage] = []
        while self.depth() == depth + 1:
            inner = self.line()
            if inner.take("stage"):
                offset = inner.integer()
                stages.append(Stage(self.node(depth + 2), offset))
                continue
            inner.expect("queue")
            tensor = inner.name()
            inner.expect("@")
            memory, tile = inner.name(), _parse_box(inner)
            inner.expect("depth")
            size = inner.integer()
            inner.expect("from")
            producer = inner.integer()
            inner.expect("to")
            consumers = inner.listed("{", "}", inner.integer)
            dtype, init = _parse_storage(inner)
            queues.append(Queue(tensor, memory, tile, size, producer, consumers, dtype, init))
        return Pipe(var, trip, tuple(stages), tuple(queues))


def parse_schedule(text: str) -> Schedule:
    """Parse what `print_schedule` wrote.

    Raises:
        VerifyError: rule `grammar`, with the line; or whatever `Graph.build` refuses.
    """
    head, _, rest = text.partition("\n")
    tree, found, graph = rest.partition("\ngraph\n")
    if not found:
        raise VerifyError("parse", "line 1", "grammar", "no graph section")
    tokens = Tokens(head, 1)
    tokens.expect("schedule")
    strategy = tokens.name()
    tokens.expect("predicted")
    predicted = tokens.integer()
    root = _Reader(tree.split("\n")).node(0)
    return Schedule(parse_graph(graph), root, strategy, predicted)

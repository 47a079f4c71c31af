"""One C function per unit: the schedule tree, walked once.

Loops become loops in the same order (the cores of a CORES loop take turns), a Place becomes a
pointer to its planned address, a Move a strided copy, a Compute a matrix product or a loop nest.
A large tree's function calls static ones that hold its parts (parts.py).
The function's text is the test surface; see tilewright_rt.h for what it calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod
from typing import assert_never

from worker.compiler.codegen.clip import clip_box, guard
from worker.compiler.codegen.ctext import Writer, comment, index_text, literal
from worker.compiler.codegen.expr import store
from worker.compiler.codegen.intrinsics import emit_product, instantiations, product_of
from worker.compiler.codegen.library_calls import (
    LINKED_MACRO,
    CalledProduct,
    KernelCall,
    called_product,
    emit_call,
)
from worker.compiler.codegen.moves import emit_move
from worker.compiler.codegen.nest import Body, emit_nest
from worker.compiler.codegen.observe import emit_copy
from worker.compiler.codegen.parts import MIN_STEPS, Parts
from worker.compiler.codegen.ports import Point, make_point
from worker.compiler.codegen.runtime_header import HEADER_NAME
from worker.compiler.codegen.storage import Enclosing, Storage, at_home, starts_of
from worker.compiler.errors import VerifyError
from worker.compiler.ir.affine import Affine, const, var
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import Buffer, UnitProgram
from worker.compiler.isa.sums import Order
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import (
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
)
from worker.compiler.schedule.walk import Leaf, Scope, reached, walk

CODEGEN_VERSION = "4"
"""Bump when the generated text or the header changes: cached kernels must miss."""


def generate_kernel(
    schedule: Schedule,
    program: UnitProgram,
    machine: Machine,
    name: str,
    observed: Sequence[str] = (),
) -> str:
    """C11 text of `void name(tw_machine *m, unsigned char *const *operand)`.

    `name` must be a C identifier.  `observed` names tensors of the graph that the kernel also
    copies out as it computes them (`observe`): each adds two operands behind the program's, the
    whole tensor and one byte an element that becomes 1 where it was computed.  Everything else
    stays as it is, so that the outputs are the same bits.  Cost: linear in the tree.

    Raises:
        VerifyError: the tree names a buffer or operand that the program does not have.
    """
    if not name.isidentifier() or not name.isascii():
        raise VerifyError("codegen", "0", "name", f"{name!r} is not a C identifier")
    builder = _Builder(schedule, program, machine, name, observed)
    return builder.function()


def generate_steps(schedule: Schedule, program: UnitProgram, machine: Machine, name: str) -> str:
    """C11 text with a function for one iteration of each leaf, to be called in any order.

    `void NAME_lK(tw_machine *m, unsigned char *const *operand, unsigned char *const *slot, const
    int64_t *at)`: leaf number K of the flattened tree.  slot[k] is where the k-th scope around it
    stands, at[k] the counter of the k-th loop around it; loops over lanes run inside.
    `void NAME_iK(unsigned char *slot)`: the identity that scope number K starts at, if it does.
    Statements are those of `generate_kernel`.  Cost: linear in leaves times what is around each.

    Raises:
        VerifyError: as `generate_kernel`.
    """
    return _Builder(schedule, program, machine, name, ()).steps()


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What the C of a Compute decides beyond its operator."""

    order: Order
    selects: tuple[bool, ...]
    """Of each read: whether it yields its fill by itself outside of the tensor; else what stands in
    the buffer's margin is read."""


def arithmetic_of(
    schedule: Schedule, program: UnitProgram, machine: Machine
) -> dict[str, Arithmetic]:
    """By path of each Compute, what the kernel of `generate_kernel` does.  Cost: as that."""
    builder = _Builder(schedule, program, machine, "tw_unit", ())
    builder.function()
    return builder.arithmetic


def library_calls(
    schedule: Schedule, program: UnitProgram, machine: Machine
) -> tuple[KernelCall, ...]:
    """Every Compute that the kernel of `generate_kernel` calls a kernel library for, or would if a
    call could say it, in the order of the tree.  Cost: as that."""
    builder = _Builder(schedule, program, machine, "tw_unit", ())
    builder.function()
    return tuple(builder.calls)


class _Builder:
    def __init__(
        self,
        schedule: Schedule,
        program: UnitProgram,
        machine: Machine,
        name: str,
        observed: Sequence[str],
    ) -> None:
        self.name = name
        self.graph = schedule.graph
        self.schedule = schedule
        self.program = program
        self.machine = machine
        self.writer = Writer()
        self.buffers = {b.path: (k, b) for k, b in enumerate(program.buffers)}
        self.flat = walk(schedule)
        self.scopes = {scope.path: scope for scope in self.flat.scopes}
        self.stages = {leaf.path: leaf.stages for leaf in self.flat.leaves}
        self.parts = Parts(name, self.writer, len(self.flat.leaves) >= MIN_STEPS)
        self.operands = {o.tensor: k for k, o in enumerate(program.operands)}
        first = len(program.operands)
        self.copies = {tensor: first + 2 * k for k, tensor in enumerate(observed)}
        """Observed tensor -> the operand that it is copied to; its marks are the next one."""
        self.products: dict[tuple[DType, DType | None], None] = {}
        self.arithmetic: dict[str, Arithmetic] = {}
        self.calls: list[KernelCall] = []

    def function(self) -> str:
        w, name = self.writer, self.name
        with w.block(f"void {name}(tw_machine *m, unsigned char *const *operand)"):
            self.operand_pointers()
            for tensor, k in self.copies.items():
                w.line(f"unsigned char *const h{k} = operand[{k}]; {comment(f'copy of {tensor}')}")
                w.line(f"unsigned char *const h{k + 1} = operand[{k + 1}];")
                w.line(f"(void)h{k}, (void)h{k + 1};")
            w.line("(void)m;")
            self.visit(self.schedule.root, "0", Enclosing({}, {}, const(0), const(0), ()))
        head = [
            comment(f"unit {self.program.signature}, strategy {self.schedule.strategy}"),
            f'#include "{HEADER_NAME}"',
            *instantiations(self.products),
            *self.prototypes(),
            *self.parts.head(),
            f"void {name}(tw_machine *m, unsigned char *const *operand);",
        ]
        return "\n".join([*head, "", *self.parts.texts(), w.text()])

    def prototypes(self) -> list[str]:
        """Declarations of the functions of a kernel library that are called."""
        symbols = sorted({call.symbol for call in self.calls if call.symbol})
        if not symbols:
            return []
        lines = [f"void {symbol}(const tw_product *call);" for symbol in symbols]
        return [f"#if defined({LINKED_MACRO})", *lines, "#endif"]

    def operand_pointers(self) -> None:
        """Declare a pointer to each operand."""
        for k, operand in enumerate(self.program.operands):
            self.writer.line(
                f"unsigned char *const h{k} = operand[{k}];"
                f" {comment(f'{operand.tensor}: {operand.dtype}{list(operand.shape)}')}"
            )
            self.writer.line(f"(void)h{k};")

    def steps(self) -> str:
        """`generate_steps`"""
        for leaf in self.flat.leaves:
            self.step(leaf)
        for scope in self.flat.scopes:
            if scope.init is Init.IDENTITY:
                free = {v: var(v) for span in scope.tile for v in span.start.variables()}
                around = Enclosing(free, {}, const(0), const(0), ())
                with self.writer.block(f"void {self.name}_i{scope.number}(unsigned char *slot)"):
                    self.fill_identity(self.storage(scope, scope.path, "slot", around))
        head = [f'#include "{HEADER_NAME}"', *instantiations(self.products), *self.prototypes()]
        return "\n".join([*head, "", self.writer.text()])

    def step(self, leaf: Leaf) -> None:
        """The function of one leaf."""
        w = self.writer
        parameters = "unsigned char *const *operand, unsigned char *const *slot, const int64_t *at"
        with w.block(f"void {self.name}_l{leaf.number}(tw_machine *m, {parameters})"):
            w.line("(void)m, (void)operand, (void)slot, (void)at;")
            self.operand_pointers()
            names = [w.fresh("v") for _ in leaf.frames]
            inner = Enclosing(
                {f.var: var(name) for f, name in zip(leaf.frames, names, strict=True)},
                {name: (0, f.trip - 1) for f, name in zip(leaf.frames, names, strict=True)},
                const(0), const(0), (),
            )  # fmt: skip
            for k, (frame, name) in enumerate(zip(leaf.frames, names, strict=True)):
                if not frame.is_folded:
                    w.line(f"const int64_t {name} = at[{k}];")
                    w.line(f"(void){name};")
            for k, scope in enumerate(leaf.scopes):
                pointer = w.fresh("t")
                w.line(f"unsigned char *const {pointer} = slot[{k}];")
                w.line(f"(void){pointer};")
                storage = self.storage(scope, scope.path, pointer, inner)
                inner = replace(inner, storages=(*inner.storages, storage))
            with ExitStack() as stack:
                for frame, name in zip(leaf.frames, names, strict=True):
                    if frame.is_folded:
                        stack.enter_context(w.loop(name, str(frame.trip)))
                self.visit(leaf.node, leaf.path, inner)

    def visit(self, node: Node, path: str, scope: Enclosing) -> None:
        match node:
            case Loop():
                self.loop(node, path, scope)
            case Seq(parts):
                self.sequence(parts, path, scope)
            case Pipe():
                self.pipe(node, path, scope)
            case Place():
                with self.writer.block(""):
                    inner = self.enter(node, path, scope, scope.core, scope.entries)
                    self.visit(node.body, f"{path}.0", inner)
            case Move():
                self.move(node, path, scope)
            case Compute():
                self.compute(node, path, scope)
            case _:
                assert_never(node)

    def sequence(self, parts: Sequence[Node], path: str, scope: Enclosing) -> None:
        """Visit in order; what has been written is cut off as a part whenever it is long."""
        start = self.writer.num_lines
        for k, part in enumerate(parts):
            self.visit(part, f"{path}.{k}", scope)
            if self.parts.cut(start, path, scope):
                start = self.writer.num_lines

    def loop(self, loop: Loop, path: str, scope: Enclosing) -> None:
        name = self.writer.fresh("v")
        core, entries = scope.core, scope.entries
        if loop.kind is LoopKind.CORES:
            core = core + var(name) * loop.core_stride
        elif loop.kind is not LoopKind.LANES:
            entries = entries * loop.trip + var(name)
        inner = replace(
            scope,
            variables={**scope.variables, loop.var: var(name)},
            ranges={**scope.ranges, name: (0, loop.trip - 1)},
            core=core,
            entries=entries,
        )
        if loop.kind is LoopKind.CORES:
            self.writer.line(comment(f"{loop.trip} cores, in turn"))
        with self.writer.loop(name, str(loop.trip)):
            self.visit(loop.body, f"{path}.0", inner)

    def pipe(self, pipe: Pipe, path: str, scope: Enclosing) -> None:
        name = self.writer.fresh("v")
        inner = replace(
            scope,
            variables={**scope.variables, pipe.var: var(name)},
            ranges={**scope.ranges, name: (0, pipe.trip - 1)},
            entries=scope.entries * pipe.trip + var(name),
        )
        with self.writer.loop(name, str(pipe.trip)):
            for k, queue in enumerate(pipe.queues):
                core = scope.core + pipe.stages[queue.producer].core_offset
                inner = self.enter(queue, f"{path}.q{k}", inner, core, var(name))
            for k, stage in enumerate(pipe.stages):
                core = scope.core + stage.core_offset
                with self.writer.block(""):
                    self.visit(stage.body, f"{path}.{k}", replace(inner, core=core))

    def enter(
        self,
        node: Place | Queue,
        path: str,
        scope: Enclosing,
        core: Affine,
        entries: Affine,
    ) -> Enclosing:
        """Bring a buffer's slot to life; the returned scope sees it."""
        w = self.writer
        if path not in self.buffers:
            raise VerifyError("codegen", path, "buffer", "the program has no buffer for this node")
        index, buffer = self.buffers[path]
        level = self.machine.level_index(buffer.level)
        address = const(buffer.address) + entries.mod(max(buffer.copies, 1)) * buffer.slot_bytes
        address = address + self.block(buffer, core) * buffer.block_bytes
        count = self.machine.levels[level].instances
        instance = (core * count).floordiv(self.machine.num_cores)
        pointer = w.fresh("t")
        dtype = DType(buffer.dtype)
        poison = "0xFF" if dtype.is_float else "0xA5"
        place = index_text(instance.within(scope.ranges), scope.ranges)
        where = index_text(address.within(scope.ranges), scope.ranges)
        w.line(comment(f"{buffer.tensor} {list(buffer.extents)} {dtype} in {buffer.level}"))
        w.line(
            f'unsigned char *const {pointer} = tw_enter(m, "{path}", {index}, {level}, {place},'
            f" {where}, {buffer.slot_bytes}, {poison});"
        )
        w.line(f"if (!{pointer}) return;")
        storage = self.storage(node, path, pointer, scope)
        if node.init is Init.IDENTITY:
            self.fill_identity(storage)
        return replace(scope, storages=(*scope.storages, storage))

    def storage(
        self, node: Place | Queue | Scope, path: str, pointer: str, scope: Enclosing
    ) -> Storage:
        """A buffer's slot at `pointer`."""
        index, buffer = self.buffers[path]
        first, end = self.flat.ranges[path]
        moves = (leaf.node for leaf in self.flat.leaves[first:end] if isinstance(leaf.node, Move))
        filling = (m for m in moves if (m.tensor, m.dst) == (node.tensor, node.memory))
        return Storage(
            buffer.tensor, buffer.level, pointer, DType(buffer.dtype), buffer.extents,
            starts_of(node.tile, scope), index,
            tuple(m.fill for m in filling if m.fill is not None),
        )  # fmt: skip

    def block(self, buffer: Buffer, core: Affine) -> Affine:
        """Number of the private block that `core` uses."""
        if buffer.blocks == 1:
            return const(0)
        width = self.machine.num_cores // self.machine.level(buffer.level).instances
        return (core.mod(width) - buffer.first_core).floordiv(buffer.block_stride)

    def fill_identity(self, storage: Storage) -> None:
        reduce = next(
            (
                op.reduce
                for op in self.graph.ops
                if op.write.tensor == storage.tensor and op.reduce is not None
            ),
            None,
        )
        if reduce is None:
            raise VerifyError(
                "codegen", storage.pointer, "init", f"no reduction writes {storage.tensor}"
            )
        value = literal(reduce.identity(storage.dtype), storage.dtype)
        name = self.writer.fresh("z")
        kind = storage.element_type
        element = store(value, storage.dtype, storage.dtype)
        with self.writer.loop(name, str(prod(storage.extents))):
            self.writer.line(f"(({kind} *){storage.pointer})[{name}] = {element};")

    def move(self, move: Move, path: str, scope: Enclosing) -> None:
        tensor = self.graph.tensors[move.tensor]
        src, dst = self.ends(move, path, scope)
        self.writer.line(comment(f"{path}: move {move.tensor} {move.src} to {move.dst}"))
        emit_move(self.writer, move, tensor, src, dst, scope, path)

    def ends(self, move: Move, path: str, scope: Enclosing) -> tuple[Storage, Storage]:
        """Source and destination; within one memory from the outer to the inner storage, except
        where a stage writes its ring."""
        if move.src != move.dst:
            return (
                self.find(move.tensor, move.src, path, scope),
                self.find(move.tensor, move.dst, path, scope),
            )
        there = [s for s in scope.storages if s.tensor == move.tensor and s.level == move.src]
        if len(there) < 2:
            raise VerifyError("codegen", path, "resident", "a move within one memory needs two")
        outer, inner = there[-2], there[-1]
        ring = self.scopes[self.program.buffers[outer.buffer].path]
        return (inner, outer) if ring.is_filled_in(self.stages[path]) else (outer, inner)

    def find(self, tensor: str, level: str | None, path: str, scope: Enclosing) -> Storage:
        found = scope.find(tensor, *(() if level is None else (level,)))
        if found is not None:
            return found
        home = self.machine.home.name
        if (level is None or level == home) and tensor in self.operands:
            return at_home(self.graph.tensors[tensor], home, self.operands[tensor])
        raise VerifyError("codegen", path, "resident", f"{tensor} has no storage in {level}")

    def compute(self, node: Compute, path: str, scope: Enclosing) -> None:
        op = self.graph.op(node.op)
        self.writer.line(comment(f"{path}: {op.name} on {node.engine}"))
        with self.writer.block(""), ExitStack() as stack:
            ranges = dict(scope.ranges)
            limits = [axis.extent for axis in op.domain]
            spans = clip_box(self.writer, node.box, limits, scope, ranges)
            condition = guard(spans)
            if condition:
                stack.enter_context(self.writer.block(f"if ({condition})"))
            levels = reached(node.engine, self.machine)
            point = make_point(
                self.writer,
                op,
                spans,
                lambda t: scope.find(t, *levels) or self.find(t, None, path, scope),
                self.graph.tensors,
                ranges,
                path,
            )
            bad = self.writer.fresh("bad") if op.has_lookup else ""
            if bad:
                self.writer.line(f"int {bad} = 0;")
            body = Body(op, point, tuple(p.dtype for p in point.reads), bad)
            called = self.called(node, path, body)
            if called is not None:
                self.products.setdefault((called.product.dtype, None))
                self.writer.line(f"#if defined({LINKED_MACRO})")
                emit_call(self.writer, body, called)
                self.writer.line("#else")
            product = product_of(body)
            if product is not None:
                self.products.update(dict.fromkeys(emit_product(self.writer, body, product)))
                order = product.order
            else:
                order = emit_nest(self.writer, body)
            if called is not None:
                self.writer.line("#endif")
            selects = tuple(bool(port.guarded) for port in point.reads)
            self.arithmetic[path] = Arithmetic(order, selects)
            if op.write.tensor in self.copies:
                self.copy(op.write.tensor, point)
            if bad:
                index = point.write.storage.buffer
                self.writer.line(
                    f'if ({bad}) {{ tw_fault(m, TW_FAULT_INDEX, "{path}", {index}, 0, 0, 0);'
                    " return; }"
                )

    def called(self, node: Compute, path: str, body: Body) -> CalledProduct | None:
        """The calls of a kernel library in place of own code, where its instruction names one."""
        named = (i for i in self.machine.engine(node.engine).intrinsics if i.name == node.intrinsic)
        intrinsic = next(named, None)
        if intrinsic is None or intrinsic.call is None:
            return None
        found = called_product(body, intrinsic)
        symbol = "" if found is None else found.symbol
        self.calls.append(KernelCall(path, node.op, symbol, intrinsic.call.pointer))
        return found

    def copy(self, tensor: str, point: Point) -> None:
        index = self.copies[tensor]
        whole = at_home(self.graph.tensors[tensor], self.machine.home.name, index)
        emit_copy(self.writer, point, whole, f"h{index + 1}")

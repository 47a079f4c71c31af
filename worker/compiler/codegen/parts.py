"""Cutting the C function of a large schedule tree into several.

The time of a C compiler grows faster than the length of a function, and the text of a deep tree
(nested Places) grows with the square of its depth through indentation and node paths.  So what a
kernel writes for consecutive sub-trees becomes a function of its own once it is long: a part.  Its
parameters are the loop variables and buffer pointers of the enclosing tree that it uses, and its
node paths are written relative to a macro.  A part may call parts; the statements, their order
and every expression stay the same, so results are equal bit for bit.
"""

from __future__ import annotations

import re

from worker.compiler.codegen.ctext import Writer
from worker.compiler.codegen.storage import Enclosing

PART_LINES = 160
"""A run of sub-trees becomes a part when it is longer.  Shorter parts compile no faster: what is
left is linear."""
MIN_STEPS = 24
"""A tree with fewer Computes and Moves stays one function."""
PART_MACRO = (
    "#ifndef TW_PART",
    "#if defined(__GNUC__)",
    "#define TW_PART static __attribute__((noinline))",
    "#else",
    "#define TW_PART static",
    "#endif",
    "#endif",
)
"""Parts must not be merged again: a function called once would be."""
_COMMENT = re.compile(r"/\*.*?\*/")
_IDENTIFIER = re.compile(r"[vth](?<!\w[vth])[0-9]+\b")
r"""As \b[vth][0-9]+\b, which cannot be searched for: a set of characters in front can."""
_OPERAND = re.compile(r"h[0-9]+")


class Parts:
    """The parts of one kernel, in the order in which they are complete: callees first."""

    def __init__(self, kernel: str, writer: Writer, is_large: bool) -> None:
        self._kernel = kernel
        self._writer = writer
        self._is_large = is_large
        self._functions: list[str] = []
        self._macros: dict[str, str] = {}
        """Node path -> the macro that stands for it."""

    def cut(self, start: int, path: str, scope: Enclosing) -> bool:
        """Make the lines from number `start` on a part, if they are many; True when done.

        They must be whole statements, written in `scope` for nodes at `path` or below it.
        Cost: linear in the lines; each line is cut once.
        """
        if not self._is_large or self._writer.num_lines - start <= PART_LINES:
            return False
        macro = self._macros.setdefault(path, f"{self._kernel}_at{len(self._macros)}")
        body = [_relative(line, path, macro) for line in self._writer.cut(start)]
        used = dict.fromkeys(_IDENTIFIER.findall(_COMMENT.sub("", "\n".join(body))))
        variables = [name for name in scope.ranges if name in used]
        pointers = [s.pointer for s in scope.storages if s.pointer in used]
        operands = [name for name in used if _OPERAND.fullmatch(name)]
        name = f"{self._kernel}_part{len(self._functions)}"
        parameters = [
            "tw_machine *m",
            "unsigned char *const *operand",
            *(f"const int64_t {v}" for v in variables),
            *(f"unsigned char *const {p}" for p in pointers),
        ]
        head = [
            f"TW_PART void {name}({', '.join(parameters)}) {{",
            "    (void)m;",
            "    (void)operand;",
            *(f"    unsigned char *const {h} = operand[{h[1:]}];" for h in operands),
        ]
        self._functions.append("\n".join([*head, *body, "}", ""]))
        self._writer.line(f"{name}({', '.join(['m', 'operand', *variables, *pointers])});")
        self._writer.line("if (m->num_faults != 0) return;")
        return True

    def head(self) -> list[str]:
        """Lines that stand before the parts; none without parts."""
        if not self._functions:
            return []
        lines = list(PART_MACRO)
        for path, macro in self._macros.items():
            outer, inner = _outer(path, self._macros)
            lines.append(f'#define {macro} {outer}"{inner}"')
        return lines

    def texts(self) -> list[str]:
        """The functions, each after those it calls."""
        return list(self._functions)


def _relative(line: str, path: str, macro: str) -> str:
    """A line with the node paths at or below `path` in terms of its macro."""
    return line.replace(f'"{path}', f'{macro} "').replace(f"/* {path}", "/* ~")


def _outer(path: str, macros: dict[str, str]) -> tuple[str, str]:
    """(macro of the nearest enclosing path that has one, the rest of the path)."""
    end = path.rfind(".")
    while end > 0:
        if path[:end] in macros:
            return f"{macros[path[:end]]} ", path[end:]
        end = path.rfind(".", 0, end)
    return "", path

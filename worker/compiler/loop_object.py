"""Compiled loops as machine code that needs no numba: for processes that run a few loops and end.

Importing numba and reading one loop back through it takes 0.5 to 0.9 s of CPU, more than all that a
small program is audited for; llvmlite alone loads the same machine code in 0.05 s.

A file is a line of JSON and an object file.  The function in it is what numba makes for its own
calls (numba manual, "Notes on the numba architecture", calling convention): status = f(&result,
&error, arguments), an integer as itself, an array as (owner, parent, items, bytes of an item, data,
*shape, *strides).  Only loops that reach for nothing outside are kept: no memory of numba's own, no
exceptions with arguments, no calls into Python.  Whatever does not fit is a `None` here: numba
answers then.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Loop = Callable[..., Any]

_FORMAT = 1
_RESULT = "int64"
_KINDS = ("bool", "int8", "uint8", "int32", "int64")
_OUTSIDE = ("llvm.", "mem")
"""What may be missing from an object: intrinsics, and memset and its like of the C library."""
_UNOWNED = "NRT_MemInfo_call_dtor"
"""Called when the last owner of an array lets go; arrays of ours have no owner there."""
_ENDS = f"define void @{_UNOWNED}(ptr %owner) {{ ret void }}"


def object_name(loop: Loop) -> str:
    """Name of a loop's file."""
    return f"{loop.__module__}.{loop.__qualname__}.loop"


def save_object(loop: Loop, dispatcher: Any, folder: Path) -> bool:
    """Write the machine code of the first signature that numba compiled; whether it stands alone.

    Args:
        dispatcher: `numba.njit(loop)`, called before.
    """
    import llvmlite.binding as llvm

    signature = dispatcher.signatures[0]
    compiled = dispatcher.overloads[signature]
    arguments = [_form(argument) for argument in signature]
    if str(compiled.signature.return_type) != _RESULT or not all(arguments):
        return False
    name = compiled.fndesc.llvm_func_name
    module = llvm.parse_assembly(compiled.library.get_llvm_str())
    for function in module.functions:
        if not function.is_declaration and function.name != name:
            function.linkage = "internal"  # wrappers for Python: nobody calls them now
    _sweep(module)
    declared = {f.name for f in module.functions if f.is_declaration}
    if _UNOWNED in declared:
        module.link_in(llvm.parse_assembly(_ENDS))
    if any(not f.startswith(_OUTSIDE) for f in declared - {_UNOWNED}):
        return False
    head = {**_host(loop), "function": name, "arguments": arguments}
    code = _machine().emit_object(module)
    (folder / object_name(loop)).write_bytes(json.dumps(head).encode() + b"\n" + code)
    return True


def load_object(loop: Loop, folder: Path) -> Loop | None:
    """The loop out of `folder`; None: it is not there, or for another source, processor or version.

    What it gives answers None instead of the loop's integer when arguments have other types than it
    was compiled for; then nothing was run.
    """
    import llvmlite.binding as llvm

    try:
        head_bytes, _, code = (folder / object_name(loop)).read_bytes().partition(b"\n")
        head = json.loads(head_bytes)
    except (OSError, ValueError):
        return None
    if any(head.get(key) != value for key, value in _host(loop).items()):
        return None
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(head["function"])
    return _Called(engine, address, head["arguments"]).call if address else None


class _Called:
    """A function of an object file, to be called with arrays."""

    def __init__(self, engine: Any, address: int, arguments: Sequence[Sequence[Any]]) -> None:
        self._engine = engine  # its memory holds the code
        self._arguments = [(np.dtype(kind), rank, writes) for kind, rank, writes in arguments]
        words = sum(1 if rank is None else 5 + 2 * rank for _, rank, _ in self._arguments)
        types = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * words]
        self._function = ctypes.PYFUNCTYPE(ctypes.c_int32, *types)(address)

    def call(self, *arguments: Any) -> int | None:
        """See `load_object`."""
        words: list[int] = []
        for given, (dtype, rank, is_written) in zip(arguments, self._arguments, strict=True):
            if rank is None:
                words.append(int(given))
                continue
            flags = given.flags
            if (
                (given.dtype, given.ndim) != (dtype, rank)
                or not (flags.c_contiguous and flags.aligned)
                or (is_written and not flags.writeable)
            ):
                return None
            words += (0, 0, given.size, given.itemsize, given.ctypes.data)
            words += (*given.shape, *given.strides)
        result, error = ctypes.c_int64(), ctypes.c_void_p()
        status = self._function(ctypes.addressof(result), ctypes.addressof(error), *words)
        if status:
            raise RuntimeError(f"a compiled loop ended with status {status}")
        return result.value


def _form(argument: Any) -> tuple[str, int | None, bool] | None:
    """(type of a number, dimensions or None, whether it is written) of an argument's numba type."""
    if str(argument) == _RESULT:
        return _RESULT, None, False
    layout = getattr(argument, "layout", "")
    kind = str(getattr(argument, "dtype", ""))
    if layout != "C" or not argument.aligned or kind not in _KINDS:
        return None
    return kind, int(argument.ndim), bool(argument.mutable)


def _host(loop: Loop) -> dict[str, Any]:
    """What the machine code is good for: this source, processor and version of LLVM."""
    import llvmlite
    import llvmlite.binding as llvm

    source = Path(loop.__code__.co_filename).stat()
    return {
        "format": _FORMAT,
        "source": [loop.__code__.co_firstlineno, source.st_size, source.st_mtime_ns],
        "llvmlite": llvmlite.__version__,
        "triple": llvm.get_process_triple(),
        "processor": llvm.get_host_cpu_name(),
        "features": llvm.get_host_cpu_features().flatten(),
    }


def _machine() -> Any:
    """LLVM's description of this processor."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        jit=True,
    )


def _sweep(module: Any) -> None:
    """Remove what nothing uses."""
    import llvmlite.binding as llvm

    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    tuning = llvm.create_pipeline_tuning_options()
    passes.run(module, llvm.create_pass_builder(_machine(), tuning))

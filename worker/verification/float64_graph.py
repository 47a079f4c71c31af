"""A graph of the algebra with every float of it in float64, for the oracle to measure itself by.

Integers, and floats of 8 and 4 bits, stay: what they round is the operator's meaning, not an error
of computing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.bits import load
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.ir.scalar import Apply, Cast, Const, Index, Read, Scalar, Select
from worker.compiler.ir.scalar_type import promoted

Array = npt.NDArray[Any]
_WIDENED = frozenset({DType.F32, DType.F16, DType.BF16})


def float64_graph(graph: Graph) -> Graph:
    """The same operators on float64 tensors.  Cost: linear in the bodies."""
    ops = tuple(replace(op, body=_widened(op, graph)) for op in graph.ops)
    tensors = {
        name: replace(tensor, dtype=DType.F64) if tensor.dtype in _WIDENED else tensor
        for name, tensor in graph.tensors.items()
    }
    return replace(graph, ops=ops, tensors=MappingProxyType(tensors))


def float64_arrays(graph: Graph, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays in the storage types of `graph`, as those of `float64_graph(graph)`."""
    return {
        name: load(array, graph.tensors[name].dtype).astype(np.float64)
        if graph.tensors[name].dtype in _WIDENED
        else array
        for name, array in arrays.items()
    }


def _widened(op: TensorOp, graph: Graph) -> Scalar:
    """The body where reads of widened tensors give float64.

    A float of 8 bits still reads as float32, so it is cast.
    """
    reads = [graph.tensors[access.tensor].dtype for access in op.reads]

    def walk(body: Scalar) -> Scalar:
        match body:
            case Read(slot):
                is_narrow = reads[slot] not in _WIDENED and promoted(reads[slot]) is DType.F32
                return Cast(DType.F64, body) if is_narrow else body
            case Const(value, dtype):
                return Const(value, DType.F64) if dtype in _WIDENED else body
            case Index(_):
                return body
            case Cast(dtype, arg):
                # rounding to a narrow float gives float32 again
                inner = Cast(DType.F64 if dtype in _WIDENED else dtype, walk(arg))
                return Cast(DType.F64, inner) if dtype.is_narrow_float else inner
            case Select(condition, when_true, when_false):
                return Select(walk(condition), walk(when_true), walk(when_false))
            case Apply(fn, args):
                return Apply(fn, tuple(walk(arg) for arg in args))
            case _:
                assert_never(body)

    return walk(op.body)

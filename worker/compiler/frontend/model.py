"""The ONNX model as the front end hands it on."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import onnx_ir


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A loaded model.

    After `simplify`: nodes sorted, each with a unique non-empty name, opset `opset`, and every
    value's shape static, except values downstream of an operator whose output shape depends on
    data; ask `is_static` for those.
    """

    ir: onnx_ir.Model
    name: str
    sha256: str
    """Of the user's file."""
    opset: int
    mapped: mmap.mmap | None = None
    """The memory map weights are read from, when that is the user's file itself."""

    def is_static(self, value: onnx_ir.Value) -> bool:
        """Whether every dimension of `value` is known."""
        return value.shape is not None and all(isinstance(d, int) for d in value.shape)

    def release_pages(self) -> None:
        """Give resident pages of the mapped file back; reading weights again faults them in."""
        if self.mapped is not None:
            self.mapped.madvise(mmap.MADV_DONTNEED)

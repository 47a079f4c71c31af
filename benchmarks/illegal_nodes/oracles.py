"""Who says that a model is illegal: ONNX's checker, its strict inference, ONNX Runtime.

What ONNX Runtime has not implemented is not illegal, so it is heard only about changes of cases
that it runs unchanged; about the others ONNX's reference implementation is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.shape_inference

from benchmarks.illegal_nodes.mutants import Mutant

_NOT_ILLEGAL = (
    "NOT_IMPLEMENTED", "not implemented", "Could not find an implementation", "not supported",
    "bad_alloc", "Failed to allocate", "bad allocation", "NotImplementedError", "MemoryError",
    "currently supported", "currently only supported", "under development", "unsupported",
    "attn_mask must be 2D or 3D or 4D",  # ONNX's own tests have one of 1 dimension
    "(between attn_mask and",  # ONNX broadcasts a 1, and pads a short mask from opset 24 on
    "_inlfunc_Range_cond_in",  # a list of one instead of a scalar is refused for float16 only
    "scalar or 1D tensor of size 1",  # ONNX has QLinearMatMul by rows too
    "saturate is only used for cast to float 8",  # where it is not, it has no effect
    "size_ % 2 == 1",  # ONNX Runtime wants an odd LRN; ONNX's formula has even ones too
)  # fmt: skip
"""Words of a refusal that is about the implementation, or about this machine."""


_WRONG = {
    ("OneHot", "depth one rank higher"): "a list of one is allowed; the reference has no bfloat16",
    ("SequenceInsert", "position [0]"): "the sequence is an input: another may be long enough",
    ("SequenceMap", "x1 one "): "the sequence is an input: its tensors may be as long",
    ("SplitToSequence", "keepdims = 0"): "ONNX ignores it beside 'split'",
    ("StringNormalizer", "is_case_sensitive = 0"): "needs a locale that this machine may lack",
    ("TfIdfVectorizer", "pool_int64s"): "ONNX does not say that n-grams differ",
}
"""Refusals by an oracle that the operator's definition does not bear out: (operator, start of what
was changed) -> why.  Only where nothing else is wrong with such a mutant."""


def refused_by(mutant: Mutant, runner: str) -> str:
    """The first oracle that refuses, and its words; empty when all accept."""
    for name, ask in (("checker", _checker), ("inference", _inference), (runner, RUNNERS[runner])):
        try:
            ask(mutant)
        except Exception as error:  # each library has its own types, some from C++
            kind = mutant.model.graph.node[0].op_type
            if name == runner and any(
                kind == op and mutant.what.startswith(what) for op, what in _WRONG
            ):
                continue
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            if name != runner or not any(words in said for words in _NOT_ILLEGAL):
                return f"{name}: {said[-400:]}"
    return ""


def runner_of(base: Mutant) -> str:
    """Who runs the unchanged case: ONNX Runtime, else the reference, else nobody."""
    for name in ("onnxruntime", "reference"):
        try:
            RUNNERS[name](base)
        except Exception:  # as above
            continue
        return name
    return "nobody"


def _checker(mutant: Mutant) -> None:
    onnx.checker.check_model(mutant.model)


def _inference(mutant: Mutant) -> None:
    onnx.shape_inference.infer_shapes(mutant.model, True, True, True)


def _onnxruntime(mutant: Mutant) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        mutant.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    session.run(None, mutant.feeds)


def _reference(mutant: Mutant) -> None:
    from onnx.reference import ReferenceEvaluator

    feeds: dict[str, Any] = mutant.feeds
    with np.errstate(all="ignore"):
        ReferenceEvaluator(mutant.model).run(None, feeds)


def _nobody(mutant: Mutant) -> None:
    del mutant


RUNNERS = {"onnxruntime": _onnxruntime, "reference": _reference, "nobody": _nobody}

"""The operator algebra every stage stands on.

In: nothing but plain values.  Out: frozen graphs of tensor operators with affine accesses, facts
derived from them (footprint, split kind, signature, text).  Must not know machines, schedules,
ONNX, files or strategies.
"""

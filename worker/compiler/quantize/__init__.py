"""Partial quantisation: regions of a float model become i8, u8, f16 or bf16 (BYOC section 3.2).

In: a simplified OnnxModel, an Annotation that says which nodes a target would take in its own
format, and ranges of values.  Out: an OnnxModel in QDQ form (or with Casts), still runnable by any
ONNX runtime, and its boundaries with their noise.  Must not know schedules, kernels or caches.
Order: roles -> select -> ranges (calibration) -> parameters -> integer | narrow -> convert.
"""

"""Bundles: writing one, building its kernels, running it, and judging its numbers.

In: the pieces of a compiled model.  Out: a deterministic `*.twb` archive, and arrays when it runs.
Must not know strategies, lowering or the service; host parts run in ONNX Runtime.
"""

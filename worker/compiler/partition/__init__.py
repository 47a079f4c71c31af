"""Which ONNX nodes go to the accelerator, and in which convex regions.

In: a simplified ONNX model and a machine's capabilities.  Out: a Partitioning: parts in execution
order and one placement row per node with a reason.  Must not know schedules, kernels or caches.
"""

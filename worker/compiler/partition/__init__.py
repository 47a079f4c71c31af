"""Which ONNX nodes go to which accelerator target, and in which convex regions.

In: a simplified ONNX model and a machine.  Out: a Partitioning: parts in execution order, a
placement row per node with a reason, a decision per candidate region.  `partition` applies the
targets' rules, `weigh` the costs that simulation found.  Must not know schedules, kernels, caches.
"""

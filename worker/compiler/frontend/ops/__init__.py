"""One file per ONNX operator family: each turns a node into operators of the algebra.

In: ONNX nodes with static shapes.  Out: TensorOps, tensors and constants in an Emitter, or a
Refusal with the reason.  Must not know machines, schedules or partitions.
"""

"""From bytes to a simplified ONNX model, and from its regions to the operator algebra.

In: a file and symbol values.  Out: an OnnxModel with static shapes; Graphs of regions.  Must not
know machines, schedules or caches.  Order: load (checks, bundle_files) -> bind -> simplify
(convert_opset, shapes, fold, fold_batchnorm) -> express.  `inference_guard` comes before any
inference of ONNX's.
"""

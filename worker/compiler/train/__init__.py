"""One training step of a forward model, as a plain ONNX model (reverse mode).

In: a bound OnnxModel and TrainOptions.  Out: an OnnxModel whose inputs are the user's, the target,
parameters and their state, and whose outputs are the loss and everything's next value.  Must not
know machines, regions, schedules or caches: what comes out is compiled like any other model.
Order: parameters -> (frontend) simplify -> standardise -> loss -> derive (rules) -> optimise.
"""

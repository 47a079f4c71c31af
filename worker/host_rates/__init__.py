"""A host's rates, measured on the machine that this runs on.

`operators` names what is run, `measure` runs it in ONNX Runtime, as applications run what stays on
the host, `fit` turns seconds into the numbers of the host model, and `document` writes them into a
spec.  The host model is one: the partitioner weighs with it and the simulator charges it
(`worker.compiler.machine.machine.Host`).
"""

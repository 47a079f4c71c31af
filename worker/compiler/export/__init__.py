"""Kernels as other cost models read them: machine, operators, and the loop nest that really runs.

In: a schedule tree and its machine.  Between: one `LoopNest` per operator, or a `Refusal` that says
what has no such form.  Out: the input files of a peer (one writer per peer), kernels that the peer
cannot express left out by name.  Must not know bundles, the simulator, or how a peer is run.
"""

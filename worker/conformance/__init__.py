"""The conformance suite of a hardware document: is every claim true of the generated kernels?

In: a machine.  Out: one row per case: placed or not, error against a reference, the reason of a
failure.  Must not know the service; the command line prints what comes out.
"""

"""What a user orders, for whoever takes the order: the command line and the Python module.

In: an `Order` (files, a hardware document, options), or a bundle and inputs.  Out: the job document
and files of a compile, the outputs of a run; refusals are `CompilerError`.  Done in the sandbox of
this machine (`here`, `running`) or by a server (`served`).  Must not know how orders are written
down or how results are shown.
"""

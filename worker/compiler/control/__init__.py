"""Control flow: bodies of If, Loop and Scan as models of their own, and how to run around them.

The node itself stays on the host.  `compile_bodies` is the entry for the pipeline, `isolate` gives
an interpreted node a host part of its own, `settle_shapes` carries static shapes through loops.
"""

"""Control flow: bodies of If, Loop and Scan as models of their own, and how to run around them.

The node itself stays on the host, in a part of its own.  `compile_bodies` is the entry for the
pipeline, `settle_shapes` carries static shapes through loops.
"""

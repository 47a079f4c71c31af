"""Schedule trees: nodes, their legality, their numpy meaning, their text.

In: a canonical graph and a tree.  Out: a verified Schedule.  Must not know strategies or lowering.
"""

"""nest: one operator and the pointwise operators behind it as a loop nest over memory levels.

In: an operator (or a fused group), where its operands live, a team of cores.  Out: tiles for every
level with a prediction, and the tree.  A library for strategies: nothing here groups operators.
"""

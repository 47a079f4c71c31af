"""naive: one operator per unit, tiles that fit every level, cores along output axes.

In: any graph of TensorOps.  Out: a legal schedule whenever one element of each operand fits.
It is the fallback of every other strategy and the baseline that they are measured against.
"""

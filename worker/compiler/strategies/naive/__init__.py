"""naive: one operator (or composite) per unit, tiles that fit every level, cores along outputs.

In: any graph of TensorOps.  Out: a legal schedule whenever one element of each operand fits.
It is the fallback of every other strategy and the baseline that they are measured against.
"""

"""Gradient rules, one family of operators a file.

In: a Site, one node with the gradients of its outputs.  Out: gradients of its inputs, as new nodes
of the same graph in standard operators.  Must not know losses, parameters or optimisers.
"""

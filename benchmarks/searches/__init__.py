"""Searches for the tiling of one layer, side by side on the same problem.

In: a layer, its stages, the space of tilings and what prices them (`problem`).  Out: the best
tiling that each search finds, and what it took.  Nothing of the product is built on them.
"""

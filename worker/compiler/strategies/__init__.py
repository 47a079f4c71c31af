"""Strategies: each turns a graph into verified schedules; they never import each other.

In: a Graph or one canonical group, and a Machine.  Out: Grouping, Arrangement, Schedule, or a
Shortfall.  Must not know lowering, kernels, the simulator, or where plans are cached.
"""

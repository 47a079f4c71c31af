"""Strategies: graphs to schedules, one folder each; they never import each other.

In: a Graph and a Machine.  Out: Grouping, Arrangement, Schedule, or a Shortfall.  Must not know
lowering, code generation or the pipeline.
"""

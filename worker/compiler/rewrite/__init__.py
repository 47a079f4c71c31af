"""Rewriting and cutting graphs: what every strategy may use before it schedules.

In: a Graph.  Out: an equal Graph, or names of its operators in pieces.  Must not know machines'
schedules or any strategy.
"""

"""Published figures of silicon and of vendors' tools against the simulation, row by row.

In: rows (`published.yaml`: figure, citation, machine, work, band, causes).  Out: ratios, verdicts,
a page.  A single operator runs the best mapping of a brute force, so that the clock is judged and
not a strategy's search; whole networks are compiled as users compile them.  Must not know the
service.
"""

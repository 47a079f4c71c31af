"""Many chips for one model: what kernels take on each, and which chips are worth building.

In: a bundle that was compiled for one chip, its hardware document, fields to vary.  Out: rows
(time, energy, on-chip bytes, area, off-chip bandwidth), their Pareto front, a table and a page.
Must not know the service or the command line.
"""

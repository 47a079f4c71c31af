"""Reports: report.json, layers.csv and the offline report.html of one compiled, simulated model.

In: a CompiledModel, its simulations, a verification outcome.  Out: bytes, deterministic apart from
the `timings` block.  Must not know jobs, databases or HTTP.
"""

"""Reports: report.json, layers.csv and the offline report.html of one compiled, simulated model.

In: a CompiledModel, its simulations, a verification outcome.  Out: bytes, the same for every run;
what depends on the run is in run.json (`run`).  Must not know jobs, databases or HTTP.
"""
